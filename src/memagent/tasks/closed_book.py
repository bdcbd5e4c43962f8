"""What a training set needs beyond `examples`: dropping the questions that a model knows by heart.

MemAgent trains on HotpotQA questions among 200 documents, `hqa` made from the train split, without those that
its base model answers with no document at all (best of two; arXiv 2507.02259, section 4.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from memagent.tasks.scoring import SCORERS, Scorer, extract_answer
from memagent.types import Engine, Example, Message, Sampling

_SAMPLING = Sampling(max_tokens=256, temperature=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedBook:
    """How a model is asked without the document: `attempts` times each, `concurrency` questions at once.

    A question is known if any attempt scores `known` or more. At temperature 0 all attempts are the same.
    """

    attempts: int = 2
    scorer: Scorer = SCORERS["substring_match"]
    known: float = 1.0
    sampling: Sampling = _SAMPLING
    concurrency: int = 16


async def unknown(
    examples: Iterable[Example], engine: Engine, quiz: ClosedBook
) -> AsyncGenerator[Example, None]:
    """The examples whose questions the model does not answer without the document, in their order.

    Raises `EngineError` where a call fails for good: what could not be asked is not taken for unknown.
    """
    source = iter(examples)
    while batch := list(islice(source, quiz.concurrency)):
        scores = await asyncio.gather(*(best_by_heart(example, engine, quiz) for example in batch))
        for example, score in zip(batch, scores, strict=True):
            if score < quiz.known:
                yield example


async def best_by_heart(example: Example, engine: Engine, quiz: ClosedBook) -> float:
    """The best score of the attempts at the question alone. Raises `EngineError`."""
    best = 0.0
    for attempt in range(quiz.attempts):
        seed = quiz.sampling.seed
        sampling = replace(quiz.sampling, seed=None if seed is None else seed + attempt)
        completion = await engine.complete((Message("user", example.problem),), sampling)
        best = max(best, quiz.scorer(extract_answer(completion.text), example.answers))
        if best >= quiz.known:
            break
    return best
