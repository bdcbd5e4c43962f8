"""Progress of reads: a live display on a terminal, a plain line per conversation elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from memagent.cli.messages import describe, harmless, tell
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.types import Conversation

_WAITING = {
    "openai": "reaching the endpoint",
    "llamacpp": "loading the model",
    "transformers": "loading the model",
}

_PREVIEW_CHARACTERS = 200
_PANEL_CHARACTERS = 1200
_MAX_BARS = 8
_WIDE = 100


def describe_opening(engine: str) -> str:
    """What to say while an engine opens, which may take a minute."""
    return _WAITING.get(engine, "opening the engine")


class ReadDisplay:
    """Shows the progress of the reads of some questions, unless `quiet`. A context manager."""

    def __init__(self, console: Console, quiet: bool, questions: Sequence[str]) -> None:
        self._console, self._quiet = console, quiet
        self._questions = questions
        self._reads: dict[int, Read] = {}
        self._memories: dict[int, str] = {}
        self._last: int | None = None  # the question whose memory was written last
        self._status = ""
        self._since = time.monotonic()
        self._live = (
            Live(self, console=console, refresh_per_second=4, redirect_stdout=False)
            if console.is_terminal and not quiet
            else None
        )

    def waiting(self, status: str) -> None:
        """Show what the first read is waiting for; "" for nothing."""
        self._status, self._since = status, time.monotonic()
        if self._live is not None:
            self._live.refresh()
        elif status and not self._quiet:
            tell(self._console, status)

    def begin(self, number: int, read: Read) -> None:
        """Show the read of a question from now on."""
        self._reads[number] = read

    def show(self, number: int, conversation: Conversation) -> None:
        """Show a conversation that a read has finished."""
        before = self._memories.get(number, "")
        self._memories[number], self._last = conversation.memory, number
        if self._live is None and not self._quiet:
            label = f"question {number}, " if len(self._questions) > 1 else ""
            tell(self._console, label + _line(self._reads[number].progress, conversation, before))

    def remark(self, text: str) -> None:
        """Say something about a read."""
        if not self._quiet:
            tell(self._console, text)

    def end(self, number: int) -> None:
        """Stop showing a read, if there are several."""
        if len(self._questions) > 1:
            self._reads.pop(number, None)

    @contextmanager
    def pause(self, last: bool) -> Iterator[None]:
        """Hide the display while stdout is written to; the `last` time, leave it visible."""
        if self._live is None:
            yield
            return
        self._live.transient = not last
        self._live.stop()
        yield
        if not last:
            self._live.start()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._status:
            yield Text(f"{self._status}, {time.monotonic() - self._since:.0f} s")
        if self._last is not None:
            title = self._label(self._last, options.max_width - 20)
            memory = harmless(self._memories[self._last][-_PANEL_CHARACTERS:]) or "(empty)"
            yield Panel(Text(memory), title=Text(f"memory{title and ': '}{title}"), border_style="cyan")
        bars = Table.grid(padding=(0, 1, 0, 0))
        shown = list(self._reads.items())[:_MAX_BARS]
        labels = [self._label(number, options.max_width // 4) for number, _ in shown]
        widest = max(map(len, labels), default=0)
        for label, (_, read) in zip(labels, shown, strict=True):
            bars.add_row(*self._bar(label.ljust(widest), read.progress, options.max_width))
        yield bars

    def _bar(self, label: str, progress: Progress, width: int) -> list[RenderableType]:
        cells = 20 if width >= _WIDE else 10
        bar = ProgressBar(total=1.0, completed=progress.fraction_of_pass or 0.0, width=cells)
        told = Text(describe_progress(progress), no_wrap=True, overflow="ellipsis")
        return [Text(label), bar, told] if label else [bar, told]

    def _label(self, number: int, cells: int) -> str:
        if len(self._questions) == 1:
            return ""
        return _shorten(harmless(f"{number} {self._questions[number - 1]}"), cells)


def describe_progress(progress: Progress) -> str:
    """The progress of a read, what matters most first, since a narrow terminal shows only the beginning."""
    left = "" if progress.seconds_left is None or progress.done else f"{clock(progress.seconds_left)} left"
    rate = f"{progress.tokens_per_second:,.0f} tokens/s" if progress.tokens_per_second else ""
    return ", ".join(filter(None, (left, _place(progress), rate, _cost(progress))))


def clock(seconds: float) -> str:
    """A duration in human-readable form."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _line(progress: Progress, conversation: Conversation, before: str) -> str:
    seconds = f"{conversation.seconds:.1f} s"
    if conversation.kind == "answer":
        told = f"answered in {seconds}, {clock(progress.seconds)} in all; {_cost(progress)}"
        kept = f"; {progress.recalled} of {progress.spent.calls} calls from the journal"
        return told + kept if progress.recalled else told
    if conversation.unused:
        return f"{_place(progress)}: {seconds}, asked ahead, not used"
    if conversation.memory == before:
        return f"{_place(progress)}: {seconds}, memory unchanged"
    return f"{_place(progress)}: {seconds}, memory: {_preview(conversation.memory, before)}"


def _place(progress: Progress) -> str:
    of = progress.chunks_in_all
    if progress.passes > 1:
        return f"pass {progress.passes}, chunk {progress.reread} of {progress.to_reread}"
    if not of:
        return f"chunk {progress.chunks}"
    return f"chunk {progress.chunks} of {'' if progress.fraction == 1 else '~'}{of}"


def _cost(progress: Progress) -> str:
    told = describe(progress.spent)
    return f"{told} (estimated)" if progress.spent.estimated else told


def _preview(memory: str, before: str) -> str:
    """The beginning of a memory, or of its new part if that would otherwise not be in sight."""
    old, new = " ".join(before.split()), " ".join(memory.split())
    pairs = zip(old, new, strict=False)
    same = next((place for place, (was, now) in enumerate(pairs) if was != now), min(len(old), len(new)))
    if len(new) <= _PREVIEW_CHARACTERS or same < _PREVIEW_CHARACTERS // 2 or same == len(new):
        return _shorten(new, _PREVIEW_CHARACTERS)
    word = new.rfind(" ", 0, same + 1) + 1
    return "…" + _shorten(new[word:], _PREVIEW_CHARACTERS - 1)


def _shorten(text: str, characters: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
