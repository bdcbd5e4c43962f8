"""Answer Loong's questions (arXiv 2406.17419) in any way of reading, for its makers' own scorer.

    git clone https://github.com/MozerWang/Loong && git -C Loong archive 494f5fb data/doc | tar -x -C Loong
    python benchmarks/loong.py Loong --model NAME --base-url URL --out answers.jsonl

Each row of --out is a row of `data/loong.jsonl` with its `generate_response`, which is what Loong's
`step3_model_evaluate.py` (whose judge is a model) and `step4_cal_metric.py` read. Run it again to continue:
each read keeps a journal in the folder --out with the ending .reads. Another model takes another --out.

Documents are put together as Loong does, each under its title, in an order that follows from the id; none
is left out for its length. Legal cases, which are in Chinese, are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from measure import append_row, load_rows

from memagent import aread, load_settings, open_engine, text_document
from memagent.concurrency import map_concurrent
from memagent.errors import MemAgentError
from memagent.settings import Settings
from memagent.types import Engine

Row = dict[str, Any]


def problem_of(row: Row) -> str:
    """What the row asks, by its own template, without the documents."""
    template = re.sub(r"(#.*\n)?\{docs\}", "", row["prompt_template"]).strip()
    return template.replace("{instruction}", row["instruction"]).replace("{question}", row["question"])


def document_of(row: Row, folder: Path) -> str:
    """The row's documents, each under its title. Exits if one is missing."""
    texts = [_text(row, name, folder / row["type"]) for name in row["doc"]]
    if row.get("shuffle_doc", True):
        random.Random(row["id"]).shuffle(texts)
    return "".join(texts)


def _text(row: Row, name: str, folder: Path) -> str:
    """A document under its title: a paper's is its first line, a report's the end of its file's name."""
    part = name if row["type"] == "paper" or row["level"] == 4 else f"2024-{name}"  # level 4: several years
    path = next((path for path in sorted(folder.glob("*")) if part in path.name), None)
    if path is None:
        sys.exit(f"{folder} has no document {name!r}: take data/doc from Loong's commit 494f5fb")
    text = path.read_text("utf-8")
    if row["type"] == "paper":
        title = text.partition("\n")[0].strip("# ")
    else:
        title = f"《{path.stem.rpartition('-')[2]}》"
    return f"{title}\n{text}\n\n"


async def answer(row: Row, engine: Engine, settings: Settings, folder: Path, traces: Path) -> Row:
    """The row with the answer; a read that fails has an empty one, and is asked again the next time."""
    document = text_document(await asyncio.to_thread(document_of, row, folder), is_example=True)
    journal = traces / f"{row['id']}.jsonl"
    try:
        read = await aread(
            problem_of(row), document, engine=engine, settings=settings, trace=journal, resume=True
        )
    except MemAgentError as error:
        print(f"{row['id']}: {error}", file=sys.stderr)
        return row | {"generate_response": ""}
    return row | {"generate_response": read.answer}


async def run(options: argparse.Namespace) -> None:
    """Answer what has no answer yet, and write each row as it comes."""
    done = {row["id"] for row in load_rows(options.out, missing_ok=True)}
    rows = [
        row
        for row in load_rows(options.loong / "data/loong.jsonl")
        if row["language"] == options.language and row["type"] in options.types
        and row["level"] in options.levels and row["set"] in options.sets and row["id"] not in done
    ]  # fmt: skip
    traces = options.out.with_suffix(".reads")
    traces.mkdir(parents=True, exist_ok=True)
    settings = load_settings({name: getattr(options, name) for name in ("model", "base_url", "workflow")})
    failed = 0
    async with open_engine(settings.engine) as engine:
        work = partial(
            answer, engine=engine, settings=settings, folder=options.loong / "data/doc", traces=traces
        )
        some = rows[: options.limit]
        async with aclosing(map_concurrent(work, some, engine.model.calls, ordered=False)) as answered:
            async for row in answered:
                if not row["generate_response"]:
                    failed += 1
                    continue
                append_row(options.out, row)
    if failed:
        sys.exit(f"{failed} of {len(some)} reads failed: the same command tries them again")


def main() -> None:
    """Read what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("loong", type=Path, help="a checkout of Loong, with its data/doc")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--base-url")
    parser.add_argument("--workflow")
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--types", nargs="+", choices=("financial", "paper"), default=["financial", "paper"])
    four: dict[str, Any] = {"nargs": "+", "type": int, "choices": (1, 2, 3, 4), "default": (1, 2, 3, 4)}
    parser.add_argument("--levels", **four, help="1 is to locate, 4 to reason")
    parser.add_argument("--sets", **four, help="1 is up to 50K tokens")
    parser.add_argument("--limit", type=int, help="so many rows")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
