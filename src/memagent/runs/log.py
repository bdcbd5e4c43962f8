"""The rows of a run by their keys, in an append-only log: what is on record need not be read again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from memagent.storage import Log, read_log

FindKeys = Callable[[Mapping[str, Any]], Mapping[Hashable, Any]]
"""The keys of a line, each with what is held in memory for it; None if the line is to be read again.

Raises `SettingsError` for a line that no such run has written.
"""


class RunLog:
    """A log whose lines are found by their keys; the last line with a key is the one that counts.

    One process at a time holds it, with the offsets of the lines in memory. Without `claim`, another
    process may hold it, and nothing is created or written; without a `path`, there is nothing on disk at all.
    What is appended is then held in memory.
    """

    def __init__(self, path: Path | None, find_keys: FindKeys, claim: bool = True) -> None:
        self._find_keys = find_keys
        self._found: dict[Hashable, Any] = {}  # what is held, or else the line or its offset
        self._log = Log(path) if path and claim else None
        try:
            if self._log:
                for line, place in self._log.lines():
                    self._take(find_keys(line), place)
            elif path and path.exists():
                for line in read_log(path):
                    self._take(find_keys(line), line)
        except BaseException:
            self.close()
            raise

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> Any:
        """What is held in memory for a key, or else its line; None if there is none. Blocks."""
        found = self._found.get(key)
        return self._log.at(found) if self._log and isinstance(found, int) else found

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line to disk. Blocks. Raises `SettingsError` for one that could not be found again, too."""
        keys = self._find_keys(line)
        self._take(keys, self._log.append(line) if self._log else line)

    def _take(self, keys: Mapping[Hashable, Any], place: int | Mapping[str, Any]) -> None:
        self._found.update((key, place if held is None else held) for key, held in keys.items())

    def close(self) -> None:
        """Release the log."""
        if self._log:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
