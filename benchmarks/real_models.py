"""Real, untrained instruct models as readers: every workflow of ours beside what people use instead.

It reads 20 questions on the story in examples/, HotpotQA questions over their ten paragraphs, SQuADShifts
questions over seven paragraphs, RULER's needles at 8K tokens, and the first two kinds again within 32K tokens
of other paragraphs. A fifth of the questions of HotpotQA and SQuADShifts is asked of documents without the
answer. Each row goes to the file of `--out` as it comes; the same command goes on with what is missing.
`real_models_report.py` makes tables and the plot of such files.

All readers have the same model, greedy, in this process or behind llama.cpp's own server. Answers may have 64
tokens. An answer is right if it has a gold answer as whole words (needles: the share of the values); where
the document lacks it, if it says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import peers
import story
from contestants import Endpoint
from environments import Process, environment
from measure import append_row, load_rows, make_parser, name_model

from memagent import Read
from memagent.concurrency import drain
from memagent.documents.chunking import split
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.llamacpp.engine import ServerStart, import_xllamacpp, open_llamacpp, parameters
from memagent.engines.llamacpp.machine import available_cores
from memagent.errors import MemAgentError
from memagent.reading.lockstep import Seat, Together
from memagent.reading.workflows import workflows
from memagent.settings import EngineSettings, ReadSettings
from memagent.tasks import TASKS
from memagent.tasks.corpora import Corpora
from memagent.tasks.needle import VARIANTS
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.tasks.scoring import declines, string_match_all, substring_match
from memagent.types import Engine, Example

ANSWER_TOKENS = 64
WINDOW_TOKENS = 8192  # what `ask` gives a local model if nothing is set
LONG_TOKENS = 32_768
SEED = 39

_QUESTIONS = 48
_ABSENT = 0.2
_FIRST_ROWS = 700  # of HotpotQA, on which nothing was tuned: prompts were tried on later ones
_BATCH = 12  # questions that all readers read before the next ones, so that a stopped run compares them


@dataclass(frozen=True)
class Reader:
    """A way to read: `settings` of ours, or the name of one in `peers.py` with its environment."""

    name: str
    settings: dict[str, Any] | None = None
    peer: tuple[str, str, str] = ("", "", "")
    chunk_tokens: int = 5000
    """What peers, which split nothing themselves, are given."""

    def can_read(self, example: Example) -> bool:
        """Whether the document fits, for readers that want it whole."""
        return self.name != "full" or example.length_tokens + 512 < WINDOW_TOKENS


LANGCHAIN = [
    Reader("LangChain refine", peer=("langchain", "refine", "langchain"), chunk_tokens=1000),
    Reader("LangChain map-reduce", peer=("langchain", "map_reduce", "langchain"), chunk_tokens=1000),
]
READERS = [
    *(Reader(name, {"workflow": name}) for name in workflows() if name not in ("rag", "truncate")),
    Reader("auto, screened", {"workflow": "auto", "screen": True}),
    Reader("rag, 1 sentence", {"workflow": "rag", "passages": 1, "passage_tokens": 40}),
    Reader("rag, 4 passages", {"workflow": "rag", "passages": 4}),
    Reader("rag, 8 passages", {"workflow": "rag", "passages": 8}),
    Reader("rag, 16 passages", {"workflow": "rag", "passages": 16}),
    *LANGCHAIN,
    Reader("MemAgent's loop", peer=("published", "", "openai")),
]


def hotpot(corpus: Path, tokens: int | None, count: int = _QUESTIONS) -> list[Example]:
    """HotpotQA questions over their ten paragraphs; of some, the paragraphs that are needed are missing."""
    rows, source = load_hotpot(corpus), random.Random(SEED)
    pool = [join_paragraph(*paragraph) for row in rows for paragraph in row["context"]]
    examples = []
    for number, row in enumerate(_sample(rows, count, source)):
        needed = {fact[0] for fact in row["supporting_facts"]}
        absent = number % round(1 / _ABSENT) == 0
        own = [
            join_paragraph(*paragraph)
            for paragraph in row["context"]
            if not (absent and paragraph[0] in needed)
        ]
        answers = ABSENT_ANSWERS if absent else (row["answer"],)
        examples.append(_example("hotpot", number, row["question"], own, answers, pool, source, tokens))
    return examples


def shifts(corpus: Path, tokens: int | None, count: int = _QUESTIONS) -> list[Example]:
    """SQuADShifts questions over their paragraph among six others; of some, that paragraph is missing."""
    rows, source = choose_untried(load_rows(corpus)), random.Random(SEED)
    pool = [row["context"].strip() for row in rows]
    examples = []
    for number, row in enumerate(_sample(rows, count, source)):
        asked = source.choice(row["qas"])
        absent = number % round(1 / _ABSENT) == 0
        others = source.sample([text for text in pool if text != row["context"].strip()], 6 + absent)
        own = [*others, *([] if absent else [row["context"].strip()])]
        source.shuffle(own)
        answers = ABSENT_ANSWERS if absent else answers_of(asked)
        examples.append(_example("shifts", number, asked["question"], own, answers, pool, source, tokens))
    return examples


def needles(essays: Path | None = None, count: int = 2) -> list[Example]:
    """So many of each of RULER's eight kinds, at 8K tokens."""
    corpora = Corpora((("essays", essays),)) if essays else Corpora()
    recipe = Recipe(length_tokens=8192, seed=SEED, corpora=corpora)
    return [TASKS[kind].make(recipe, number) for number in range(count) for kind in VARIANTS]


