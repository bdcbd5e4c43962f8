"""How often the nearest passages of an answer in other words are the right ones, by the threshold.

    python benchmarks/nearest.py --hotpot hotpotqa.json --squad squad.json
    python benchmarks/nearest.py --hotpot hotpotqa.json --squad squad.json --ask FILE.gguf

The first command prints the table from the answers in `results/nearest.jsonl.gz`, without a model; the files
are those of `memagent data fetch`. About half of the answers are a model's to questions of HotpotQA (rows 700
to 1404) and SQuAD 2.0, given the gold passages and asked for its own words; `--ask` writes such rows,
to another file, and goes on where it stopped. The others are sentences of people's answers in ClapNQ (dev;
Apache-2.0). All are right, and none stands in its document word for word. A document is ten passages:
HotpotQA's own, those of the same SQuAD article, or those of other questions.

The same answers are measured where the document lacks their evidence, and with another answer put in place of
the right one: one that the document does not have, or a name or number that it has elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from measure import append_row, load_rows, make_parser

from memagent import EngineSettings, Message, Sampling, open_engine, text_document
from memagent.reading.locating import find_sources
from memagent.reading.sources import Source, Statement, statements_of
from memagent.tasks.corpora import Corpus
from memagent.tasks.passages import PassageSet, Question, load_passages
from memagent.tasks.scoring import substring_match

ROWS = Path(__file__).parent / "results" / "nearest.jsonl.gz"
PLACES = {"hotpot": range(700, 1405, 3), "squad": range(0, 5928, 27)}
LEAST = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ALL, BY_MODEL = 200, 100  # answers at most
PASSAGES = 10
ASKED = "Answer this question about the text in one full sentence, in your own words: "


@dataclass(frozen=True)
class Case:
    """An answer over a document of passages; `barren` are passages that lack its `evidence`, sentences.

    `right` is the gold answer as it stands in the answer, if there is one.
    """

    problem: str
    answer: str
    right: str
    passages: tuple[str, ...]
    barren: tuple[str, ...]
    evidence: tuple[str, ...]

    @property
    def text(self) -> str:
        """The document."""
        return "\n\n".join(self.passages)

    def nearest(self, least: float) -> tuple[Source, ...]:
        """The nearest passages of the answer."""
        bare = [Statement(self.answer, None)]
        (statement,) = find_sources(bare, self.problem, text_document(self.text), 5000, least)
        return statement.nearest

    def is_said(self) -> bool:
        """Whether the document says the answer word for word."""
        bare = [Statement(self.answer, None)]
        return bool(find_sources(bare, self.problem, text_document(self.text), 5000)[0].source)

    def is_evidence(self, source: Source) -> bool:
        """Whether a passage overlaps the evidence."""
        places = [(self.text.find(fact), len(fact)) for fact in self.evidence if fact in self.text]
        return any(source.start < at + length and at < source.end for at, length in places)


def by_model(rows: Iterable[dict[str, Any]], sets: dict[str, PassageSet]) -> Iterator[Case]:
    """The right answers of a model, each as the sentence that has the gold answer."""
    for row in rows:
        question = sets[row["corpus"]].questions[row["index"]]
        statements = [
            statement
            for statement in statements_of(row["answer"])
            if substring_match(statement, question.answers)
        ]
        if not statements or question.answers[0] in ("yes", "no"):
            continue
        chance = random.Random(row["index"])
        near = chance.sample(question.near, min(len(question.near), PASSAGES))
        own = [*dict.fromkeys(question.own)]
        whole = [*own, *near][:PASSAGES]
        barren = [item for item in [*own, *near] if item not in question.gold]
        for passages in (whole, barren):
            chance.shuffle(passages)
        has, lacks = (tuple(_markdown(row["corpus"], item) for item in some) for some in (whole, barren))
        right = next(answer for answer in question.answers if substring_match(statements[0], (answer,)))
        sentences = (item for some in question.gold.values() for item in some)
        facts = tuple(item for item in sentences if len(item.split()) > 3)  # no titles
        case = Case(question.problem, statements[0], right, has, lacks, facts)
        if any(fact in case.text for fact in facts) and not case.is_said():
            yield case


def _markdown(corpus: str, passage: str) -> str:
    """A passage with its title, if it has one, as a heading."""
    title, _, text = passage.partition("\n")
    return f"## {title}\n\n{text}" if corpus == "hotpot" else passage


def by_people(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """The sentences of people's answers, each over its passage and those of nine other questions."""
    for number, row in enumerate(rows):
        chance = random.Random(number)
        others = sorted({item["passage"] for item in rows} - {row["passage"]})
        barren = chance.sample(others, PASSAGES)
        whole = [row["passage"], *barren[1:]]
        chance.shuffle(whole)
        yield Case(row["problem"], row["answer"], "", tuple(whole), tuple(barren), tuple(row["evidence"]))


