"""`memagent ask --each`: ask each of many files a question, and make a table of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from memagent.cli.flags import PATH, together
from memagent.cli.messages import EXIT_CODES, describe, say, say_json, tell, warn, with_flags
from memagent.cli.progress import counting_bars
from memagent.engines import open_engine
from memagent.errors import EngineError, SettingsError
from memagent.reading.many.forecast import Forecast, forecast_each
from memagent.reading.many.rows import FileRow
from memagent.reading.many.run import Survey, read_each
from memagent.types import ESTIMATE, Model, Spent, flatten

_MAX_TOLD = 20

each_flags = together(
    click.option("--each", is_flag=True, help="ask each file on its own, and make a table of the answers"),
    click.option("--out", type=PATH, metavar="FILE", help="the table of --each: .csv or .jsonl"),
    click.option("--verify", is_flag=True, help="with --each: compare files by content, not by size and "
                 "time"),
    click.option("--ray", metavar="ADDRESS", help="with --each: the Ray cluster to run on"),
    click.option("--max-tokens", type=int, metavar="N", help="stop before using more than N tokens, in and "
                 "out"),
    click.option("--max-cost", type=float, metavar="X", help="stop before spending more than X, at your "
                 "prices"),
)  # fmt: skip
"""Adds to `ask` the flags of --each, and those that limit the cost of a run."""


def ask_each(console: Console, quiet: bool, as_json: bool, dry_run: bool, **asked: Any) -> int:
    """Ask each file, and print a summary. `asked` holds the fields of a `Survey`."""
    survey = Survey(**asked)
    if dry_run:
        asyncio.run(_forecast(survey, as_json, console))
        return 0
    if survey.out is None:
        raise SettingsError("--each needs --out FILE, whose name ends in .csv or .jsonl")
    with counting_bars(console, quiet) as bars:
        rows = _Rows(bars, quiet)
        asyncio.run(_read(survey, rows))
    counts = {"rows": rows.done, **{name.replace(" ", "_"): rows.counts[name] for name in rows.counts}}
    if as_json:
        say_json({"table": str(survey.out), **counts, "kept": rows.kept})
    else:
        say(f"{survey.out}: {rows.summary()}")
    if rows.stopped:
        warn(console, f"{rows.stopped}; run the same command again to continue")
    unanswered = rows.counts["failed"] + rows.counts["not read"]
    return EXIT_CODES[EngineError] if unanswered else 0


async def _read(survey: Survey, rows: _Rows) -> None:
    async with aclosing(read_each(replace(survey, on_begin=rows.begin))) as found:
        async for row in found:
            rows.add(row)


class _Rows:
    """Reports on a run: a bar on a terminal, occasional lines elsewhere, and the first failures."""

    def __init__(self, bars: Progress, quiet: bool) -> None:
        self.bars, self.console, self.quiet = bars, bars.console, quiet
        self.counts: Counter[str] = Counter()
        self.total = self.done = self.kept = self._told = 0
        self.spent = Spent()
        self.stopped = ""
        self._bar: TaskID | None = None

    def begin(self, total: int) -> None:
        """Expect `total` rows."""
        self.total = total
        self._bar = self.bars.add_task("files", total=total)

    def add(self, row: FileRow) -> None:
        """Count a row, and report it."""
        before = 100 * self.done // self.total
        self.done += 1
        self.counts[row.status] += 1
        self.kept += row.kept
        if row.status == "not read":
            self.stopped = row.error or ""
        if not row.kept:
            self.spent += row.spent
        if self._bar is not None:
            self.bars.advance(self._bar)
        if row.status == "failed":
            self._failed(row)
        elif not self.console.is_terminal and not self.quiet and 100 * self.done // self.total > before:
            tell(self.console, f"{self.done:,} of {self.total:,}: {row.file}, {row.status}")

    def _failed(self, row: FileRow) -> None:
        self._told += 1
        if self._told <= _MAX_TOLD:
            error = row.error or ""
            warn(self.console, error if error.startswith(row.file) else f"{row.file} failed: {error}")
        elif self._told == _MAX_TOLD + 1:
            warn(self.console, "more files failed: the table says which, and why")

    def summary(self) -> str:
        """All rows in one line."""
        fresh = self.counts["answered"] - self.kept
        told = [f"{self.counts['answered']:,} of {self.done:,} answered, {fresh:,} of them now"]
        told += [f"{self.counts[it]:,} {it}" for it in ("no text", "left out", "failed", "not read")
                 if self.counts[it]]  # fmt: skip
        if self.spent.cost is not None:
            told.append(f"cost {self.spent.cost:.4g}")
        return ", ".join(told)


async def _forecast(survey: Survey, as_json: bool, console: Console) -> None:
    async with open_engine(survey.settings.engine) as engine:
        found = await forecast_each(survey, engine)
        found = replace(found, exceeded=with_flags(found.exceeded))
        model = engine.model
    if as_json:
        estimated = model.tokenizer == ESTIMATE
        say_json({**flatten(found), "model": model.name, "estimated": estimated})
    else:
        say("\n".join(_lines(found, model)))
    for error in found.unreadable[:_MAX_TOLD]:
        warn(console, error)


def _lines(found: Forecast, model: Model) -> list[str]:
    others = {"kept from an earlier run": found.kept, "without text": found.no_text,
              "left out": found.left_out, "that cannot be read": len(found.unreadable)}  # fmt: skip
    told = "".join(f", {count:,} {name}" for name, count in others.items() if count)
    lines = [
        f"{found.files:,} files: {found.to_read:,} answers to find{told}",
        f"model: {model.name}",
        f"to read: {found.document_tokens:,} tokens of text; at most {found.spent.calls:,} calls, "
        + describe(found.spent),
    ]
    if model.tokenizer == ESTIMATE:
        lines.append("token counts are estimates: --tokenizer names the model's own")
    if found.exceeded:
        lines.append(f"{found.exceeded} may stop it")
    return lines
