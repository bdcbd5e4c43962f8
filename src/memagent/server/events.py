"""The events of a read, for those who listen to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memagent.concurrency import in_thread
from memagent.errors import JournalError
from memagent.reading.journal import read_journal
from memagent.reading.lines import outcome_of
from memagent.reading.progress import Progress
from memagent.types import Conversation, flatten


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a read: a `conversation` with its number, its `progress`, or its `end` with the outcome."""

    name: str
    data: Mapping[str, Any] | Progress
    number: int | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> Mapping[str, Any]:
        """What clients are sent."""
        return describe_progress(self.data) if isinstance(self.data, Progress) else self.data


def describe_progress(progress: Progress) -> dict[str, Any]:
    """Describe the progress of a read as clients are sent it."""
    return {**flatten(progress), "chunks_in_all": progress.chunks_in_all}


async def read_events(journal: Path, after: int) -> AsyncIterator[Event]:
    """Read the conversations in a journal from number `after` + 1 on; none if it has not begun."""
    number = 0
    try:
        async for line in in_thread(read_journal(journal)):
            if isinstance(line, Conversation):
                number += 1
                if number > after:
                    yield Event("conversation", outcome_of(line), number)
    except JournalError:
        return
