"""Lessons for a reader: what a text says in answer to a question, if it says anything.

    python recipes/reader/lessons.py --sources FOLDER --hotpot hotpot_dev_distractor.jsonl.gz
        --wiki-hops 2wikimultihopqa.jsonl.gz --novels NOVEL.txt.gz... --out lessons.jsonl.gz

FOLDER holds sets of questions on passages, as JSONL (`context`, `title`, `qas` of `question`, `answers` and,
where known, `evidence`). A page is a passage and others of its kind, four pages in five short, the rest long.
It is asked its own questions, and some that it does not answer: those of other passages that share its words,
and its own with a name or a number exchanged for another. To those the right reply is that it does not hold
the answer. A page is shown as a whole, or in chunks, of which notes are asked for, or as finds are: some of
its sentences, two in a line, those that are needed among others that share the questions' words. All
questions of a page share the beginning of its prompt, which training computes once.

HotpotQA's first 1,405 questions and those from 5,000 on are never used, nor those that LongBench asks, nor
any split for validation or tests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from memagent.documents.cutting import PARAGRAPH_END
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import NOT_THERE, Prompts, load_prompts
from memagent.reading.budgets import NOTED_TOKENS
from memagent.reading.ranking import telling
from memagent.reading.sources import between, sentences
from memagent.tasks import TASKS
from memagent.tasks.corpora import Corpora, read_rows
from memagent.tasks.files import write_examples
from memagent.tasks.needle import VARIANTS
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.training.data import write_trajectories
from memagent.types import Completion, Conversation, Example, Message, Trajectory

HERE = Path(__file__).parent
HOTPOT_ROWS = set(range(1405, 5000)) - {2813, 4502, 4747, 4767}  # from 0; the four are LongBench's
SQUAD_LIKE = ("squad_v11_train_part", "squadshifts_reddit", "squadshifts_amazon", "qed_natural_questions",
              "quoref_part", "fairytaleqa")  # fmt: skip
SHARES = {"passages": 0.45, "hops": 0.4, "needles": 0.15}
FORMS = ("some", "some", "note", "note", "whole")
MAX_ASKED, MAX_OTHERS, MAX_ABSENT, MAX_EXCHANGED = 7, 3, 3, 2
MAX_CHARACTERS, MAX_ANSWER = 2400, 80  # of a short page, about 600 tokens; of an answer
MAX_LONG, LONG = 12_000, 0.2  # of a long page; their share
NOTED_CHARACTERS, MAX_NOTED, MAX_NOTE = 1200, 3, 170  # of a chunk; chunks of a page; characters of a note
MAX_IDLE = 2  # questions on a chunk that only other chunks answer
HELD, MIN_SPARE, MAX_SPARE = 0.8, 2, 9  # of sentences: needed ones that are shown, and others
EXAMPLES, MIN_CHUNKS, MAX_CHUNKS = 2000, 4, 8  # documents to reinforce on
NAME = re.compile(r"\b(?:[A-Z][\w'-]+(?: (?:of |the |de )?[A-Z][\w'-]+)*|\d{3,4})\b")
TRIED = 24  # passages whose questions are compared, for one that the page might answer but does not

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, its answer, and where in its passage that stands; no answer if the page lacks it."""

    problem: str
    answer: str = ""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with questions on it."""

    title: str
    text: str
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A document of several passages, with questions whose spans are in the document."""

    text: str
    asked: tuple[Asked, ...]


def load_passages(folder: Path) -> list[list[Passage]]:
    """The passages of each set, those of `test` splits left out."""
    sys.path.insert(0, str(folder))
    from detok import detok

    sets: list[list[Passage]] = []
    for name in SQUAD_LIKE:
        passages = []
        for _, row in read_rows(folder / f"{name}.jsonl.gz"):
            if row.get("split") in ("test", "val") or any(item.get("split") == "dev" for item in row["qas"]):
                continue
            clean = detok if name == "qed_natural_questions" else str
            text = clean(row["context"]).strip()
            asked = [question for qa in row["qas"] if (question := ask(qa, text, clean))]
            if asked and len(text) <= MAX_CHARACTERS:
                passages.append(Passage(row["title"] or "", text, tuple(asked)))
        sets.append(passages)
    return sets


def load_rows(hotpot: Path, wiki_hops: Path | None) -> list[dict[str, Any]]:
    """The questions of two hops that may be learned from."""
    rows = [row for number, row in read_rows(hotpot) if number - 1 in HOTPOT_ROWS]
    if wiki_hops:
        rows += [row for _, row in read_rows(wiki_hops) if row["split"] == "train"]
    return rows


