"""Which questions the gate calls doubtful, by its threshold, with no model: see `memagent.reading.locating`.

    python benchmarks/gate.py --squad squad.json [--model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf]

The file is that of `memagent data fetch squad` (SQuAD 2.0, dev). The gate looks at words alone: it lets the
model decline a question if the document has little of what it names. A document is the question's paragraph,
or that among others of its article. Questions that the document answers: 200 as they come, and 200 in other
words, whose evidence sentence has at most half of their telling words. Questions that it does not answer: 100
that SQuAD wrote to look as if it did, and 200 on another article.

The last rows are of questions with a name, a number or a key that the document lacks: these may be declined
after trained verdicts, too.

With `--model`, it also prints of how many of those that are doubtful on their paragraph alone that model's
verdict says that the paragraph helps: those `auto` does not let it decline, unless a name is lacking.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
from retrieval import judge

from memagent import EngineSettings, open_engine
from memagent.documents.opening import text_document
from memagent.reading.locating import hardly_names
from memagent.reading.names import lacks_a_name
from memagent.reading.ranking import stems, telling
from memagent.reading.sources import sentences
from memagent.reading.workflows.select import MIN_HELPS

SIZES = (1, 3, 10)  # paragraphs
LEAST = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)


@dataclass(frozen=True)
class Case:
    """A question with the paragraphs of an article, and which of them it is asked of."""

    problem: str
    article: Sequence[str]
    place: int

    def document(self, size: int) -> str:
        """That paragraph and those around it, `size` in all if there are as many."""
        first = max(0, min(self.place - size // 2, len(self.article) - size))
        return "\n\n".join(self.article[first : first + size])


def is_in_other_words(problem: str, paragraph: str, start: int) -> bool:
    """Whether the sentence with the answer, which begins at `start`, has at most half of its words."""
    spans = sentences(paragraph, 0, len(paragraph))
    evidence = next((paragraph[first:end] for first, end in spans if first <= start < end), paragraph)
    words = telling(problem)
    return 2 * len(words & set(stems(evidence))) <= len(words)


def cases(articles: Sequence[dict[str, Any]], chance: random.Random) -> dict[str, list[Case]]:
    """The cases of each kind, in a random order."""
    kinds: dict[str, list[Case]] = {"answered": [], "in other words": [], "not answered": [], "foreign": []}
    texts = [[item["context"] for item in article["paragraphs"]] for article in articles]
    for number, position, paragraph, question in _questions(articles):
        case = Case(question["question"], texts[number], position)
        if question["is_impossible"]:
            kinds["not answered"].append(case)
            continue
        kinds["answered"].append(case)
        if is_in_other_words(case.problem, paragraph, question["answers"][0]["answer_start"]):
            kinds["in other words"].append(case)
        other = chance.choice(texts[:number] + texts[number + 1 :])
        kinds["foreign"].append(Case(case.problem, other, chance.randrange(len(other))))
    return {name: chance.sample(some, 100 if name == "not answered" else 200) for name, some in kinds.items()}


def _questions(articles: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    for number, article in enumerate(articles):
        for position, paragraph in enumerate(article["paragraphs"]):
            for question in paragraph["qas"]:
                yield number, position, paragraph["context"], question


async def count_helped(model: str, kinds: Mapping[str, Sequence[Case]]) -> dict[str, tuple[int, int]]:
    """Of each kind, how many are doubtful on one paragraph, and in how many of these the verdict says Yes."""
    counts = {}
    async with open_engine(EngineSettings(model=model)) as engine:
        for name, some in kinds.items():
            doubtful = [case for case in some if hardly_names(case.document(1), case.problem)]
            odds = []
            for case in doubtful:
                mark = text_document(case.document(1), is_example=True).mark
                odds += await judge(engine, case.problem, [case.document(1)], mark)
            counts[name] = len(doubtful), sum(value >= MIN_HELPS for value in odds)
    return counts


def main() -> None:
    """Print the table: percent of the questions of each kind that are doubtful."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--model", help="a GGUF that was trained to judge")
    parser.add_argument("--seed", type=int, default=1)
    measure.add_json_flag(parser)
    options = parser.parse_args()
    articles = json.loads(options.squad.read_text("utf-8"))["data"]
    kinds = cases(articles, random.Random(options.seed))
    rows = []
    for size in SIZES:
        for least in LEAST:
            doubtful = {
                name: sum(hardly_names(case.document(size), case.problem, least) for case in some) / len(some)
                for name, some in kinds.items()
            }
            rows.append({"paragraphs": size, "least": f"{least:.0%}", **doubtful})
        lacking = {
            name: sum(lacks_a_name(case.document(size), case.problem) for case in some) / len(some)
            for name, some in kinds.items()
        }
        rows.append({"paragraphs": size, "least": "all names", **lacking})
    cells = [[str(row["paragraphs"]), row["least"], *(f"{row[name]:.0%}" for name in kinds)] for row in rows]
    print(measure.table(["paragraphs", "least share", *kinds], cells))
    helped = asyncio.run(count_helped(options.model, kinds)) if options.model else {}
    for name, (doubtful_cases, count) in helped.items():
        print(f"{name}: {doubtful_cases} doubtful on one paragraph, which helps in {count} by the verdict")
    measure.write_json(options.json, {**measure.provenance(), "rows": rows, "helped": helped})


if __name__ == "__main__":
    main()
