"""Progress of a run: on a terminal a bar for each part in progress, elsewhere a line for each percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from memagent.cli.messages import tell
from memagent.cli.progress import clock
from memagent.runs.batch import RunProgress
from memagent.types import Spent


class RunDisplay:
    """Shows the progress of a run of `rows`, such as files, unless `quiet`. A context manager.

    A part of the run is known by its name; one without a name is the whole run.
    """

    def __init__(self, console: Console, quiet: bool, rows: str) -> None:
        self.all = RunProgress()
        self.parts: dict[str, RunProgress] = {}
        self._console, self._quiet, self._rows = console, quiet, rows
        columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn()
        left = TextColumn("{task.fields[left]}")
        self._display = Progress(*columns, left, console=console, disable=quiet or not console.is_terminal)
        self._bars: dict[str, TaskID] = {}

    def begin(self, totals: Mapping[str, int], done: Mapping[str, int]) -> None:
        """Expect this many rows of each part, of which some are done."""
        kept = sum(done.values())
        self.all = RunProgress(sum(totals.values()), kept, kept)
        self.parts = {part: RunProgress(total, done.get(part, 0)) for part, total in totals.items()}
        self._bars = {"": self._display.add_task(self._rows, total=self.all.total, completed=kept, left="")}
        for part in filter(None, totals):
            self._bars[part] = self._display.add_task("", total=totals[part], visible=False, left="")
        if kept and not self._console.is_terminal:
            self._tell(f"{kept:,} of {self.all.total:,} {self._rows} are already done")

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
        if note and not self._console.is_terminal and 100 * self.all.done // self.all.total > percent:
            left = f", {left}" if left else ""
            self._tell(f"{self.all.done:,} of {self.all.total:,}{left}: {note}")
        elif part and finished:
            self._tell(note)

    def _tell(self, line: str) -> None:
        if not self._quiet:
            tell(self._console, line)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._display.stop()


def describe_left(progress: RunProgress) -> str:
    """What a run has left to do, as far as that is known: "3 min and cost 0.02 left"."""
    if (seconds := progress.seconds_left) is None or progress.done == progress.total:
        return ""
    cost = "" if progress.cost_left is None else f" and cost {progress.cost_left:.4g}"
    return f"{clock(seconds)}{cost} left"