def parser_of(description: str) -> argparse.ArgumentParser:
    """A parser of the flags that name the sources, and where what is made of them goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--hotpot", type=Path, required=True)
    parser.add_argument("--wiki-hops", type=Path, help="2WikiMultihopQA, in the same form")
    parser.add_argument("--novels", type=Path, nargs="+", required=True, help="texts to hide needles in")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--examples", type=Path, help="a file for documents to reinforce on, if wanted")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def ask(qa: dict[str, Any], text: str, clean: Any) -> Asked | None:
    """A question whose shortest answer stands in the text, in the sentence that shares most words with it."""
    problem = clean(qa["question"]).strip()
    answers = sorted((clean(item).strip(" .,;") for item in qa["answers"]), key=len)
    for answer in answers:
        if not 0 < len(answer) <= MAX_ANSWER:
            continue
        places = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)]
        if not places:
            continue
        evidence = clean(qa.get("evidence", ""))
        at = text.find(evidence) if evidence else -1
        if at >= 0:
            return Asked(problem, answer, ((at, at + len(evidence)),))
        return Asked(problem, answer, (max(places, key=partial(_count_shared, problem, text)),))
    return None


def _count_shared(problem: str, text: str, span: Span) -> int:
    """How many telling words of a problem the sentence at a span has."""
    around = (text[a:b] for a, b in sentences_of(text) if a <= span[0] < b)
    return len(telling(problem) & telling(next(around, "")))


def sentences_of(text: str) -> list[Span]:
    """The sentences of a text, as notes count them."""
    return [
        sentence
        for group in between(text, 0, len(text), PARAGRAPH_END)
        for sentence in sentences(text, *group)
    ]


def group_by_title(sets: Sequence[Sequence[Passage]]) -> list[dict[str, list[Passage]]]:
    """The passages of each set, by their titles."""
    titles = [defaultdict(list) for _ in sets]  # type: list[defaultdict[str, list[Passage]]]
    for grouped, passages in zip(titles, sets, strict=True):
        for passage in passages:
            grouped[passage.title].append(passage)
    return list(titles)


def pages_of_passages(sets: Sequence[Sequence[Passage]], source: random.Random) -> Iterator[Page]:
    """Pages of a passage of any set and others of the same set, of the same title where there are such."""
    titles = group_by_title(sets)
    sizes = [len(passages) for passages in sets]
    while True:
        (index,) = source.choices(range(len(sets)), sizes)
        passage = source.choice(sets[index])
        near = titles[index][passage.title]
        pool = near if passage.title and len(near) > MAX_OTHERS else sets[index]
        is_long = source.random() < LONG
        count = 40 if is_long else source.choice((0, 1, 2, 2, 3, 3))
        others = [item for item in source.sample(pool, min(count, len(pool))) if item is not passage]
        size = source.randint(MAX_CHARACTERS, MAX_LONG) if is_long else MAX_CHARACTERS
        yield _page(passage, others, pool, size, source)


def _page(
    passage: Passage, others: Sequence[Passage], pool: Sequence[Passage], size: int, source: random.Random
) -> Page:
    own = [passage, *others]
    while sum(len(entry.text) for entry in own) > size and len(own) > 1:
        own.pop()
    source.shuffle(own)
    asked, texts, begins = list[Asked](), list[str](), 0
    for item in own:
        asked += [_move(one, begins) for one in item.asked]
        texts.append(item.text)
        begins += len(item.text) + 2
    text = "\n\n".join(texts)
    present = source.sample(asked, min(MAX_ASKED, len(asked)))
    candidates = [
        one
        for entry in source.sample(pool, min(TRIED, len(pool)))
        if entry not in own
        for one in entry.asked
        if one.answer.lower() not in text.lower()
    ]
    words = telling(text)
    candidates.sort(
        key=lambda candidate: len(words & telling(candidate.problem)) / (len(telling(candidate.problem)) or 1)
    )
    absent = [Asked(candidate.problem) for candidate in candidates[::-1][: source.choice((1, 2, MAX_ABSENT))]]
    some = source.sample(asked, min(MAX_EXCHANGED, len(asked)))
    exchanged = [other for one in some if (other := exchange(one, text, source))]
    return Page(text, (*present, *absent, *exchanged))


def exchange(asked: Asked, text: str, source: random.Random) -> Asked | None:
    """A question about another name or number of the text, if no sentence with it has much of the rest."""
    _, _, rest = asked.problem.partition(" ")  # the first word of a sentence is no name
    names = [item for item in NAME.findall(rest) if item in text]
    if not names:
        return None
    name = source.choice(names)
    others = {item for item in NAME.findall(text) if item[0].isdigit() == name[0].isdigit()}
    other = source.choice(
        sorted(item for item in others if item not in asked.problem and item not in name) or [""]
    )
    problem = asked.problem.replace(name, other)
    words = telling(problem) - telling(other)
    near = [text[a:b] for a, b in sentences_of(text) if other in text[a:b]]
    if not other or any(2 * len(words & telling(item)) > len(words) for item in near):
        return None
    return Asked(problem)


def _move(asked: Asked, by: int) -> Asked:
    return Asked(asked.problem, asked.answer, tuple((a + by, b + by) for a, b in asked.spans))


def pages_of_hops(rows: Sequence[dict[str, Any]], source: random.Random) -> Iterator[Page]:
    """HotpotQA's questions on what they need and others of its ten paragraphs; one in four lacks some."""
    while True:
        row = source.choice(rows)
        needed = defaultdict(set)  # type: defaultdict[str, set[int]]
        for title, sentence in row["supporting_facts"]:
            needed[title].add(sentence)
        lacks = source.random() < 0.25
        own = [paragraph for paragraph in row["context"] if paragraph[0] in needed]
        if lacks:
            own = own[:-1] if source.random() < 0.5 else own[1:]
        rest = [paragraph for paragraph in row["context"] if paragraph[0] not in needed]
        count = source.choice((len(rest), source.randint(1, MAX_OTHERS)))
        own += source.sample(rest, min(len(rest), count))
        source.shuffle(own)
        text, spans = "", list[Span]()
        for title, lines in own:
            text += f"\n\n{title}\n" if text else f"{title}\n"
            for index, line in enumerate(lines):
                begin = len(text)
                text += f"{'' if text[-1].isspace() else ' '}{line.strip()}"
                spans += [(begin, len(text))] if index in needed.get(title, ()) else []
            text = text.rstrip()
        answer = row["answer"]
        if len(text) > MAX_LONG or len(answer) > MAX_ANSWER:
            continue
        if lacks and answer in text and answer not in ("yes", "no"):
            continue
        yield Page(text, (Asked(row["question"], "" if lacks else answer, tuple(spans)),))


