"""Questions in other words than the text's, on three texts, for readers that decide by meaning.

    python benchmarks/other_words.py check
    python benchmarks/other_words.py examples FILE [--split tuning] [--needs 0.5b]
    python benchmarks/other_words.py answerable MODEL.gguf --out FILE [--split tuning] [--needs 0.5b]

`check` prints how much of the evidence words alone lead to, and what is wrong with the set. `examples` writes
the questions as a file of examples. `answerable` asks a model each question with its evidence alone; what
`--out` has is not asked again. `--needs 0.5b` leaves out those that only a larger model answered then.

The kinds: `latent` (the answer takes knowledge of the world), `paraphrase`, `last_state` (the text has
earlier ones), `several` (no single place has the answer), `absent` (the text does not say).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from measure import append_row, load_rows, make_parser

from memagent import EngineSettings, Sampling, open_engine
from memagent.documents.cutting import PARAGRAPH_END, cut
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import AUTO
from memagent.reading.ranking import best_passages, find_names, stems, telling
from memagent.reading.sources import Span, between, sentences
from memagent.tasks import write_examples
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import substring_match
from memagent.types import Example, Message

FOLDER = Path(__file__).with_suffix("")
KINDS = ("latent", "paraphrase", "last_state", "several", "absent")
PASSAGE_TOKENS, PASSAGES, SENTENCES = 256, 4, 16
MAX_SHOWN = 0.3  # of the evidence
COMMON_SHARE = 0.1  # of the passages have a word that is not rare
MIN_QUESTIONS = 12  # of each kind
ANSWER_TOKENS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question on the text of that name. Without evidence, the text does not answer it."""

    text: str
    kind: str
    split: str
    question: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    needs: str

    @property
    def document(self) -> str:
        """The whole text."""
        return read_text(self.text)


