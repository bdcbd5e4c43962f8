"""The calls of an engine that decodes in batches: those that wait, and those of the batch that runs.

A batch is decoded in a thread, which lets calls go as they end and takes in others. Announced callers have
batches of their own: each of their batches is the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from memagent.engines.torch.decoding import DecodingRow
from memagent.errors import EngineError

_SHORT_PROMPT_TOKENS = 512
_LEAST_JOINING = 0.25  # of those that are in the batch: to read a prompt holds them up


class Calls:
    """What waits and what runs, of which at most `most_rows` together."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._lock = threading.Lock()
        self._waiting: list[DecodingRow] = []
        self._running: list[DecodingRow] = []

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def running(self) -> Sequence[DecodingRow]:
        """The rows of the batch, ended ones among them."""
        return self._running

    def add(self, row: DecodingRow) -> None:
        """Have a call wait."""
        with self._lock:
            self._waiting.append(row)

    def begin(self) -> bool:
        """Make the next batch of those that wait; False if nobody does."""
        with self._lock:
            self._running, self._waiting = next_batch(self._waiting, self._most_rows)
        return bool(self._running)

    def leave(self, rows: Sequence[DecodingRow]) -> None:
        """Rows of the batch have ended. Called in its thread."""
        if rows:
            rows[0].finished.get_loop().call_soon_threadsafe(finish, rows)

    def join(self, live: int) -> Sequence[DecodingRow]:
        """The waiting rows that join the batch, of which so many are left. Called in its thread."""
        with self._lock:
            room = self._most_rows - live
            if room < 1 or len(self._waiting) < _LEAST_JOINING * live:
                return []
            rows, self._waiting = next_batch(self._waiting, room)
            self._running = [*self._running, *rows]
            return rows

    def give_up(self, reason: str) -> None:
        """Fail every call."""
        with self._lock:
            rows, self._waiting = [*self._waiting, *self._running], []
        fail(rows, reason)


def next_batch(waiting: Sequence[DecodingRow], most_rows: int) -> tuple[list[DecodingRow], list[DecodingRow]]:
    """The call that waits longest with those of about its length, and the rest; no cancelled ones.

    Rows are padded to the longest prompt of their batch, so that a far shorter one would cost as much.
    """
    rows = [row for row in waiting if not row.finished.done()]
    lengths = [sorted((len(row.prompt_ids), len(rows[0].prompt_ids))) for row in rows]
    alike = [row for row, (short, long) in zip(rows, lengths, strict=True)
             if long <= max(2 * short, _SHORT_PROMPT_TOKENS)]  # fmt: skip
    batch = alike[:most_rows]
    return batch, [row for row in rows if row not in batch]


def finish(rows: Iterable[DecodingRow]) -> None:
    """Hand the rows to those that wait for them."""
    for row in rows:
        if not row.finished.done():
            row.finished.set_result(None)


def fail(rows: Iterable[DecodingRow], reason: str, cause: BaseException | None = None) -> None:
    """Have those that wait for the rows raise `EngineError`."""
    for row in rows:
        if not row.finished.done():
            failure = EngineError(reason)
            failure.__cause__ = cause
            row.finished.set_exception(failure)
