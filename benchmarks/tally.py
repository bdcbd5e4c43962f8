"""Questions that count, over texts whose records are known: `tally` beside other ways to read.

Each row of --out is one question; run the same command again and it continues. With --simulate the model is a
perfect one, so that what is measured is everything but the model. Replies are kept beside --out, by prompt,
and none is paid for twice: with `tally_plan`, whose fields a person has given, all questions share one pass.
With `tally, rows given` it is only the plan that the model makes.

OOLONG's data (MIT, `abertsch72/oolong`, `validated_data/*.jsonl`) is not ours to ship: --oolong names a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import real_models
from measure import append_row, load_rows, table
from real_models import Peers
from tally_corpora import (
    CORPORA,
    Corpus,
    PerfectReplies,
    Question,
    Record,
    Rows,
    labelled,
    make,
    make_paragraphs,
    make_record,
    plan_of,
    questions,
)

from memagent.documents.opening import text_document
from memagent.engines import ScriptedEngine, open_engine
from memagent.engines.wrappers import Wrapper
from memagent.errors import MemAgentError
from memagent.evaluation.statistics import confidence_interval, group_by
from memagent.reading.journal import prompt_digest
from memagent.reading.read import Read
from memagent.reading.sources import Source
from memagent.reading.tally.answers import Coverage
from memagent.reading.tally.answers import answer as count_answer
from memagent.reading.tally.plan import Plan
from memagent.reading.tally.rows import Row
from memagent.reading.tally.values import NOTHING, fold
from memagent.settings import ReadSettings
from memagent.types import Completion, Engine, Message, Model, Sampling, Usage

ONE_LOOK = "tally_plan, one look"
PLANS_ALONE = "tally, rows given"
CONTESTANTS = (
    "tally",
    PLANS_ALONE,
    "tally_plan",
    ONE_LOOK,
    "full",
    "rag",
    "notes",
    "map_reduce",
    "langextract",
)
KEY = ("corpus", "tokens", "seed", "near_misses", "contestant", "model", "question")
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


class Recorded(Wrapper):
    """Writes replies to a file, by prompt; none is asked for twice. Rows call the model `name`."""

    def __init__(self, engine: Engine, file: Path, name: str = "") -> None:
        super().__init__(engine)
        replies = load_rows(file, missing_ok=True)
        self._file, self._replies = file, {reply["prompt"]: reply for reply in replies}
        self._name = name or engine.model.name

    @property
    def model(self) -> Model:
        """The engine's model."""
        return replace(self.engine.model, name=self._name)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        digest = f"{self._name} {prompt_digest(messages, sampling)}"
        if digest not in self._replies:
            begun = time.perf_counter()
            completion = await super().complete(messages, sampling)
            usage = completion.usage
            reply: dict[str, Any] = {
                "prompt": digest, "text": completion.text, "finish": completion.finish_reason,
                "usage": [usage.prompt_tokens, usage.completion_tokens],
                "alternatives": dict(completion.alternatives),
                "seconds": round(time.perf_counter() - begun, 2),
            }  # fmt: skip
            self._replies[digest] = reply
            append_row(self._file, reply)
        reply = self._replies[digest]
        return Completion(
            reply["text"],
            reply["finish"],
            usage=Usage(*reply["usage"]),
            alternatives=reply["alternatives"],
        )


class PlansAlone(Wrapper):
    """Has a model make the plan; `others` replies to the prompts for rows."""

    def __init__(self, engine: Engine, others: PerfectReplies) -> None:
        super().__init__(engine)
        self._others = others

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        if "SQL" in messages[-1].content:
            return await super().complete(messages, sampling)
        return Completion(self._others(messages))


