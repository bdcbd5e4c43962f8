"""Overwrite with two gates: an update may leave the memory as it is, and may say that it is enough.

An unchanged memory is kept verbatim and costs a few tokens, so what was found early survives any number of
chunks that have nothing to add. With `early_exit`, reading stops once the model has said that the memory
is enough and `exit_patience` further chunks have changed nothing (gates as in GRU-Mem; this form of them is
our own).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from memagent.prompts import GATED
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_gated
from memagent.reading.workflow import Lookahead, Workflow, in_turn
from memagent.settings import Count, Options


class Exit(Options):
    """When to stop."""

    skip: ClassVar[bool] = True
    off: ClassVar[dict[str, Any]] = {"early_exit": False}
    early_exit: bool = Field(
        default=False, description="stop once the model says that it knows enough (gated)"
    )
    exit_patience: Count = Field(
        default=0, description="how many further chunks must change nothing before early_exit stops"
    )


async def gated(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read chunks until they end or the memory is enough, then answer from the memory alone."""
    options, confirmed = reading.settings.of(Exit), None
    read = partial(reading.update, read_reply=read_gated)
    async with aclosing(in_turn(reading, chunks, memory, read, options.early_exit)) as turns:
        async for updates in turns:
            before = memory
            for update in updates:
                memory = update.memory
                yield update
            # One that speaks of half a chunk alone does not count.
            enough = any(update.enough and update.memory == memory for update in updates)
            confirmed = confirmations(confirmed, memory != before, enough)
            if options.early_exit and confirmed is not None and confirmed >= options.exit_patience:
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


WORKFLOW = Workflow(gated, GATED, templates=True, screens=True, keeps_memory=True, options=(Exit, Lookahead))
