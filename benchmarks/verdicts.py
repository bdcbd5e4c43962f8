"""The default, which keeps what the model's verdicts choose, beside what chooses by words or by vectors.

    python benchmarks/verdicts.py read MODEL.gguf --hotpot hotpot_dev_distractor.jsonl.gz
        --shifts new_wiki.jsonl.gz --out rows.jsonl
    python benchmarks/verdicts.py table rows.jsonl

`read` adds what is missing in `--out`, so it can be stopped at any time; `--kinds`, `--readers`, `--texts`
and `--limit` choose some. All readers have the same model, greedy, and 64 tokens for an answer; with
`--answers`, that model gives the verdicts, and another one everything else:

- `default`: the whole document in one prompt if it is short, as those of HotpotQA and SQuADShifts are, else
  `select`, with all questions on a document together, each begun with its likeliest chunks;
- `default, all judged`: the same, but every chunk of a longer document is judged for each question;
- `select`: judges all chunks of short ones too; `select, untrained`: without the LoRA for verdicts;
- `question as note`: `notes`, with the question itself in the place of every note: words alone choose;
- `rag`: four passages of 256 tokens by BM25, with the gate by words that it ships with;
- `BM25`, `dense`, `both`: four such passages by BM25, by all-MiniLM-L6-v2 (the best window of three sentences
  stands for a passage), by the sum of both ranks' reciprocals; each with the gate of `select`: nobody answers
  where the trained verdict on all four is too low; `dense, no gate` always answers;
- `both, reranked`: the sixteen best by both, of which the verdict chooses up to four, as in `select`;
- `full`: the whole document in one prompt, where it fits.

An answer is right if it has a gold answer as whole words (needles: the share of the values).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import other_words
import real_models
import story
from measure import append_row, load_rows, make_parser, table
from real_models import Reader, Row, read_ours
from retrieval import PASSAGE_TOKENS, PASSAGES, RETRIEVERS, Memo, answer_from_passages, judge_together

from memagent import Sampling, open_engine
from memagent.documents.tokens import estimate_tokens
from memagent.engines.wrappers import Wrapper
from memagent.evaluation.statistics import confidence_interval, paired_interval
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import f1, published_substring_match
from memagent.types import Completion, Example, Message

MAX_SHORT = real_models.WINDOW_TOKENS // 2
QUESTIONS = 100  # of HotpotQA and of SQuADShifts, a fifth without an answer
TEXTS = ("speckled_band", "moby_dick", "skerrow")
SHARED = 24  # questions on one document of 32K tokens
KINDS = ("other words", "story", "hotpot", "shifts", "needles", "hotpot 32K", "shifts 32K")


def ask_in_other_words(texts: Sequence[str]) -> list[Example]:
    """The questions for tests in other words, on these texts."""
    return [
        replace(example, task=f"words, {question.kind}")
        for question, example in other_words.examples_for_tests()
        if question.text in texts
    ]


def share_document(examples: Sequence[Example], kind: str) -> list[Example]:
    """The same questions on one document of all their paragraphs; those whose answer was left out are not."""
    asked = [example for example in examples if example.answers != ABSENT_ANSWERS][:SHARED]
    paragraphs = [text for example in asked for text in example.document.split("\n\n")]
    paragraphs = list(dict.fromkeys(paragraphs))
    random.Random(real_models.SEED).shuffle(paragraphs)
    document = "\n\n".join(paragraphs)
    tokens = estimate_tokens(document)
    return [
        replace(example, id=f"{kind}-{example.id}", task=kind, document=document, length_tokens=tokens)
        for example in asked
    ]


def load_kinds(args: argparse.Namespace) -> dict[str, list[Example]]:
    """The questions of each kind, those on one document side by side."""
    hotpot = real_models.hotpot(args.hotpot, None, QUESTIONS)
    shifts = real_models.shifts(args.shifts, None, QUESTIONS)
    return {
        "other words": ask_in_other_words(args.texts),
        "story": story.make_examples(),
        "hotpot": hotpot[: args.limit],
        "shifts": shifts[: args.limit],
        "needles": real_models.needles(count=4),
        "hotpot 32K": share_document(hotpot, "hotpot 32K"),
        "shifts 32K": share_document(shifts, "shifts 32K"),
    }


class QuestionAsNote(Wrapper):
    """Puts the question itself in the place of every note, with no call."""

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The question if a note is asked for, else the reply of the model."""
        _, asks_for_note, question = messages[-1].content.partition(" helps to answer this question: ")
        if asks_for_note:
            return Completion(question.strip())
        return await super().complete(messages, sampling)


OURS: dict[str, dict[str, Any]] = {
    "default": {"workflow": "auto"},
    "default, all judged": {"workflow": "auto", "likeliest_chunks": 0},
    "select": {"workflow": "select"},
    "select, untrained": {"workflow": "select"},
    "question as note": {"workflow": "notes"},
    "rag": {"workflow": "rag", "passages": PASSAGES, "passage_tokens": PASSAGE_TOKENS},
    "full": {"workflow": "full"},
}
READERS = (*OURS, *RETRIEVERS)


