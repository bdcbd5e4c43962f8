"""Drop the questions that a model answers without the document.

MemAgent trains on HotpotQA questions among 200 documents, `hqa` made from the train split, without those
that its base model answers closed-book (best of two; arXiv 2507.02259, section 4.1). Its test questions are
those of the dev split's first 200 that neither Qwen2.5-7B nor its Instruct version answers closed-book.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from memagent.concurrency import in_thread, side_by_side
from memagent.prompts.thoughts import without_thought
from memagent.tasks.files import line_of, load_examples, new_file
from memagent.tasks.scoring import score_reply
from memagent.types import Engine, Example, Message, Sampling

_SAMPLING = Sampling(256, temperature=1.0, thinking=False)


@dataclass(frozen=True, slots=True)
class ClosedBook:
    """How to ask a model without the document: with `attempts` at each question.

    A question is known if any attempt scores 1 by `scorer`. At temperature 0, all attempts are alike.
    """

    attempts: int = 2
    scorer: str = "substring_match"
    sampling: Sampling = _SAMPLING

    async def knows(self, engine: Engine, example: Example) -> bool:
        """Whether any attempt answers the question. Raises `EngineError`."""
        for attempt in range(self.attempts):
            seed = self.sampling.seed
            sampling = replace(self.sampling, seed=None if seed is None else seed + attempt)
            completion = await engine.complete((Message("user", example.problem),), sampling)
            if score_reply(self.scorer, without_thought(completion.text), example.answers) == 1:
                return True
        return False


async def write_unknown(
    path: Path, out: Path, engine: Engine, asking: ClosedBook, count: int | None = None
) -> tuple[int, int]:
    """Write the examples of a file that the model does not know, at most `count`, to another.

    Returns how many were written and how many were asked. Raises `SettingsError`, and `EngineError` if a call
    fails for good: a question that could not be asked is not "unknown".
    """

    async def judge(example: Example) -> tuple[Example, bool]:
        return example, await asking.knows(engine, example)

    kept = asked = 0
    examples = in_thread(load_examples(path))
    with new_file(out) as file:
        async with aclosing(side_by_side(judge, examples, engine.model.calls)) as verdicts:
            async for example, known in verdicts:
                asked += 1
                if not known:
                    kept += 1
                    file.write(line_of(example))
                if kept == count:
                    break
    return kept, asked