def pages_of_needles(novels: Sequence[Path], source: random.Random) -> Iterator[Page]:
    """RULER's needles in a few sentences of novels, noise or other needles; one in five is not there."""
    recipes = [
        Recipe(length_tokens=tokens, seed=source.randrange(10**6), absent=0.2,
               corpora=Corpora((("essays", novel),)))
        for novel in novels
        for tokens in (450, 700, 2500)
    ]  # fmt: skip
    for index in range(10**9):
        name, recipe = source.choice(list(VARIANTS)), source.choice(recipes)
        example = TASKS[name].make(recipe, index)
        spans = [
            (at, at + len(fact)) for fact in example.evidence if (at := example.document.find(fact)) >= 0
        ]
        answer = ", ".join(example.answers) if spans else ""
        yield Page(example.document, (Asked(example.problem, answer, tuple(spans)),))


def lessons(page: Page, form: str, prompts: Prompts, source: random.Random) -> Iterator[Conversation]:
    """The conversations of a lesson on a page: notes, or answers from the `whole` of it or from `some`."""
    prompts = prompts.for_document(text_document(page.text, is_example=True).mark, asks=False)
    if form == "note":
        yield from _notes(page, prompts, source)
        return
    shown, spans = (page.text, [(0, len(page.text))]) if form == "whole" else _some(page, source)
    for question in page.asked:
        held = question.answer and all(any(_meets(one, other) for other in spans) for one in question.spans)
        if held or not (question.answer and question.answer in shown):
            yield _lesson(
                "answer",
                prompts.fill("answer", problem=question.problem, memory=shown),
                question.answer if held else NOT_THERE,
            )