def _sample(rows: Sequence[Any], count: int, source: random.Random) -> list[Any]:
    """So many rows; the first are the same, however many there are."""
    chosen = source.sample(rows, _QUESTIONS)
    rest = [row for row in rows if row not in chosen]
    return [*chosen, *random.Random(SEED).sample(rest, max(0, count - _QUESTIONS))][:count]


def _example(
    task: str,
    number: int,
    problem: str,
    own: list[str],
    answers: tuple[str, ...],
    pool: Sequence[str],
    source: random.Random,
    tokens: int | None,
) -> Example:
    """An example of these paragraphs; with `tokens`, among others up to that length."""
    texts, length = list(own), estimate_tokens("\n\n".join(own))
    while tokens and length < tokens:
        texts.append(source.choice(pool))
        length += estimate_tokens(texts[-1]) + 1
    if tokens:
        source.shuffle(texts)
    name = f"{task}-{tokens // 1024}K" if tokens else task
    absent = "-absent" * (answers == ABSENT_ANSWERS)
    return Example(f"{name}-{number}{absent}", name, problem, "\n\n".join(texts), answers, length)


def load_hotpot(path: Path) -> list[dict[str, Any]]:
    """The rows of HotpotQA on which nothing was tuned."""
    return load_rows(path)[:_FIRST_ROWS]


