"""One attempt of a reader at an example, as a row."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import asdict, dataclass

from memagent.engines import choose
from memagent.errors import MemAgentError
from memagent.evaluation.plan import Plan, Work
from memagent.evaluation.readers import READERS, Attempt, answer_of
from memagent.evaluation.rows import EvaluationRow
from memagent.settings import Settings
from memagent.tasks.scoring import SCORERS, extract_answer
from memagent.types import Conversation, Engine, Example

# These look for answers in the whole reply; the others compare them with the answer that it gives.
_SEE_THE_REPLY = ("string_match_all", "string_match_part", "rouge_l")
_SLOTS = {"openai": 16}  # what engines take where --concurrency is not given; 1 elsewhere


def slots(settings: Settings) -> int:
    """How many attempts go on side by side: as many as the engine takes calls."""
    return settings.concurrency or _SLOTS.get(choose(settings).engine, 1)


async def attempt_row(
    plan: Plan, settings: Settings, engine: Engine, item: tuple[Work, Example, str, int]
) -> EvaluationRow:
    """One attempt, as a row. The one place where the failure of a read is recorded and the run goes on."""
    work, example, reader, sample = item
    counts, last, prediction = _Counts(), None, ""
    failure: MemAgentError | None = None
    started = time.perf_counter()
    attempt = Attempt(
        problem=example.problem,
        document=example.document,
        engine=engine,
        settings=plan.settings_for(work.cell.task, sample, settings),
        retrieval=plan.retrieval,
    )
    try:
        async with aclosing(READERS[reader].run(attempt)) as conversations:
            async for last in conversations:
                counts.add(last)
        prediction = answer_of(last)
    except MemAgentError as error:
        failure = error
    seconds = time.perf_counter() - started
    return EvaluationRow(
        task=work.cell.task,
        length=work.cell.length,
        documents=work.cell.documents,
        index=work.index,
        reader=reader,
        sample=sample,
        example_id=example.id,
        score=0.0 if failure else score(plan.scorer_of(work.cell.task), prediction, example.answers),
        prediction=prediction,
        answers=example.answers,
        error=str(failure) if failure else None,
        cause=type(failure).__name__ if failure else None,
        length_tokens=example.length_tokens,
        depth=depth(example),
        seconds=round(seconds, 3),
        **asdict(counts),
    )


@dataclass(slots=True)
class _Counts:
    """What the conversations of an attempt cost."""

    calls: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, conversation: Conversation) -> None:
        completion = conversation.completion
        self.calls += 1
        self.cut += completion.finish_reason == "length"
        self.prompt_tokens += completion.usage.prompt_tokens
        self.completion_tokens += completion.usage.completion_tokens


def score(scorer: str, prediction: str, answers: tuple[str, ...]) -> float:
    """What a prediction is worth, 0 to 1; most scorers see just the answer in the reply."""
    text = prediction if scorer in _SEE_THE_REPLY else extract_answer(prediction)
    return SCORERS[scorer](text, answers)


def depth(example: Example) -> float | None:
    """Where the one answer stands in the document, 0 to 1; None if not just once, or not literally."""
    if len(example.answers) != 1 or not example.answers[0]:
        return None
    first = example.document.find(example.answers[0])
    if first < 0 or example.document.find(example.answers[0], first + 1) >= 0:
        return None
    return round(first / len(example.document), 4)
