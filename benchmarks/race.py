"""The race: which way to read pays for which kind of question, at which length.

    python benchmarks/race.py read --model MODEL.gguf --hotpot hotpot_dev_distractor.jsonl.gz
        --shifts new_wiki.jsonl.gz --out race.jsonl
    python benchmarks/race.py read --model NAME --base-url http://localhost:8000/v1 ...
    python benchmarks/race.py table race.jsonl [--plot race.png]

`read` adds the rows that `--out` lacks, so it can be stopped at any time; `--kinds`, `--tokens`, `--readers`
and `--questions` choose some. All questions of a kind and a length are asked of one document, and what
several of them are shown of it is computed once. All readers have the same model, greedy, and 64 tokens for
an answer; other people's libraries have 1,024 for each reply.

Kinds: `text's words` (SQuADShifts) and `two hops` (HotpotQA), both with a third of the questions on what is
left out; `up to four hops` likewise (MuSiQue, if --musique names its file); `needles` (RULER's, among essays,
and others that are not there); `other words`, `last state` and `several places` (our own set, on texts of 11K
to 24K tokens); `yes or no` (eight of each, on the story in examples/); `counts` (our letters, see tally.py).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import other_words
import real_models
import story
import tally_corpora
import verdicts
from contestants import Endpoint
from measure import STORY, append_row, load_rows, make_parser, table
from real_models import Peers, Reader, Row, read_theirs
from retrieval import RETRIEVERS, Memo, answer_as_agent
from tally import is_exact

from memagent import open_engine
from memagent.documents.tokens import estimate_tokens
from memagent.evaluation.statistics import confidence_interval
from memagent.tasks.corpora import Corpus
from memagent.tasks.needle import Needles, draw, make
from memagent.tasks.passages import load_passages
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.types import Example

KINDS = (
    "text's words", "two hops", "up to four hops", "needles",
    "other words", "last state", "several places", "yes or no", "counts",
)  # fmt: skip
TOKENS = (8_000, 32_000, 128_000, 512_000)
OWN_KINDS = {
    "other words": ("latent", "paraphrase", "absent"),
    "last state": ("last_state",),
    "several places": ("several",),
}
OURS: dict[str, dict[str, Any]] = {
    **{name: verdicts.OURS[name] for name in ("default", "default, all judged", "question as note")},
    "default, two rounds": {"workflow": "auto", "rounds": 2},
    **{name: {"workflow": name} for name in ("notes", "overwrite", "parallel", "map_reduce", "tally")},
    **{name: verdicts.OURS[name] for name in ("rag", "full")},
}
LLAMAINDEX = Reader("LlamaIndex tree", peer=("llamaindex", "tree_summarize", "llamaindex"), chunk_tokens=1000)
PEERS = {reader.name: reader for reader in (*real_models.LANGCHAIN, LLAMAINDEX)}
READERS = (*OURS, *RETRIEVERS, "agent", *PEERS)

Cell = tuple[str, str, int]
"""A model, a kind of question, and how many tokens the document has."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The questions of a kind on documents of about so many tokens; `score` is for answers beyond words."""

    kind: str
    tokens: int
    examples: tuple[Example, ...]
    score: Mapping[str, Callable[[str], float]]


def mix(
    kind: str,
    tokens: int,
    asked: Sequence[tuple[str, tuple[str, ...], Sequence[str]]],
    absent: Sequence[tuple[str, Sequence[str]]],
    pool: Sequence[str],
    source: random.Random,
) -> Heat:
    """One document: the paragraphs that the questions need, none of those of `absent`, and others."""
    left_out = {text for _, texts in absent for text in texts}
    needed = list(dict.fromkeys(text for *_, texts in asked for text in texts))
    texts, length = needed, sum(map(estimate_tokens, needed))
    for text in source.sample(pool, len(pool)):
        if length >= tokens:
            break
        if text not in left_out and text not in needed:
            texts.append(text)
            length += estimate_tokens(text)
    source.shuffle(texts)
    document = "\n\n".join(texts)
    questions = [(problem, answers) for problem, answers, _ in asked]
    questions += [(problem, ABSENT_ANSWERS) for problem, _ in absent]
    return hold(kind, tokens, document, questions)


def hold(kind: str, tokens: int, document: str, questions: Sequence[tuple[str, tuple[str, ...]]]) -> Heat:
    """Questions on one document."""
    length = estimate_tokens(document)
    examples = (
        Example(f"{kind}-{tokens}-{number}", kind, problem, document, answers, length)
        for number, (problem, answers) in enumerate(questions)
    )
    return Heat(kind, tokens, tuple(examples), {})