async def read(args: argparse.Namespace) -> None:
    """Read what is missing in the file of rows."""
    kinds = load_kinds(args)
    args.out.touch()  # what cannot be written fails now
    model = real_models.name_of(args.model, args.dtype)
    if args.answers:
        model = f"{args.answers.stem}, verdicts by {model}"
    done = {(row["reader"], row["id"]) for row in load_rows(args.out) if row["model"] == model}
    with tempfile.TemporaryDirectory() as folder:
        untrained = Path(folder) / f"untrained-{args.model.name}"  # by its name it has no LoRA for verdicts
        untrained.symlink_to(args.model.resolve())
        for path, names in (
            (args.model, [name for name in args.readers if name != "select, untrained"]),
            (untrained, [name for name in args.readers if name == "select, untrained"]),
        ):
            if not names:  # a model takes a while to load
                continue
            settings = real_models.settings_of(path, args.dtype)
            if args.answers:
                settings = settings.replace(model=str(args.answers), judge=str(path))
            async with open_engine(settings) as opened:
                engine = Memo(opened)
                for kind, name in ((kind, name) for kind in args.kinds for name in names):
                    reader = Reader(name, OURS.get(name))
                    missing = [
                        example
                        for example in kinds[kind]
                        if (name, example.id) not in done and can_read(reader, example)
                    ]
                    for _, group in groupby(missing, key=lambda example: example.document):
                        for row in await read_with(engine, reader, list(group), model):
                            append_row(args.out, asdict(row) | {"kind": kind})
                    print(kind, name, len(missing), file=sys.stderr, flush=True)


def can_read(reader: Reader, example: Example) -> bool:
    """Whether a reader fits a document; for long ones, `select` is the default."""
    return reader.can_read(example) and (reader.name != "select" or example.length_tokens < MAX_SHORT)


async def read_with(engine: Memo, reader: Reader, examples: Sequence[Example], model: str) -> list[Row]:
    """Read one document for all its questions."""
    if reader.name in RETRIEVERS:
        await judge_together(engine, reader.name, examples)
        return [await answer_from_passages(engine, reader.name, example, model) for example in examples]
    wrapped = QuestionAsNote(engine.engine) if reader.name == "question as note" else engine.engine
    return await read_ours(wrapped, model, reader, examples)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print each reader's right answers by kind, what it invents and declines, and the first one's lead."""
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    readers = real_models.names_of(rows, READERS)
    firsts = [row for row in rows if not row["absent"] and row["reader"] == readers[0]]
    scores = {row["id"]: row["score"] for row in firsts}
    lines, paired = [], []
    for name in readers:
        own = [row for row in rows if row["reader"] == name]
        answered = [row for row in own if not row["absent"]]
        by_kind = [[row for row in answered if row["kind"] == kind] for kind in kinds]
        absent = [row for row in own if row["absent"]]
        lines.append([
            name,
            *map(_cell, by_kind),
            f"{_percent(answered, published_substring_match)}, {_percent(answered, f1)}",
            f"{sum(not row['declined'] for row in absent)} of {len(absent)}",
            f"{sum(row['declined'] for row in answered)} of {len(answered)}",
            f"{fmean(row['seconds'] for row in own):.1f}",
        ])  # fmt: skip
        if name != readers[0]:
            paired.append(
                [name, *(_difference(group, scores) for group in by_kind), _difference(answered, scores)]
            )
    print(table(["reader", *kinds, "either way, F1", "invented", "declined", "seconds"], lines))
    print(f"\n{readers[0]} minus each reader, over the questions that both read")
    print(table(["reader", *kinds, "all"], paired))


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    low, high = confidence_interval([row["score"] for row in rows])
    held = [row["held"] for row in rows if row["held"] is not None]
    shown = f" ({sum(held)})" if held else ""
    return f"{sum(row['score'] for row in rows):g} of {len(rows)} [{low:.0%}, {high:.0%}]{shown}"


def _percent(rows: Sequence[dict[str, Any]], scorer: Callable[[str, tuple[str, ...]], float]) -> str:
    return f"{fmean(scorer(row['prediction'], tuple(row['answers'])) for row in rows):.0%}" if rows else ""


def _difference(rows: Sequence[dict[str, Any]], scores: dict[str, float]) -> str:
    values = [scores[row["id"]] - row["score"] for row in rows if row["id"] in scores]
    if len(values) < 2:
        return ""
    low, high = paired_interval(values)
    return f"{fmean(values):+.0%} [{low:+.0%}, {high:+.0%}]"


def main() -> None:
    """Do what is asked."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reads, tables = commands.add_parser("read"), commands.add_parser("table")
    reads.add_argument("model", type=Path, help="a GGUF")
    real_models.add_dtype(reads)
    real_models.add_sources(reads)
    reads.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    reads.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    reads.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS, help="of the kind other words")
    reads.add_argument("--answers", type=Path, help="a GGUF that gives all replies but verdicts")
    reads.add_argument("--limit", type=int, default=100, help="questions of HotpotQA and of SQuADShifts")
    reads.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    tables.add_argument("rows", type=Path)
    args = parser.parse_args()
    if args.command == "read":
        asyncio.run(read(args))
    else:
        print_table(load_rows(args.rows))


if __name__ == "__main__":
    main()
