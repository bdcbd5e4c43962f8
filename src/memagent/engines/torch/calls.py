"""The waiting and the running calls of an engine that decodes in batches.

A thread decodes the batch, and calls leave it as they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memagent.engines.torch.decoding import DecodingRow
from memagent.errors import EngineError

_SHORT_PROMPT_TOKENS = 512


class Calls:
    """The waiting and the running calls; at most `most_rows` run at once."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._waiting: list[DecodingRow] = []
        self._running: list[DecodingRow] = []
        self._begun = 0  # batches

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._waiting)

    @property
    def running(self) -> Sequence[DecodingRow]:
        """The rows of the batch, including those that have ended."""
        return self._running

    def add(self, row: DecodingRow) -> None:
        """Queue a call."""
        row.turn = self._begun
        self._waiting.append(row)

    def begin(self, in_order: bool = False) -> bool:
        """Make the next batch from the waiting calls; False if there are none.

        With `in_order`, it does not matter in which order calls came between two batches.
        """
        if in_order:
            self._waiting.sort(key=lambda row: (row.turn, row.prompt_ids, row.sampling.seed or 0))
        self._begun += 1
        self._running, self._waiting = next_batch(self._waiting, self._most_rows)
        return bool(self._running)

    def leave(self, rows: Sequence[DecodingRow]) -> None:
        """Hand over rows of the batch that have ended. Called in the batch's thread."""
        if rows:
            rows[0].finished.get_loop().call_soon_threadsafe(finish, rows)

    def give_up(self) -> None:
        """Fail every call; a running batch ends with its next token, as nobody waits for it."""
        rows, self._waiting = [*self._waiting, *self._running], []
        fail(rows, "the engine was closed before the call was done")


def next_batch(waiting: Sequence[DecodingRow], most_rows: int) -> tuple[list[DecodingRow], list[DecodingRow]]:
    """The call that has waited longest with others of about its length, and the rest; no cancelled ones.

    Rows are padded to the longest prompt of their batch, so a far shorter one would cost as much.
    """
    rows = [row for row in waiting if not row.finished.done()]
    lengths = [sorted((len(row.prompt_ids), len(rows[0].prompt_ids))) for row in rows]
    alike = [row for row, (short, long) in zip(rows, lengths, strict=True)
             if long <= max(2 * short, _SHORT_PROMPT_TOKENS)]  # fmt: skip
    batch = alike[:most_rows]
    return batch, [row for row in rows if row not in batch]


def finish(rows: Iterable[DecodingRow]) -> None:
    """Hand the rows to their callers."""
    for row in rows:
        if not row.finished.done():
            row.finished.set_result(None)


def fail(rows: Iterable[DecodingRow], reason: str, cause: BaseException | None = None) -> None:
    """Raise `EngineError` in the rows' callers."""
    for row in rows:
        if not row.finished.done():
            failure = EngineError(reason)
            failure.__cause__ = cause
            row.finished.set_exception(failure)
