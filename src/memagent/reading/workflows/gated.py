"""Overwrite with two gates: an update may leave the memory as it is, and may say that it is enough.

An unchanged memory is kept verbatim and costs a few tokens, so what was found early survives any number of
chunks that have nothing to add. With `early_exit`, reading stops once the model has said that the memory
is enough and `exit_patience` further chunks have changed nothing (gates as in GRU-Mem; this form of them is
our own).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from memagent.prompts import GATED
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_gated
from memagent.reading.workflow import Workflow, in_turn


async def gated(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read chunks until they end or the memory is enough, then answer from the memory alone."""
    settings, confirmed = reading.settings, None
    read = partial(reading.update, read_reply=read_gated)
    async with aclosing(in_turn(reading, chunks, memory, read)) as turns:
        async for updates in turns:
            before = memory
            for update in updates:
                memory = update.memory
                yield update
            enough = any(it.enough and it.memory == memory for it in updates)  # not of half a chunk alone
            confirmed = confirmations(confirmed, memory != before, enough)
            if settings.early_exit and confirmed is not None and confirmed >= settings.exit_patience:
                break
    async for answer in reading.conclude(memory):
        yield answer


def confirmations(so_far: int | None, changed: bool, enough: bool) -> int | None:
    """How many chunks have left the memory alone since the model said that it is enough.

    `so_far` is that number before a chunk, None while the model has not said so of this memory. `changed` is
    whether the chunk changed the memory, `enough` whether the model said at it that the memory is enough.
    """
    if so_far is None or changed:
        return 0 if enough else None
    return so_far + 1


WORKFLOW = Workflow(gated, GATED, templates=True, screens=True, keeps_memory=True)
