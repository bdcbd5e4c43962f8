"""`memagent tally`: count, add up and list over documents; a model finds rows, code counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from memagent.cli.ask import AskRequest, answer
from memagent.cli.flags import PATH, Command, complete_files, quiet_and_verbose, with_settings
from memagent.cli.messages import EXIT_CODES, say, tell, warn_left_out
from memagent.cli.models import with_found_model
from memagent.cli.previews import describe_bound
from memagent.cli.progress import ReadDisplay
from memagent.documents.opening import Document, open_document
from memagent.engines import open_engine
from memagent.engines.wrappers import Spending
from memagent.errors import EngineError
from memagent.reading.api import forecast
from memagent.reading.progress import Result
from memagent.reading.read import Read
from memagent.runs.files import table_kind, write_records
from memagent.settings import Settings
from memagent.storage import read_utf8
from memagent.types import ESTIMATE


@click.command(cls=Command, options_metavar="[OPTIONS]", short_help="Count and add up over documents.")
@click.argument("question")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_files)
@click.option(
    "--schema", type=PATH, metavar="FILE", help="the plan to read by, as --dry-run shows one (TOML)"
)
@click.option("--out", type=PATH, metavar="FILE", help="the table of all rows: .csv or .jsonl")
@click.option("--json", "as_json", is_flag=True, help="print the answer with its table as a JSON object")
@click.option("--trace", type=PATH, metavar="FILE", help="where to keep the journal (in the cache)")
@click.option("--resume", is_flag=True, help="continue an interrupted read")
@click.option(
    "--dry-run", is_flag=True, help="print the plan, which the model is asked for, and the maximum cost"
)
@click.option("--max-tokens", type=int, metavar="N", help="stop before using more than N tokens, in and out")
@click.option("--max-cost", type=float, metavar="X", help="stop before spending more than X, at your prices")
@quiet_and_verbose
@with_settings(leave_out=("workflow", "plan"))
def command(
    question: str,
    paths: tuple[str, ...],
    schema: Path | None,
    out: Path | None,
    as_json: bool,
    trace: Path | None,
    resume: bool,
    dry_run: bool,
    max_tokens: int | None,
    max_cost: float | None,
    quiet: bool,
    settings: Settings,
) -> int:
    """Answer a question that counts, adds up, ranks or lists all, over documents of any length.

    A model plans a table and looks for its rows, chunk by chunk; code checks each row against the text, and
    counts with SQL. The exit code is 3 if no row was found.
    """
    if out:
        table_kind(out)
    plan = {"plan": read_utf8(schema, "--schema")} if schema else {}
    settings = Settings(settings.engine, settings.read.replace(workflow="tally", **plan))
    document = open_document(*paths)
    warn_left_out(document.skipped)
    settings = with_found_model(settings, quiet, dry_run and bool(schema))
    if dry_run:
        asyncio.run(_preview(question, document, settings))
        return 0
    results = list[Result]()
    spending = Spending(settings.read, max_tokens, max_cost)
    with ReadDisplay(quiet, [question]) as display:
        request = AskRequest(
            [question], document, settings, trace, resume, spending, display, on_result=results.append
        )
        code = answer(request, as_json)
    for result in results:
        if out and result.table:
            _write(out, result.table)
            tell(f"{out}: {len(result.table['rows']):,} rows", quiet=quiet)
    return code or (0 if all(result.found for result in results) else EXIT_CODES[EngineError])


async def _preview(question: str, document: Document, settings: Settings) -> None:
    """Print the plan, as --schema takes it; on stderr, what the read would cost at most."""
    async with open_engine(settings.engine) as engine:
        plan = settings.read.options.get("plan")
        if not plan:
            async with aclosing(aiter(Read(question, document, engine, settings.read))) as conversations:
                async for conversation in conversations:
                    if plan := conversation.memory:
                        break
        most = (await forecast(question, document, engine.model, settings.read)).spent
        say(str(plan).rstrip())
        for line in describe_bound(most, "", engine.model.tokenizer == ESTIMATE):
            tell(line)


def _write(out: Path, table: Mapping[str, Any]) -> None:
    columns = [*(table["rows"][0]["values"] if table["rows"] else ()), "unparsed", "file", "page", "quote"]
    write_records(out, columns, _cells(table, "; ".join), _cells(table, list))


def _cells(table: Mapping[str, Any], join: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table, each with its source; fields of the same names come first."""
    for row in table["rows"]:
        source = row["source"]
        quoted = {"file": source["file"], "page": source["page"], "quote": source["excerpt"]}
        yield {"unparsed": join(row["unparsed"]), **quoted, **row["values"]}