def without_evidence(cases: Iterable[Case]) -> list[Case]:
    """The answers over documents that lack their evidence."""
    return [replace(case, passages=case.barren) for case in cases]


def with_another(cases: Sequence[Case], *, elsewhere: bool) -> list[Case]:
    """The answers with another in place of the right one, which the document has `elsewhere`, or lacks."""
    changed_cases = []
    for number, case in enumerate(cases):
        match = re.search(re.escape(case.right), case.answer, re.IGNORECASE) if case.right else None
        known = " ".join([*case.evidence, case.problem, case.answer])
        if elsewhere:
            shape = (
                r"\b\d[\d,.]*\d\b|\b\d\b" if _kind(case.right) == "number" else r"\b[A-Z]\w+(?: [A-Z]\w+)+"
            )
            others = [item for item in re.findall(shape, case.text) if item not in known]
        else:
            others = [
                item.right for item in cases if item.right and not substring_match(case.text, (item.right,))
            ]
            others = [item for item in others if _kind(item) == _kind(case.right)]
        if match and others and not (elsewhere and _kind(case.right) == "word"):
            other = random.Random(number).choice(others)
            changed_cases.append(
                replace(case, answer=f"{case.answer[: match.start()]}{other}{case.answer[match.end() :]}")
            )
    return [item for item in changed_cases if not item.is_said()]


def _kind(answer: str) -> str:
    return "number" if re.search(r"\d", answer) else "name" if answer[:1].isupper() else "word"


def count(cases: Sequence[Case], least: float, right: bool) -> str:
    """How many answers lead to a passage; of `right` ones, how many to their evidence, and elsewhere."""
    nearest = [(case, passages) for case in cases if (passages := case.nearest(least))]
    summary = f"{len(nearest)} of {len(cases)}"
    if right:
        there = sum(any(case.is_evidence(passage) for passage in passages) for case, passages in nearest)
        summary = f"{there} and {len(nearest) - there} of {len(cases)}"
    return summary


async def ask(model: str, sets: dict[str, PassageSet], out: Path, known: list[dict[str, Any]]) -> None:
    """Write the model's answers to the questions that `out` does not have yet; `known` are its rows."""
    done = {(item["corpus"], item["index"]) for item in known}
    pairs = zip_longest(*([(name, index) for index in PLACES[name]] for name in sets))
    wanted = [item for pair in pairs for item in pair if item and item not in done]
    async with open_engine(EngineSettings(model=model, window_tokens=2048)) as engine:
        for name, index in wanted:
            question: Question = sets[name].questions[index]
            text = "\n\n".join(question.gold)
            prompt = Message("user", f"{text}\n\n{ASKED}{question.problem}")
            reply = await engine.complete((prompt,), Sampling(max_tokens=80))
            append_row(out, {"corpus": name, "index": index, "answer": reply.text.strip()})


def main(args: argparse.Namespace) -> None:
    """Measure, and print the table; or ask the model."""
    sets = {name: load_passages(Corpus(name, getattr(args, name), "given")) for name in PLACES}
    if args.ask:
        asyncio.run(ask(args.ask, sets, args.out, load_rows(args.out, missing_ok=True)))
        return
    rows = load_rows(args.rows)
    model = list(by_model((row for row in rows if "index" in row), sets))[:BY_MODEL]
    people = list(by_people([row for row in rows if "passage" in row]))[: ALL - len(model)]
    columns = {
        "right (model): evidence, elsewhere": model,
        "right (people): evidence, elsewhere": people,
        "the document lacks it (model)": without_evidence(model),
        "the document lacks it (people)": without_evidence(people),
        "another answer, not in the document": with_another(model, elsewhere=False),
        "another answer, elsewhere in the document": with_another(model, elsewhere=True),
    }
    print(" | ".join(["least share", *columns]))
    for least in LEAST:
        print(
            " | ".join(
                [f"{least}", *(count(column, least, "right" in name) for name, column in columns.items())]
            )
        )


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--hotpot", type=Path, required=True)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--rows", type=Path, default=ROWS, help="the answers that are measured")
    parser.add_argument("--ask", metavar="FILE.gguf", help="a model that answers, instead of the table")
    parser.add_argument("--out", type=Path, default=Path("nearest.jsonl"), help="where its answers go")
    main(parser.parse_args())