def _notes(page: Page, prompts: Prompts, source: random.Random) -> Iterator[Conversation]:
    """What some chunks of a page say in answer to its questions, and to some that they do not answer."""
    chunks = [(0, 0)]
    for _, end in sentences_of(page.text):
        begin, middle = chunks[-1]
        if middle > begin and end - begin > NOTED_CHARACTERS:
            begin = middle
            chunks.append((begin, end))
        chunks[-1] = (begin, end)
    needed = [item for item in chunks if any(_meets(item, span) for one in page.asked for span in one.spans)]
    others = [item for item in chunks if item not in needed]
    chosen = source.sample(needed, min(MAX_NOTED, len(needed))) + source.sample(others, min(1, len(others)))
    for chunk in chosen:
        shown, idle = page.text[slice(*chunk)].strip(), 0
        for question in page.asked:
            spans = [span for span in question.spans if _meets(chunk, span)]
            idle += not spans
            if spans or idle <= MAX_IDLE:
                note = " ".join(
                    _sentence(page.text, question, span, MAX_NOTE // len(spans)) for span in spans
                )
                yield _lesson(
                    "update", prompts.fill("note", problem=question.problem, chunk=shown), note or NOT_THERE
                )


def _meets(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _sentence(text: str, asked: Asked, span: Span, size: int) -> str:
    """The sentence at a span, or as much of it as fits around the answer."""
    begin, end = next((sentence for sentence in sentences_of(text) if _meets(sentence, span)), span)
    whole = " ".join(text[begin:end].split())
    if len(whole) <= size:
        return whole
    spare = max(0, whole.find(asked.answer) + len(asked.answer) - size * 3 // 4) if asked.answer else 0
    begin = whole.rfind(" ", 0, spare) + 1 if spare else 0
    return whole[begin : begin + size].rpartition(" ")[0]


def _some(page: Page, source: random.Random) -> tuple[str, list[Span]]:
    """Some of the sentences of a page as finds are shown, and their places."""
    every = sentences_of(page.text)
    wanted = [span for one in page.asked for span in one.spans if source.random() < HELD]
    chosen = {at for at, item in enumerate(every) if any(_meets(item, other) for other in wanted)}
    spare = [at for at in range(len(every)) if at not in chosen]
    source.shuffle(spare)
    count, problems = (
        source.randint(MIN_SPARE, MAX_SPARE),
        [telling(question.problem) for question in page.asked],
    )
    texts = [" ".join(page.text[a:b].split()) for a, b in every]
    shared = [max(len(words & problem) for problem in problems) for words in map(telling, texts)]
    likely = sorted(spare, key=shared.__getitem__, reverse=True)
    shown = sorted(chosen.union(likely[: count // 2], spare[: count - count // 2]))
    pairs = [shown[at : at + 2] for at in range(0, len(shown), 2)]
    lines = (" ".join(texts[at] for at in pair) for pair in pairs)
    return "\n".join(f"- {line}" for line in lines), [every[at] for at in shown]


def _lesson(kind: Literal["update", "answer"], messages: tuple[Message, ...], reply: str) -> Conversation:
    return Conversation(kind, None, messages, Completion(reply), "")


def examples(
    sets: Sequence[Sequence[Passage]], rows: Sequence[dict[str, Any]], source: random.Random
) -> Iterator[Example]:
    """Documents of four to eight chunks for reinforcement; one in five lacks the answer."""
    for index in range(10**9):
        lacks = index % 5 == 4
        if index % 2:
            row = source.choice(rows)
            needed = {title for title, _ in row["supporting_facts"]} if lacks else set()
            texts = [f"{title}\n{''.join(lines)}" for title, lines in row["context"] if title not in needed]
            problem, answers = row["question"], [row["answer"]]
        else:
            (passages,) = source.choices(sets, [len(item) for item in sets])
            own, *others = source.sample(passages, source.randint(8, 14))
            question = source.choice(own.asked)
            texts = [other.text for other in (others if lacks else [own, *others])]
            problem, answers = question.problem, [question.answer]
        source.shuffle(texts)
        document = "\n\n".join(texts)
        tokens = estimate_tokens(document)
        if not MIN_CHUNKS <= tokens / NOTED_TOKENS <= MAX_CHUNKS or (lacks and answers[0] in document):
            continue
        gold = ABSENT_ANSWERS if lacks else tuple(answers)
        yield Example(f"example-{index}", "reader", problem, document, gold, tokens)


async def write(pages: dict[str, Iterator[Page]], count: int, seed: int) -> AsyncIterator[Trajectory]:
    """So many pages' lessons."""
    source, prompts = random.Random(seed), load_prompts(HERE / "prompts.toml")
    for index in range(count):
        (of,) = source.choices(list(SHARES), list(SHARES.values()))
        form = source.choice(FORMS)
        conversations = tuple(lessons(next(pages[of]), form, prompts, source))
        if conversations:
            yield Trajectory(f"{of}-{form}-{index}", conversations, "", reward=1.0)


def main() -> None:
    """Write the lessons."""
    parser = parser_of(__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="pages (20,000)")
    asked = parser.parse_args()
    rows = load_rows(asked.hotpot, asked.wiki_hops)
    sets, source = load_passages(asked.sources), random.Random(f"pages/{asked.seed}")
    pages = {
        "passages": pages_of_passages(sets, source),
        "hops": pages_of_hops(rows, source),
        "needles": pages_of_needles(asked.novels, source),
    }
    print(asyncio.run(write_trajectories(asked.out, write(pages, asked.count, asked.seed))), "pages")
    if asked.examples:
        every = examples(sets, rows, random.Random(f"examples/{asked.seed}"))
        print(write_examples(asked.examples, islice(every, EXAMPLES)), "examples")


if __name__ == "__main__":
    main()
