"""The examples of a run, in an order that depends only on the seed and the position."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from memagent.errors import SettingsError
from memagent.tasks import load_examples
from memagent.tasks.files import places
from memagent.training.rewards import load_function
from memagent.types import Example, TokenCounter


class Data:
    """Examples from several sources, which take turns. Each pass over a file has a new order."""

    def __init__(
        self, sources: Sequence[Callable[[int], Example]], sizes: Sequence[int | None], seed: int
    ) -> None:
        self._sources = sources
        self._sizes = sizes
        self._seed = seed
        self._order = lru_cache(maxsize=len(sources))(self._shuffled)

    def at(self, position: int) -> Example:
        """The example at a position, 0 and up. Raises `SettingsError` for a row that is not an example."""
        turn, source = divmod(position, len(self._sources))
        size = self._sizes[source]
        if size is None:
            return self._sources[source](turn)
        epoch, place = divmod(turn, size)
        return self._sources[source](self._order(source, epoch)[place])

    def first(self, count: int) -> list[Example]:
        """The first `count` examples, unshuffled; fewer if the sources are files that hold fewer."""
        known = [size for size in self._sizes if size is not None]
        if len(known) == len(self._sizes):
            count = min(count, sum(known))
        found: list[Example] = []
        turn = 0
        while len(found) < count:
            found += [source(turn) for source, size in zip(self._sources, self._sizes, strict=True)
                      if size is None or turn < size]  # fmt: skip
            turn += 1
        return found[:count]

    def _shuffled(self, source: int, epoch: int) -> list[int]:
        order = list(range(self._sizes[source] or 0))
        random.Random(f"{self._seed}/{source}/{epoch}").shuffle(order)
        return order


def load_data(names: Sequence[str], seed: int, count_tokens: TokenCounter) -> Data:
    """The data of the named sources: JSONL files, and functions from a number to an example.

    Raises `SettingsError` for a source that cannot be read or is empty, and if none is named.
    """
    if not names:
        raise SettingsError("which examples? set data.examples to a list of files or functions")
    sources: list[Callable[[int], Example]] = []
    sizes: list[int | None] = []
    for name in names:
        if ":" in name and not Path(name).exists():
            sources.append(load_function(name))
            sizes.append(None)
        else:
            file = _File(Path(name), count_tokens)
            sources.append(file.example)
            sizes.append(file.count)
    return Data(sources, sizes, seed)


class _File:
    """A JSONL file. Memory holds only the places of its lines; a gzipped file is held whole."""

    def __init__(self, path: Path, count_tokens: TokenCounter) -> None:
        self._count_tokens = count_tokens
        self._whole = list(load_examples(path, count_tokens)) if path.suffix == ".gz" else None
        self._places = list(places(path)) if self._whole is None else []
        self.count = len(self._places if self._whole is None else self._whole)
        if not self.count:
            raise SettingsError(f"{path} holds no examples")

    def example(self, index: int) -> Example:
        if self._whole is not None:
            return self._whole[index]
        return self._places[index].example(self._count_tokens)
