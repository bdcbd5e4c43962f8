"""Progress on stderr: on a terminal a live display of reads, or bars of a run; elsewhere plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from rich import get_console
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from memagent.cli.messages import describe, harmless, tell
from memagent.engines import Choice
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.runs.batch import RunProgress
from memagent.types import Conversation, Spent

_PREVIEW_CHARACTERS = 200
_PANEL_CHARACTERS = 1200
_MAX_BARS = 8
_WIDE = 100


def describe_opening(choice: Choice) -> str:
    """What to say while an engine opens, which may take a minute."""
    return "loading the model" if choice.embedded else "reaching the endpoint"


class ReadDisplay:
    """Shows the progress of the reads of some questions, unless `quiet`. A context manager."""

    def __init__(self, quiet: bool, questions: Sequence[str]) -> None:
        self._quiet, self._questions = quiet, questions
        self._reads: dict[int, Read] = {}
        self._memories: dict[int, str] = {}
        self._last: int | None = None  # the question whose memory was written last
        self._status = ""
        self._since = time.monotonic()
        is_live = get_console().is_terminal and not quiet
        self._live = Live(self, refresh_per_second=4, redirect_stdout=False) if is_live else None

    def waiting(self, status: str) -> None:
        """Show what the first read is waiting for; "" for nothing."""
        self._status, self._since = status, time.monotonic()
        if self._live is not None:
            self._live.refresh()
        elif status:
            self.remark(status)

    def begin(self, number: int, read: Read) -> None:
        """Show the read of a question from now on."""
        self._reads[number] = read

    def show(self, number: int, conversation: Conversation) -> None:
        """Show a conversation that a read has finished."""
        before = self._memories.get(number, "")
        self._memories[number], self._last = conversation.memory, number
        if self._live is None:
            label = f"question {number}, " if len(self._questions) > 1 else ""
            self.remark(label + _line(self._reads[number].progress, conversation, before))

    def remark(self, text: str) -> None:
        """Say something about a read."""
        tell(text, quiet=self._quiet)

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
        reads = list(self._reads.items())[:_MAX_BARS]
        labels = [self._label(number, options.max_width // 4) for number, _ in reads]
        widest = max(map(len, labels), default=0)
        for label, (_, read) in zip(labels, reads, strict=True):
            bars.add_row(*self._bar(label.ljust(widest), read.progress, options.max_width))
        yield bars

    def _bar(self, label: str, progress: Progress, width: int) -> list[RenderableType]:
        cells = 20 if width >= _WIDE else 10
        bar = ProgressBar(total=1.0, completed=progress.fraction_of_pass or 0.0, width=cells)
        text = Text(describe_progress(progress), no_wrap=True, overflow="ellipsis")
        return [Text(label), bar, text] if label else [bar, text]

    def _label(self, number: int, cells: int) -> str:
        if len(self._questions) == 1:
            return ""
        return _shorten(harmless(f"{number} {self._questions[number - 1]}"), cells)


class RunDisplay:
    """Shows the progress of a run of `rows`, such as files, unless `quiet`. A context manager.

    A part of the run is known by its name; one without a name is the whole run.
    """

    def __init__(self, quiet: bool, rows: str) -> None:
        self.all = RunProgress()
        self.parts: dict[str, RunProgress] = {}
        self._quiet, self._rows, self._moves = quiet, rows, get_console().is_terminal
        columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn()
        self._display = Bars(*columns, TextColumn("{task.fields[left]}"), disable=quiet or not self._moves)
        self._bars: dict[str, TaskID] = {}

    def begin(self, totals: Mapping[str, int], done: Mapping[str, int]) -> None:
        """Expect this many rows of each part, of which some are done."""
        earlier = sum(done.values())
        self.all = RunProgress(sum(totals.values()), earlier, earlier)
        self.parts = {part: RunProgress(total, done.get(part, 0)) for part, total in totals.items()}
        self._bars = {
            "": self._display.add_task(self._rows, total=self.all.total, completed=earlier, left="")
        }
        for part in filter(None, totals):
            self._bars[part] = self._display.add_task("", total=totals[part], visible=False, left="")
        if earlier and not self._moves:
            tell(f"{earlier:,} of {self.all.total:,} {self._rows} are already done", quiet=self._quiet)

    def add(self, part: str, note: str, spent: Spent, *, kept: bool = False, failed: bool = False) -> None:
        """Count a row of a part; `note` says what is known of the part now, or of the row."""
        percent, mine = 100 * self.all.done // self.all.total, self.parts[part]
        for progress in (self.all, mine):
            progress.add(spent, kept=kept, failed=failed)
        left = describe_left(self.all)
        self._display.update(self._bars[""], completed=self.all.done, left=left)
        finished = mine.done == mine.total
        if part:
            failures = f", {mine.failed} failed" if mine.failed else ""
            note = f"{part}: {note}{failures}, {mine.done:,} {self._rows}"
            self._display.update(
                self._bars[part], completed=mine.done, description=note, visible=not finished
            )
        if note and not self._moves and 100 * self.all.done // self.all.total > percent:
            left = f", {left}" if left else ""
            tell(f"{self.all.done:,} of {self.all.total:,}{left}: {note}", quiet=self._quiet)
        elif part and finished:
            tell(note, quiet=self._quiet)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._display.stop()


def describe_progress(progress: Progress) -> str:
    """The progress of a read, what matters most first, since a narrow terminal shows only the beginning."""
    left = "" if progress.seconds_left is None or progress.done else f"{clock(progress.seconds_left)} left"
    rate = f"{progress.tokens_per_second:,.0f} tokens/s" if progress.tokens_per_second else ""
    return ", ".join(filter(None, (left, _describe_chunk(progress), rate, _cost(progress))))


def clock(seconds: float) -> str:
    """A duration in human-readable form."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def describe_left(progress: RunProgress) -> str:
    """What a run has left to do, as far as that is known: "3 min and cost 0.02 left"."""
    if (seconds := progress.seconds_left) is None or progress.done == progress.total:
        return ""
    cost = "" if progress.cost_left is None else f" and cost {progress.cost_left:.4g}"
    return f"{clock(seconds)}{cost} left"