def choose_untried(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of every other article of SQuADShifts: prompts were tried on the others."""
    articles = set(sorted({row["title"] for row in rows})[1::2])
    return [row for row in rows if row["title"] in articles]


def answers_of(question: dict[str, Any]) -> tuple[str, ...]:
    """The answers to a question of SQuADShifts, each once."""
    texts = (answer if isinstance(answer, str) else answer["text"] for answer in question["answers"])
    return tuple(dict.fromkeys(texts))


def join_paragraph(title: str, sentences: Sequence[str]) -> str:
    """A paragraph of HotpotQA under its title."""
    return f"{title}\n{''.join(sentences).strip()}"


@dataclass
class Row:
    """One question, read once."""

    model: str
    reader: str
    task: str
    id: str
    problem: str
    answers: tuple[str, ...]
    absent: bool
    prediction: str = ""
    score: float = 0.0
    declined: bool = False
    held: bool | None = None
    empty: bool | None = None
    calls: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    error: str = ""

    @classmethod
    def of(cls, model: str, reader: Reader, example: Example, **values: Any) -> Row:
        """The row of an example, scored."""
        absent = example.answers == ABSENT_ANSWERS
        answers = () if absent else example.answers
        row = cls(model, reader.name, example.task, example.id, example.problem, answers, absent, **values)
        row.declined = not row.prediction.strip() or declines(row.prediction)
        row.score = float(row.declined) if absent else score_answer(example.task, row.prediction, answers)
        return row


def score_answer(task: str, text: str, answers: tuple[str, ...]) -> float:
    """How right an answer is, 0 to 1; needles have several values."""
    return (string_match_all if task.startswith("niah") else substring_match)(text, answers)


async def read_ours(engine: Engine, model: str, reader: Reader, examples: Sequence[Example]) -> list[Row]:
    """Read with one of our workflows: the questions on one document together, as `memagent ask` does."""
    settings = ReadSettings(answer_tokens=ANSWER_TOKENS, **(reader.settings or {}))
    rows: list[Row] = []
    for text, group in groupby(examples, key=lambda item: item.document):
        asked = list(group)
        document, started = text_document(text), time.perf_counter()
        seats = Together(engine, len(asked)).seats
        reads = [
            Read(question.problem, document, seat, settings)
            for question, seat in zip(asked, seats, strict=True)
        ]
        errors = await asyncio.gather(*map(_finish, reads, seats))
        seconds = (time.perf_counter() - started) / len(asked)
        for example, read, error in zip(asked, reads, errors, strict=True):
            now, keeps = read.progress, workflows()[read.workflow].keeps_memory
            row = Row.of(
                model, reader, example,
                prediction="" if error else read.answer,
                empty=not now.memory if keeps else None,
                held=bool(score_answer(example.task, now.memory, example.answers)) if keeps else None,
                calls=now.spent.calls, prompt_tokens=now.spent.prompt_tokens,
                cached_tokens=now.spent.cached_tokens,
                completion_tokens=now.spent.completion_tokens, seconds=round(seconds, 2), error=error,
            )  # fmt: skip
            rows.append(row)
    return rows


async def _finish(read: Read, seat: Seat) -> str:
    """Read to the end; returns the error, if any."""
    try:
        await drain(aiter(read))
    except MemAgentError as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        seat.leave()
    return ""


class Peers:
    """Other people's readers, with an endpoint, or with a file that llama.cpp's own server runs.

    Each starts when first asked.
    """

    def __init__(self, model: Path | Endpoint) -> None:
        self._model, self._servers = model, list[Any]()
        self._processes = dict[tuple[str, str, str], Process]()

    def process(self, peer: tuple[str, str, str]) -> Process:
        """The process of a reader of `peers.py`: its name there, its setting, and its environment."""
        if peer not in self._processes:
            name, setting, packages = peer
            python, script = environment(packages), Path(peers.__file__)
            self._processes[peer] = Process(python, script, name, setting, *self._serve())
        return self._processes[peer]

    def _serve(self) -> Endpoint:
        """Where the model is."""
        if isinstance(self._model, Endpoint):
            return self._model
        if not self._servers:
            xllamacpp = import_xllamacpp()
            start = ServerStart(self._model, WINDOW_TOKENS, 1, available_cores(), "none")
            self._servers.append(xllamacpp.Server(parameters(xllamacpp, start)))
        return Endpoint(f"{self._servers[0].listening_address}/v1")

    def close(self) -> None:
        """End all processes and the server."""
        for process in self._processes.values():
            process.close()
        self._servers.clear()


def read_theirs(others: Peers, model: str, reader: Reader, examples: Sequence[Example]) -> Iterator[Row]:
    """Read with a reader of `peers.py`, one question after the other."""
    process = others.process(reader.peer)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for example in examples:
            document = text_document(example.document, is_example=True)
            chunks = [part.text for part in split(document.blocks(), reader.chunk_tokens, estimate_tokens)]
            (folder / "document.txt").write_text(example.document, "utf-8")
            (folder / "chunks.json").write_text(json.dumps(chunks), "utf-8")
            task = {
                "document": str(folder / "document.txt"),
                "chunks": str(folder / "chunks.json"),
                "problem": example.problem,
                "trace": str(folder / secrets.token_hex(4)),
            }
            reply = process.ask({"tasks": [task]})
            seconds = round(reply["seconds"], 2)
            answer, error = reply["answers"][0], reply["errors"][0]
            yield Row.of(model, reader, example, prediction=answer, seconds=seconds, error=error)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """The option to run a GGUF with transformers, which is far faster on some processors."""
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), help="run the GGUF with transformers, in these numbers"
    )


def settings_of(model: Path, dtype: str | None, window_tokens: int = WINDOW_TOKENS) -> EngineSettings:
    """How a GGUF is run: by llama.cpp, or with a `dtype` by transformers."""
    settings = EngineSettings(model=str(model), window_tokens=window_tokens)
    return settings.replace(engine="transformers", dtype=dtype) if dtype else settings


def settings_of_endpoint(model: str, base_url: str | None) -> EngineSettings:
    """How a model's name is reached, with the key in MEMAGENT_API_KEY, if there is one."""
    return EngineSettings(model=model, base_url=base_url, api_key=os.environ.get("MEMAGENT_API_KEY") or None)


def name_of(model: Path | str, dtype: str | None) -> str:
    """What rows call a model: its file without the ending, and the numbers it was computed in."""
    name = name_model(str(model))
    return f"{name}, {dtype}" if dtype else name


@asynccontextmanager
async def opened(
    path: Path, adapter: Path | None, window_tokens: int = WINDOW_TOKENS
) -> AsyncIterator[tuple[Engine, Peers]]:
    """A model: our engine for it, and other people's readers."""
    settings = settings_of(path, None, window_tokens)
    engine = await open_llamacpp(settings.replace(adapter=str(adapter)) if adapter else settings)
    others = Peers(path)
    try:
        yield engine, others
    finally:
        await engine.aclose()
        others.close()


async def run(args: argparse.Namespace) -> None:
    """Read what is missing in the file of rows."""
    args.out.touch()  # what cannot be written fails now
    done = {(row["model"], row["reader"], row["id"]) for row in load_rows(args.out)}
    examples = [
        example for example in _examples(args) if not args.tasks or family(example.task) in args.tasks
    ]
    readers = [item for item in READERS if not args.readers or item.name in args.readers]
    for path in args.models:
        model = f"{path.stem} with {args.adapter.stem}" if args.adapter else path.stem
        async with opened(path, args.adapter) as (engine, others):
            for start in range(0, args.limit, _BATCH):
                for task, every in groupby(examples, key=lambda example: family(example.task)):
                    some = list(every)[start : min(start + _BATCH, args.limit)]
                    for reader in readers:
                        left = [
                            case for case in some
                            if reader.can_read(case) and (model, reader.name, case.id) not in done
                        ]  # fmt: skip
                        if not left:
                            continue
                        if reader.settings is not None:
                            rows = await read_ours(engine, model, reader, left)
                        else:
                            rows = list(read_theirs(others, model, reader, left))
                        for row in rows:
                            append_row(args.out, asdict(row))
                        right = sum(item.score for item in rows)
                        seconds = sum(item.seconds for item in rows)
                        summary = f"{right:.1f} of {len(rows)} right, {seconds:.0f} s"
                        print(f"{model}, {task}, {reader.name}: {summary}", file=sys.stderr)


def names_of(rows: Sequence[dict[str, Any]], order: Sequence[str]) -> list[str]:
    """The readers that have rows, in this order; those of other settings, renamed, come last."""
    named = {row["reader"] for row in rows}
    return [name for name in order if name in named] + sorted(named.difference(order))


def family(task: str) -> str:
    """The kind of question that a task belongs to: the eight kinds of needles are one."""
    return "needles" if task.startswith("niah") else task


def _examples(args: argparse.Namespace) -> list[Example]:
    return [
        *hotpot(args.hotpot, None),
        *shifts(args.shifts, None),
        *story.make_examples(),
        *needles(args.essays),
        *hotpot(args.hotpot, LONG_TOKENS),
        *shifts(args.shifts, LONG_TOKENS),
    ]


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Flags for the files of questions that are not shipped."""
    parser.add_argument("--hotpot", type=Path, required=True, help="HotpotQA's dev set, distractor setting")
    parser.add_argument("--shifts", type=Path, required=True, help="SQuADShifts, New Wikipedia")


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--adapter", type=Path, help="a LoRA for them; for our own readers only")
    add_sources(parser)
    parser.add_argument("--essays", type=Path, help="RULER's essays; a sample stands in")
    parser.add_argument("--readers", nargs="+", choices=[item.name for item in READERS])
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--limit", type=int, default=_QUESTIONS, help="questions of each kind")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    asyncio.run(run(parser.parse_args()))
