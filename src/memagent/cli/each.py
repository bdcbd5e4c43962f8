"""`memagent ask --each`: ask each of many files a question, and make a table of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import asdict, replace

import click

from memagent.cli.flags import PATH, together
from memagent.cli.messages import EXIT_CODES, say, say_json, warn, with_flags
from memagent.cli.models import open_to_count, with_found_model
from memagent.cli.previews import describe_bound
from memagent.cli.progress import RunDisplay
from memagent.errors import EngineError, SettingsError
from memagent.runs.each import Survey, read_each
from memagent.runs.files import FileRow
from memagent.types import ESTIMATE, Engine, Model

_MAX_REPORTED = 20

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


def ask_each(survey: Survey, quiet: bool, as_json: bool) -> int:
    """Ask each file, and print a summary; in a dry run, what that would cost at most."""
    if not survey.ray:  # the machines of a cluster have their own servers and caches
        survey = replace(survey, settings=with_found_model(survey.settings, quiet, survey.dry_run))
    if not (survey.dry_run or survey.out):
        raise SettingsError("--each needs --out FILE, whose name ends in .csv or .jsonl")
    with RunDisplay(quiet or survey.dry_run, "files") as display:
        rows = _Rows(display)
        if survey.dry_run:
            _say_forecast(survey, rows, asyncio.run(_forecast(survey, rows)), as_json)
            return 0
        asyncio.run(_read(survey, rows))
    counts, earlier, done = rows.counts, display.all.kept, display.all.done
    if as_json:
        by_status = {status.replace(" ", "_"): count for status, count in counts.items()}
        say_json({"table": survey.out, "rows": done, **by_status, "kept": earlier})
    else:
        parts = [f"{counts['answered']:,} of {done:,} answered, {counts['answered'] - earlier:,} of them now"]
        parts += [
            f"{counts[status]:,} {status}"
            for status in ("no text", "left out", "failed", "not read")
            if counts[status]
        ]
        if (cost := display.all.spent.cost) is not None:
            parts.append(f"cost {cost:.4g}")
        say(f"{survey.out}: {', '.join(parts)}")
    if rows.stopped:
        warn(f"{rows.stopped}; run the same command again to continue")
    return EXIT_CODES[EngineError] if counts["failed"] + counts["not read"] else 0


async def _read(survey: Survey, rows: _Rows, engine: Engine | None = None) -> None:
    survey = replace(survey, on_begin=lambda total: rows.display.begin({"": total}, {}))
    async with aclosing(read_each(survey, engine)) as file_rows:
        async for row in file_rows:
            rows.add(row)


async def _forecast(survey: Survey, rows: _Rows) -> Model:
    async with open_to_count(survey.settings.engine) as engine:
        await _read(survey, rows, engine)
        return engine.model


class _Rows:
    """The totals of a run's rows; the first failures are reported as they come."""

    def __init__(self, display: RunDisplay) -> None:
        self.display = display
        self.counts: Counter[str] = Counter()
        self.unreadable: list[str] = []
        self.document_tokens = 0
        self.stopped = ""

    def add(self, row: FileRow) -> None:
        """Count a row, and report it."""
        failed = row.status == "failed"
        self.counts[row.status] += 1
        if row.status == "not read":
            self.stopped = row.error or ""
        if not row.kept:
            self.document_tokens += row.document_tokens
        if failed:
            error = row.error or ""
            self.unreadable.append(error)
            if self.counts["failed"] <= _MAX_REPORTED:
                warn(error if error.startswith(row.file) else f"{row.file} failed: {error}")
            elif self.counts["failed"] == _MAX_REPORTED + 1:
                warn("more files failed: the table, or --json in a dry run, names them all")
        self.display.add(
            "", "" if failed else f"{row.file}, {row.status}", row.spent, kept=row.kept, failed=failed
        )


def _say_forecast(survey: Survey, rows: _Rows, model: Model, as_json: bool) -> None:
    """Print what a run would read, and what that would cost at most."""
    now, max_calls = rows.display.all, survey.settings.read.max_calls
    stops_a_read = f"`max_calls` {max_calls}" if max_calls and now.max_calls > max_calls else ""
    forecast = {
        "files": now.total // len(survey.problems),
        "to_read": rows.counts["to read"],
        "kept": now.kept,
        "no_text": rows.counts["no text"],
        "left_out": rows.counts["left out"],
        "unreadable": rows.unreadable,
        "document_tokens": rows.document_tokens,
        **asdict(now.spent),
        "exceeded": with_flags(survey.spending.find_limit(now.spent) or stops_a_read),
        "model": model.name,
        "estimated": model.tokenizer == ESTIMATE,
    }
    if as_json:
        say_json(forecast)
        return
    others = {"kept from an earlier run": "kept", "without text": "no_text", "left out": "left_out"}
    parts = [f"{forecast[name]:,} {what}" for what, name in others.items() if forecast[name]]
    parts += [f"{len(rows.unreadable):,} that cannot be read"] if rows.unreadable else []
    lines = [
        ", ".join([f"{forecast['files']:,} files: {forecast['to_read']:,} answers to find", *parts]),
        f"model: {model.name}",
        f"to read: {rows.document_tokens:,} tokens of text",
        *describe_bound(now.spent, "", model.tokenizer == ESTIMATE),
    ]
    if forecast["exceeded"]:
        lines.append(f"{forecast['exceeded']} may stop it")
    say("\n".join(lines))