def describe_verdict(conversation: Conversation) -> str:
    """The verdict on a chunk, after what else is said of it: ", verdict -1.2"."""
    return "" if conversation.verdict is None else f", verdict {conversation.verdict:+.1f}"


def _line(progress: Progress, conversation: Conversation, before: str) -> str:
    seconds = f"{conversation.seconds:.1f} s"
    if conversation.kind == "answer":
        answered = f"answered in {seconds}, {clock(progress.seconds)} in all; {_cost(progress)}"
        recalled = f"; {progress.recalled} of {progress.spent.calls} calls from the journal"
        return answered + recalled if progress.recalled else answered
    if conversation.unused:
        return f"{_describe_chunk(progress)}: {seconds}, asked ahead, not used"
    what = f"{_describe_chunk(progress)}: {seconds}{describe_verdict(conversation)}"
    if conversation.memory == before:
        return f"{what}, memory unchanged"
    return f"{what}, memory: {_preview(conversation.memory, before)}"


def _describe_chunk(progress: Progress) -> str:
    of = progress.chunks_in_all
    if progress.passes > 1:
        return f"pass {progress.passes}, chunk {progress.reread} of {progress.to_reread}"
    if not progress.chunks:
        return ""
    if not of:
        return f"chunk {progress.chunks}"
    return f"chunk {progress.chunks} of {'' if progress.fraction == 1 else '~'}{of}"


def _cost(progress: Progress) -> str:
    spent = describe(progress.spent)
    return f"{spent} (estimated)" if progress.spent.estimated else spent


def _preview(memory: str, before: str) -> str:
    """The beginning of a memory, or of its new part if that would otherwise not be in sight."""
    old, new = " ".join(before.split()), " ".join(memory.split())
    pairs = zip(old, new, strict=False)
    same = next((index for index, (was, now) in enumerate(pairs) if was != now), min(len(old), len(new)))
    if len(new) <= _PREVIEW_CHARACTERS or same < _PREVIEW_CHARACTERS // 2 or same == len(new):
        return _shorten(new, _PREVIEW_CHARACTERS)
    word = new.rfind(" ", 0, same + 1) + 1
    return "…" + _shorten(new[word:], _PREVIEW_CHARACTERS - 1)


def _shorten(text: str, characters: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