def ask_text_words(args: argparse.Namespace, tokens: int) -> Heat:
    """SQuADShifts' questions; those without an answer are asked of paragraphs that are left out."""
    everything, source = load_rows(args.shifts), random.Random(args.seed)
    rows = source.sample(real_models.choose_untried(everything), 3 * args.questions // 2)
    asked = []
    for row in rows[: args.questions]:
        entry = source.choice(row["qas"])
        asked.append((entry["question"], real_models.answers_of(entry), [row["context"].strip()]))
    absent = [
        (source.choice(row["qas"])["question"], [row["context"].strip()]) for row in rows[args.questions :]
    ]
    pool = [row["context"].strip() for row in everything]
    return mix("text's words", tokens, asked, absent, pool, source)


def ask_two_hops(args: argparse.Namespace, tokens: int) -> Heat:
    """HotpotQA's questions; the paragraphs beside those that are needed are its own distractors."""
    everything, source = real_models.load_hotpot(args.hotpot), random.Random(args.seed)
    rows = source.sample(everything, 3 * args.questions // 2)
    paragraphs = (paragraph for row in everything for paragraph in row["context"])
    texts = {title: real_models.join_paragraph(title, sentences) for title, sentences in paragraphs}
    needed = [
        [texts[title] for title in dict.fromkeys(fact[0] for fact in row["supporting_facts"])] for row in rows
    ]
    asked = [(row["question"], (row["answer"],), own) for row, own in zip(rows, needed, strict=True)]
    absent = [(problem, own) for problem, _, own in asked[args.questions :]]
    return mix("two hops", tokens, asked[: args.questions], absent, sorted(texts.values()), source)


def ask_up_to_four_hops(args: argparse.Namespace, tokens: int) -> Heat:
    """MuSiQue's questions; the passages beside those that are needed are its own distractors."""
    passages, source = load_passages(Corpus("musique", args.musique, "given")), random.Random(args.seed)
    chosen = source.sample(passages.questions, 3 * args.questions // 2)
    asked = [(question.problem, question.answers, list(question.gold)) for question in chosen]
    absent = [(problem, own) for problem, _, own in asked[args.questions :]]
    return mix("up to four hops", tokens, asked[: args.questions], absent, passages.pool, source)


def ask_needles(args: argparse.Namespace, tokens: int) -> Heat:
    """As many needles as questions in one text of essays; half as many keys are asked for that it lacks."""
    needles = Needles("essay", keys=args.questions)
    text = make("needles", needles, Recipe(length_tokens=tokens, seed=args.seed), 0).document
    values = dict(re.findall(r"magic numbers for (\S+) is: (\d+)\.", text))
    source = random.Random(args.seed)
    unknown = [key for _ in range(args.questions // 2) if (key := draw("words", source)) not in values]
    ask = "Which special magic number does the text give for {}?".format
    questions = [(ask(key), (value,)) for key, value in sorted(values.items())]
    return hold("needles", tokens, text, [*questions, *((ask(key), ABSENT_ANSWERS) for key in unknown)])


def ask_counts(args: argparse.Namespace, tokens: int) -> Heat:
    """Questions that count, over letters with invoices; an answer has to say exactly what is expected."""
    text, records = tally_corpora.make(
        tally_corpora.INVOICES, tokens, max(10, min(1000, tokens // 200)), args.seed
    )
    asked = tally_corpora.questions(tally_corpora.INVOICES, records)[: args.questions]
    heat = hold("counts", tokens, text, [(question.text, (str(question.expected),)) for question in asked])
    scores = {
        example.id: (lambda answer, expected=question.expected: float(is_exact(answer, expected)))
        for example, question in zip(heat.examples, asked, strict=True)
    }
    return replace(heat, score=scores)


def ask_yes_or_no() -> Heat:
    """Questions on the story, as many to be answered with yes as with no."""
    text = STORY.read_text("utf-8")
    heat = hold(
        "yes or no", 11_000, text, [(question, (word,)) for question, word in story.YES_OR_NO.items()]
    )
    scores = {
        example.id: (lambda answer, word=example.answers[0]: float(first_yes_or_no(answer) == word))
        for example in heat.examples
    }
    return replace(heat, score=scores)


def first_yes_or_no(answer: str) -> str:
    """The first of these words in an answer, or nothing."""
    match = re.search(r"\b(yes|no)\b", answer.casefold())
    return match[1] if match else ""


def ask_own(kind: str) -> Heat:
    """Our own questions of a kind, on texts of their own length."""
    examples = (
        replace(example, task=kind)
        for question, example in other_words.examples_for_tests()
        if question.kind in OWN_KINDS[kind]
    )
    return Heat(kind, 16_000, tuple(examples), {})


def heats(args: argparse.Namespace) -> Iterator[Heat]:
    """All that is asked, the shorter documents first."""
    makers = {
        "text's words": ask_text_words,
        "two hops": ask_two_hops,
        "up to four hops": ask_up_to_four_hops,
        "needles": ask_needles,
        "counts": ask_counts,
    }
    yield from (ask_own(kind) for kind in OWN_KINDS if kind in args.kinds)
    if "yes or no" in args.kinds:
        yield ask_yes_or_no()
    for tokens in args.tokens:
        yield from (makers[kind](args, tokens) for kind in makers if kind in args.kinds)


@asynccontextmanager
async def open_model(args: argparse.Namespace) -> AsyncIterator[tuple[Memo, Peers | None]]:
    """The engine of a file or an endpoint, and other people's readers of the same model."""
    if args.model.endswith(".gguf") and not args.dtype:
        async with real_models.opened(Path(args.model), None) as (engine, theirs):
            yield Memo(engine), theirs
        return
    if args.dtype:
        settings = real_models.settings_of(Path(args.model), args.dtype)
    else:
        settings = real_models.settings_of_endpoint(args.model, args.base_url)
    name = "memagent" if args.dtype else args.model  # `memagent serve` has this name for any model
    others = Peers(Endpoint(args.base_url, name)) if args.base_url else None
    async with open_engine(settings) as engine:
        try:
            yield Memo(engine), others
        finally:
            if others:
                others.close()


def can_read(name: str, heat: Heat, others: Peers | None) -> bool:
    """Whether a reader is for a kind and this model, and whether the documents fit if it wants them whole."""
    if name in PEERS and others is None:
        return False
    if name == "tally":
        return heat.kind == "counts"
    return Reader(name).can_read(max(heat.examples, key=lambda example: example.length_tokens))


async def read(args: argparse.Namespace) -> None:
    """Read what is missing in the file of rows."""
    args.out.touch()  # what cannot be written fails now
    done = {(row["model"], row["reader"], row["id"]) for row in load_rows(args.out)}
    model = real_models.name_of(args.model, args.dtype)
    async with open_model(args) as (engine, others):
        for heat in heats(args):
            for name in (name for name in args.readers if can_read(name, heat, others)):
                missing = [example for example in heat.examples if (model, name, example.id) not in done]
                for _, group in groupby(missing, key=lambda example: example.document):
                    for row in await read_with(engine, others, name, list(group), model):
                        if row.id in heat.score:
                            row.score = 0.0 if row.error else heat.score[row.id](row.prediction)
                        append_row(args.out, asdict(row) | {"kind": heat.kind, "tokens": heat.tokens})
                print(heat.kind, heat.tokens, name, len(missing), file=sys.stderr, flush=True)


async def read_with(
    engine: Memo, others: Peers | None, name: str, examples: list[Example], model: str
) -> list[Row]:
    """Read one document for its questions with the reader of that name."""
    if name == "agent":
        return [await answer_as_agent(engine.engine, example, model) for example in examples]
    if others is not None and name in PEERS:
        return list(read_theirs(others, model, PEERS[name], examples))
    return await verdicts.read_with(engine, Reader(name, OURS.get(name)), examples, model)


def by_cell(rows: Sequence[dict[str, Any]]) -> dict[Cell, dict[str, list[dict[str, Any]]]]:
    """The rows of each model, kind and length, by reader."""
    names = real_models.names_of(rows, READERS)
    cells: dict[Cell, dict[str, list[dict[str, Any]]]] = {}
    for cell in sorted({_cell_of(row) for row in rows}, key=_order):
        own = [row for row in rows if _cell_of(row) == cell]
        readers = {name: [row for row in own if row["reader"] == name] for name in names}
        cells[cell] = {name: group for name, group in readers.items() if group}
    return cells


def _cell_of(row: dict[str, Any]) -> Cell:
    return row["model"], row["kind"], row["tokens"]


def _order(cell: Cell) -> tuple[str, int, int]:
    model, kind, tokens = cell
    return model, KINDS.index(kind), tokens


def print_tables(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table for each model, kind and length: what is right, with its interval, and what it took."""
    columns = ["reader", "right", "95%", "invented", "declined", "calls", "tokens", "seconds"]
    for (model, kind, tokens), readers in by_cell(rows).items():
        print(f"\n{model}: {kind}, {tokens:,} tokens\n")
        print(table(columns, [[name, *_told(group)] for name, group in readers.items()]))


def _told(rows: Sequence[dict[str, Any]]) -> list[str]:
    answered = [row for row in rows if not row["absent"]]
    absent = [row for row in rows if row["absent"]]
    scores = [row["score"] for row in answered]
    low, high = confidence_interval(scores)
    spent = [(row["prompt_tokens"] or 0) + (row["completion_tokens"] or 0) for row in rows]
    return [
        f"{sum(scores):g} of {len(scores)}",
        f"{low:.0%} to {high:.0%}",
        f"{sum(not row['declined'] for row in absent)} of {len(absent)}" if absent else "",
        f"{sum(row['declined'] for row in answered)}",
        f"{fmean(row['calls'] or 0 for row in rows):.0f}",
        f"{fmean(spent):,.0f}" if any(spent) else "",
        f"{fmean(row['seconds'] for row in rows):.1f}",
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the share that is right as a map: readers by kinds and lengths, the models side by side."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    cells = by_cell(rows)
    readers = real_models.names_of(rows, READERS)
    figure, axes = plt.subplots(figsize=(1.1 * len(cells) + 3, 0.42 * len(readers) + 2), layout="constrained")
    for column, group in enumerate(cells.values()):
        shares = {
            name: fmean(row["score"] for row in own if not row["absent"]) for name, own in group.items()
        }
        for name, share in shares.items():
            line = readers.index(name)
            axes.add_patch(Rectangle((column, line), 1, 1, color=plt.cm.Blues(0.1 + 0.8 * share), lw=0))
            weight = "bold" if share == max(shares.values()) > 0 else "normal"
            shade = "white" if share > 0.55 else "black"
            middle = column + 0.5, line + 0.5
            axes.text(*middle, f"{share:.0%}", ha="center", va="center", color=shade, weight=weight)
    axes.set(xlim=(0, len(cells)), ylim=(len(readers), 0))
    names = [f"{kind}\n{tokens // 1000}K" for _, kind, tokens in cells]
    models = [model for model, *_ in cells]
    for model in dict.fromkeys(models):
        first, count = models.index(model), models.count(model)
        axes.axvline(first, color="white", lw=6)
        axes.annotate(
            fill(model, 12 * count), (first + count / 2, 0), (0, 34),
            textcoords="offset points", ha="center", va="bottom", weight="bold",
        )  # fmt: skip
    axes.set_xticks([column + 0.5 for column in range(len(cells))], names)
    axes.set_yticks([line + 0.5 for line in range(len(readers))], readers)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=160)


def main() -> None:
    """Do what is asked."""
    parser = make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reads, tables = commands.add_parser("read"), commands.add_parser("table")
    reads.add_argument("--model", required=True, help="a GGUF, or the name of a model at --base-url")
    reads.add_argument(
        "--base-url",
        help="an OpenAI-compatible endpoint, its key in MEMAGENT_API_KEY; with --dtype, `memagent "
        "serve` with the same file, for other people's readers",
    )
    real_models.add_dtype(reads)
    real_models.add_sources(reads)
    reads.add_argument("--musique", type=Path, help="MuSiQue, for questions of up to four hops")
    reads.add_argument("--kinds", nargs="+", choices=KINDS, help="all for which there are files")
    reads.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    reads.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    reads.add_argument("--questions", type=int, default=24, help="of a kind and a length, without the absent")
    reads.add_argument("--seed", type=int, default=real_models.SEED)
    reads.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    tables.add_argument("rows", type=Path)
    tables.add_argument("--plot", type=Path, help="an image")
    args = parser.parse_args()
    if args.command == "read":
        args.kinds = args.kinds or [kind for kind in KINDS if args.musique or kind != "up to four hops"]
        if "up to four hops" in args.kinds and not args.musique:
            parser.error("questions of up to four hops need --musique")
        asyncio.run(read(args))
    else:
        rows = load_rows(args.rows)
        print_tables(rows)
        if args.plot:
            plot(rows, args.plot)


if __name__ == "__main__":
    main()
