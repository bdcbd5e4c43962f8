"""The ways to read: each turns a problem and chunks into conversations, one async generator each.

`WORKFLOWS` maps a workflow's name to its function and its own prompts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

from memagent.prompts import GATED, OVERWRITE, Prompts
from memagent.reading.conversations import Budgets, Reader
from memagent.reading.workflows.gated import gated
from memagent.reading.workflows.overwrite import overwrite
from memagent.types import Chunk, Conversation

__all__ = ["WORKFLOWS", "Budgets", "Reader", "Workflow", "gated", "overwrite"]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A named way to read, with the prompts that it was written for."""

    run: Callable[[Reader, Iterable[Chunk]], AsyncGenerator[Conversation, None]]
    prompts: Prompts


WORKFLOWS = {
    "overwrite": Workflow(overwrite, OVERWRITE),
    "gated": Workflow(gated, GATED),
}