@dataclass(frozen=True)
class Asked:
    """A question about a text, and the records that the text states."""

    corpus: Corpus
    tokens: int
    text: str
    records: Sequence[Record]
    question: Question
    seed: int = 0
    near_misses: int = 0

    def key(self, contestant: str, model: str) -> dict[str, Any]:
        """What tells the row of a contestant from all others."""
        own = self.corpus.key, self.tokens, self.seed, self.near_misses
        return dict(zip(KEY, (*own, contestant, model, self.question.text), strict=True))


async def answer(asked: Asked, contestant: str, engine: Engine, values: dict[str, Any]) -> dict[str, Any]:
    """A row: what a contestant answers, whether that is right, and what it took."""
    plan = Plan(**{**plan_of(asked.corpus, asked.question), "fields": asked.corpus.fields}).to_toml()
    own: dict[str, Any] = {"plan": plan} if contestant in ("tally_plan", ONE_LOOK) else {}
    own |= {"second_look": False} if contestant == ONE_LOOK else {}
    workflow = "tally" if contestant.startswith("tally") else contestant
    if contestant == PLANS_ALONE:
        engine = PlansAlone(engine, PerfectReplies(asked.corpus, asked.records, [asked.question]))
    settings = ReadSettings(workflow=workflow, **own, **values)
    document = text_document(asked.text, is_example=True)
    read, begun, error = Read(asked.question.text, document, engine, settings), time.perf_counter(), ""
    try:
        async for _ in read:
            pass
    except MemAgentError as failure:
        error = str(failure)
    result = read.result
    row = judge(asked, contestant, engine.model.name, result.answer, error, result.table)
    row |= {
        "calls": result.spent.calls, "prompt_tokens": result.spent.prompt_tokens,
        "completion_tokens": result.spent.completion_tokens,
        "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip
    return row


def judge(
    asked: Asked, contestant: str, model: str, answer: str, error: str, table: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a row says of an answer: whether it is right, and how many cells of its table are."""
    expected = asked.question.expected
    exact = not error and is_exact(answer, expected)
    row = asked.key(contestant, model)
    row |= {"answer": answer, "error": error, "expected": expected, "exact": exact}
    if table:
        row |= {"sql": table["plan"]["sql"], "coverage": table["coverage"]}
        row |= {"cells": cells(table, asked.records)}
    return row


def answer_by_langextract(asked: Sequence[Asked], model: str, others: Peers) -> list[dict[str, Any]]:
    """A row for each question: langextract reads the text once, and the SQL of each counts what it has found.

    It is told what the fields mean. One of its examples has records in the same wordings, beside a paragraph
    that has none; the other has paragraphs alone. What it cannot place in the text is left out, and so are
    what `tally` leaves out: a value that says "none", and a record of half the fields or fewer.
    """
    first, chance = asked[0], random.Random("example")
    corpus = first.corpus
    records = [make_record(corpus, chance, wording) for wording in corpus.wordings]
    story = make_paragraphs(chance, 1000)
    meanings = "; ".join(f"{field['name']}: {field['meaning']}" for field in corpus.fields)
    settings = {
        "prompt": f"Extract every {corpus.row.removeprefix('one ')}, with its values exactly as written, and "
        f"nothing else. {meanings}. Leave out a value that the text does not state.",
        "row": corpus.records,
        "text": "\n\n".join([records[0].text, story[0], *(record.text for record in records[1:])]),
        "records": [[record.stated[corpus.name], record.stated] for record in records],
        "without": "\n\n".join(story[1:]),
    }
    process = others.process(("langextract", json.dumps(settings), "langextract"))
    with tempfile.TemporaryDirectory() as folder:
        document, chunks = Path(folder, "text.txt"), Path(folder, "chunks.json")
        document.write_text(first.text, "utf-8")
        chunks.write_text("[]", "utf-8")
        task = {"document": str(document), "chunks": str(chunks), "problem": "", "trace": ""}
        reply = process.ask({"tasks": [task]})
    if reply["errors"][0]:
        sys.exit(reply["errors"][0])
    extracted = list(_extracted(first, json.loads(reply["answers"][0])))
    rows = []
    for one in asked:
        plan = Plan(**{**plan_of(corpus, one.question), "fields": corpus.fields})
        text, table = count_answer(plan, extracted, Coverage(rows=len(extracted)), exact_names=False)
        spent = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}  # not told
        seconds = {"seconds": round(reply["seconds"] / len(asked), 1)}
        rows.append(judge(one, "langextract", model, text, "", table) | spent | seconds)
    return rows


def _extracted(asked: Asked, extractions: Sequence[tuple[int, int, Mapping[str, Any]]]) -> Iterator[Row]:
    names = {field["name"] for field in asked.corpus.fields}
    for start, end, attributes in extractions:
        values = {
            name: str(value)
            for name, value in attributes.items()
            if name in names and value and fold(str(value)) not in NOTHING
        }
        if len(values) * 2 > len(names):
            yield Row(values, Source("", None, start, end, asked.text[start:end]), (start, end))


def is_exact(answer: str, expected: Rows) -> bool:
    """Whether an answer says all that is expected, each row in a line of its own, and has no other rows."""
    body = answer.partition("\n\nCounted from")[0].casefold()
    if expected in ([(None,)], []):
        return bool(re.search(r"\b(?:unknown|none|no|0|nothing)\b", body))
    lines = (
        [part for part in re.split(r"\n|;|, (?=\D)", body) if part.strip()] if len(expected) > 1 else [body]
    )
    if len(expected) > 1 and lines and lines[0].rstrip().endswith(":"):  # it announces the others
        del lines[0]
    if len(lines) > len(expected):
        return False
    return all(any(_says(line, row) for line in lines) for row in expected)


def _says(line: str, row: Sequence[Any]) -> bool:
    numbers = [float(text.replace(",", "")) for text in _NUMBER.findall(line)]
    return all(
        value.casefold() in line
        if isinstance(value, str)
        else any(abs(number - value) <= 0.006 + 1e-9 * abs(value) for number in numbers)
        for value in row
    )


def cells(table: Mapping[str, Any], records: Sequence[Record]) -> list[int]:
    """How many cells of a table are right, how many it has, and how many it should have.

    A field of the table is compared with the field of the records that it agrees with most.
    """
    columns = [field["name"] for field in table["plan"]["fields"]]
    right = 0
    for name in columns:
        own = Counter(_plain(row["values"].get(name)) for row in table["rows"])
        gold = (
            Counter(_plain(getattr(record, key)) for record in records)
            for key in ("name", "value", "day", "kind")
        )
        right += max((own & item).total() for item in gold)
    filled = sum(row["values"].get(name) is not None for row in table["rows"] for name in columns)
    return [right, filled, len(columns) * len(records)]


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value).casefold()


@asynccontextmanager
async def _open(
    options: argparse.Namespace, asked: Sequence[Asked]
) -> AsyncIterator[tuple[Engine, Peers | None]]:
    """The engine, and for a file other people's readers."""
    replies = options.out.with_suffix(".replies.jsonl")
    if options.simulate:
        every = [one.question for one in asked]
        yield ScriptedEngine(PerfectReplies(asked[0].corpus, asked[0].records, every), calls=16), None
    elif options.dtype:
        settings = real_models.settings_of(Path(options.model), options.dtype, options.window_tokens)
        async with open_engine(settings) as engine:
            yield Recorded(engine, replies, real_models.name_of(options.model, options.dtype)), None
    elif options.model.endswith(".gguf"):
        async with real_models.opened(Path(options.model), None, options.window_tokens) as (engine, others):
            yield Recorded(engine, replies), others
    else:
        settings = real_models.settings_of_endpoint(options.model, options.base_url)
        async with open_engine(settings.replace(discover=False)) as engine:
            yield Recorded(engine, replies), None


def texts(options: argparse.Namespace) -> Iterator[list[Asked]]:
    """The questions, for each text."""
    for file in options.oolong or ():
        for tokens in options.tokens:
            corpus, text, asked = labelled(file, tokens)
            yield [Asked(corpus, tokens, text, (), question) for question in asked]
    for key in options.corpus or ([] if options.oolong else CORPORA):
        corpus = CORPORA[key]
        for tokens in options.tokens:
            number = options.records or max(10, min(1000, tokens // 200))
            text, records = make(corpus, tokens, number, options.seed, options.near_misses)
            asked = questions(corpus, records)[:: 25 // options.questions][: options.questions]
            yield [
                Asked(corpus, tokens, text, records, question, options.seed, options.near_misses)
                for question in asked
            ]


async def run(options: argparse.Namespace) -> None:
    """Ask what has not been asked, and write each row as it comes."""
    done = {tuple(row[part] for part in KEY) for row in load_rows(options.out, missing_ok=True)}
    values = {name: value for name in ("chunk_tokens", "max_calls") if (value := getattr(options, name))}
    for asked in texts(options):
        async with _open(options, asked) as (engine, others):
            for contestant in options.contestant or CONTESTANTS:
                model = engine.model.name
                missing = [one for one in asked if (*one.key(contestant, model).values(),) not in done]
                if contestant == "langextract":
                    if missing and others and asked[0].records:
                        _write(options.out, answer_by_langextract(missing, model, others))
                    continue
                for one in missing:
                    _write(options.out, [await answer(one, contestant, engine, values)])


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        append_row(out, row)
        verdict = "right" if row["exact"] else "wrong"
        print(f"{verdict}  {row['contestant']}  {row['question']}", file=sys.stderr)


def report(file: Path) -> None:
    """Print a table of what the rows come to."""
    groups = group_by(load_rows(file), lambda row: tuple(row[part] for part in KEY[:-1]))
    told = "exact", "95%", "precision", "recall", "calls", "tokens in", "tokens out", "seconds"
    lines = []
    for key, rows in sorted(groups.items()):
        exact, count = sum(item["exact"] for item in rows), len(rows)
        low, high = confidence_interval([item["exact"] for item in rows])
        counted = [row["cells"] for row in rows if "cells" in row] or [[0, 0, 0]]
        sums = [sum(item) for item in zip(*counted, strict=True)]
        shares = [f"{sums[0] / item:.1%}" if item else "" for item in sums[1:]]
        means = [round(sum(item[name] for item in rows) / count) for name in
                 ("calls", "prompt_tokens", "completion_tokens", "seconds")]  # fmt: skip
        score = f"{exact}/{count}", f"{low:.0%} to {high:.0%}"
        lines.append([*key, *score, *shares, *(f"{mean:,}" for mean in means)])
    print(table([*KEY[:-1], *told], lines))


def main() -> None:
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--base-url")
    real_models.add_dtype(parser)
    parser.add_argument("--simulate", action="store_true", help="a perfect model, in place of a real one")
    parser.add_argument("--corpus", action="append", choices=list(CORPORA))
    parser.add_argument("--oolong", type=Path, action="append", help="a file of OOLONG's validated_data")
    parser.add_argument("--contestant", action="append", choices=CONTESTANTS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8000])
    parser.add_argument("--records", type=int, help="how many records a text has (a 200th of its tokens)")
    parser.add_argument("--near-misses", type=int, default=0, help="so many passages that look like records")
    parser.add_argument("--seed", type=int, default=0, help="of the text (0)")
    parser.add_argument("--questions", type=int, default=25, help="so many of the 25 questions")
    parser.add_argument("--chunk-tokens", type=int)
    parser.add_argument("--max-calls", type=int)
    parser.add_argument(
        "--window-tokens", type=int, default=real_models.WINDOW_TOKENS, help="`full` may need more, of a file"
    )
    options = parser.parse_args()
    asyncio.run(run(options))
    report(options.out)


if __name__ == "__main__":
    main()