@cache
def read_text(name: str) -> str:
    """The text of this name."""
    with gzip.open(FOLDER / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
        return file.read()


def load_questions() -> list[Question]:
    """All questions, in the order of the file."""
    rows = load_rows(FOLDER / "questions.jsonl")
    return [Question(**row | {name: tuple(row[name]) for name in ("answers", "evidence")}) for row in rows]


@cache
def passages_of(name: str) -> list[Span]:
    """The passages of a text, as `rag` cuts them."""
    ends = [0]
    for piece in cut([read_text(name)], PASSAGE_TOKENS, estimate_tokens):
        ends.append(ends[-1] + len(piece.text))
    return list(pairwise(ends))


@cache
def sentences_of(name: str) -> list[Span]:
    """The sentences of a text."""
    text = read_text(name)
    paragraphs = between(text, 0, len(text), PARAGRAPH_END)
    return [span for paragraph in paragraphs for span in sentences(text, *paragraph)]


WAYS = {
    f"the {PASSAGES} best passages of {PASSAGE_TOKENS} tokens": (passages_of, PASSAGES),
    f"the {SENTENCES} best sentences": (sentences_of, SENTENCES),
}
"""What words lead to: how a text is cut, and how many of the spans that BM25 ranks best are shown."""


def share_shown(question: Question, way: str) -> float:
    """The share, 0 to 1, of a question's evidence of which the best spans show at least half."""
    cutting, most = WAYS[way]
    text, spans = question.document, cutting(question.text)
    best = best_passages(question.question, (text[first:last] for first, last in spans), most)

    def is_shown(evidence: str) -> bool:
        start = text.index(evidence)
        end = start + len(evidence)
        shown = (min(end, last) - max(start, first) for first, last in map(spans.__getitem__, best))
        return 2 * sum(max(0, characters) for characters in shown) >= len(evidence)

    return fmean(map(is_shown, question.evidence))


def shared_rare_words(question: Question) -> frozenset[str]:
    """The stems of the rare words, names apart, that a question shares with its evidence."""
    text, spans = question.document, passages_of(question.text)
    shared = telling(question.question) & telling(" ".join(question.evidence))
    holding = Counter(word for first, last in spans for word in shared.intersection(stems(text[first:last])))
    rare = frozenset(word for word in shared if holding[word] < COMMON_SHARE * len(spans))
    return rare - find_names(question.question)


def find_faults(questions: Sequence[Question]) -> Iterator[str]:
    """What is wrong with each question, and with all of them together."""
    for question in questions:
        if {bool(question.evidence), bool(question.answers)} != {question.kind != "absent"}:
            yield f"{question.question}: it must have answers and evidence, or if absent neither"
        for sentence in question.evidence:
            if question.document.count(sentence) != 1:
                yield f"{question.question}: its text does not have once: {sentence}"
        if words := shared_rare_words(question):
            yield f"{question.question}: its evidence has {', '.join(sorted(words))} too"
    for kind in KINDS:
        if (count := sum(question.kind == kind for question in questions)) < MIN_QUESTIONS:
            yield f"{kind}: {count} questions, {MIN_QUESTIONS} are the least"
    standing = [
        row for row in questions if row.evidence and all(map(row.document.__contains__, row.evidence))
    ]
    for way in WAYS if standing else ():
        share = fmean(share_shown(question, way) for question in standing)
        if share >= MAX_SHOWN:
            yield f"{way} show {share:.0%} of the evidence, it must be under {MAX_SHOWN:.0%}"


def print_shares(questions: Sequence[Question]) -> None:
    """Print how many questions there are of each kind, and how much of their evidence words lead to."""
    print(" | ".join(["kind", "questions", "for tuning", "only for 1.5B", *WAYS]))
    for kind in (*KINDS, "all"):
        rows = [question for question in questions if kind in (question.kind, "all")]
        counts = (
            len(rows),
            sum(row.split == "tuning" for row in rows),
            sum(row.needs == "1.5b" for row in rows),
        )
        known = [row for row in rows if row.evidence]
        shares = (f"{fmean(share_shown(row, way) for row in known):.0%}" if known else "" for way in WAYS)
        print(" | ".join([kind, *map(str, counts), *shares]))


async def ask(model: str, questions: Sequence[Question], out: Path, replies: dict[str, str]) -> None:
    """Ask for the answers that `replies` lack, by the prompt's text; each is added to it, and to a file."""
    async with open_engine(EngineSettings(model=model)) as engine:
        for question in questions:
            if (messages := prompt(question))[-1].content not in replies:
                reply = (await engine.complete(messages, Sampling(ANSWER_TOKENS))).text
                replies[messages[-1].content] = reply
                row = {"model": Path(model).name, "prompt": messages[-1].content, "reply": reply}
                append_row(out, row)


def prompt(question: Question) -> tuple[Message, ...]:
    """A question on its evidence alone, as the default asks."""
    return AUTO.fill("answer", problem=question.question, memory="\n\n".join(question.evidence))


def print_answered(model: str, questions: Sequence[Question], out: Path) -> None:
    """Ask a model what `out` lacks, and print which questions it answers from their evidence."""
    rows = [row for row in load_rows(out, missing_ok=True) if row["model"] == Path(model).name]
    replies = {row["prompt"]: row["reply"] for row in rows}
    asyncio.run(ask(model, questions, out, replies))
    right = list[str]()
    for question in questions:
        reply = replies[prompt(question)[-1].content]
        answered = bool(substring_match(reply, question.answers))
        right += [question.kind] * answered
        print("right" if answered else "WRONG", question.kind, question.question, repr(reply), sep=" | ")
    for kind in KINDS[:-1]:
        print(f"{kind}: {right.count(kind)} of {sum(question.kind == kind for question in questions)}")
    print(f"all: {len(right)} of {len(questions)}")


def example(number: int, question: Question) -> Example:
    """A question as an example; one without an answer is answered by saying so."""
    return Example(
        f"other-words-{number}",
        question.kind,
        question.question,
        question.document,
        question.answers or ABSENT_ANSWERS,
        estimate_tokens(question.document),
        question.evidence,
    )


def examples_for_tests() -> Iterator[tuple[Question, Example]]:
    """The questions for tests with their examples; of those that a text answers, those that the 0.5B can."""
    for number, question in enumerate(load_questions()):
        if question.split == "test" and question.needs != "1.5b":
            yield question, example(number, question)


def main(args: argparse.Namespace) -> None:
    """Do what is asked."""
    questions = load_questions()
    if args.command == "check":
        print_shares(questions)
        sys.exit("\n".join(find_faults(questions)) or None)
    chosen = {
        number: question
        for number, question in enumerate(questions)
        if args.split in (question.split, None) and args.needs in (question.needs, None)
    }
    if args.command == "examples":
        write_examples(args.file, (example(*numbered) for numbered in chosen.items()))
    else:
        print_answered(args.model, [row for row in chosen.values() if row.evidence], args.out)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    examples, answerable = commands.add_parser("examples"), commands.add_parser("answerable")
    examples.add_argument("file", type=Path)
    answerable.add_argument("model", help="a GGUF")
    answerable.add_argument("--out", type=Path, required=True, help="the file of replies")
    for command in (examples, answerable):
        command.add_argument("--split", choices=("tuning", "test"))
        command.add_argument("--needs", choices=("0.5b", "1.5b"), help="the size of the model")
    main(parser.parse_args())
