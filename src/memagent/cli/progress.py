"""How a read goes on: a live display on a terminal, a plain line a conversation elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from memagent.reading.read import Read
from memagent.types import Conversation

_PREVIEW_CHARACTERS = 200
_PANEL_CHARACTERS = 1200


Show = Callable[[Read, Conversation], None]


@contextmanager
def progress_on(console: Console, quiet: bool) -> Iterator[Show]:
    """What to call with each conversation, as suits the console."""
    if quiet:
        yield lambda _reading, _conversation: None
    elif not console.is_terminal:
        yield _Lines(console).show
    else:
        bars = Progress(BarColumn(20), TextColumn("{task.description}"), console=console)
        with Live(bars, console=console, refresh_per_second=4) as live:
            yield _Bars(bars, live).show


class _Lines:
    """One line a conversation: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.memories: dict[int, str] = {}

    def show(self, reading: Read, conversation: Conversation) -> None:
        before = self.memories.get(id(reading), "")
        self.memories[id(reading)] = conversation.memory
        seconds = f"{conversation.seconds:.1f} s"
        if conversation.kind == "answer":
            line = f"answered in {seconds}; {_cost(reading)}"
        elif conversation.memory == before:
            line = f"{_place(reading)}: {seconds}, memory unchanged"
        else:
            line = f"{_place(reading)}: {seconds}, memory: {_preview(conversation.memory)}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Bars:
    """A bar a question, and the memory that was written last."""

    def __init__(self, bars: Progress, live: Live) -> None:
        self.bars, self.live = bars, live
        self.started = time.monotonic()
        self.tasks: dict[int, TaskID] = {}

    def show(self, reading: Read, conversation: Conversation) -> None:
        if id(reading) not in self.tasks:
            self.tasks[id(reading)] = self.bars.add_task("", total=1.0)
        elapsed = time.monotonic() - self.started
        rate = (reading.prompt_tokens + reading.completion_tokens) / max(elapsed, 1e-6)
        done = conversation.kind == "answer"
        fraction = 1.0 if done else reading.fraction
        left = f", {elapsed / fraction - elapsed:.0f} s left" if fraction and not done else ""
        self.bars.update(
            self.tasks[id(reading)],
            completed=fraction or 0.0,
            description=f"{_place(reading)}, {rate:.0f} tokens/s, {_cost(reading)}{left}",
        )
        memory = Text(conversation.memory[-_PANEL_CHARACTERS:] or "(empty)")
        self.live.update(Group(Panel(memory, title="memory", border_style="cyan"), self.bars))


def _place(reading: Read) -> str:
    if not reading.fraction:
        return f"chunk {reading.chunks}"
    total = max(reading.chunks, round(reading.chunks / reading.fraction))
    return f"chunk {reading.chunks} of {'' if reading.fraction == 1 else '~'}{total}"


def _cost(reading: Read) -> str:
    return f"{reading.prompt_tokens:,} tokens in, {reading.completion_tokens:,} out"


def _preview(memory: str) -> str:
    line = " ".join(memory.split())
    return line if len(line) <= _PREVIEW_CHARACTERS else line[: _PREVIEW_CHARACTERS - 1] + "…"
