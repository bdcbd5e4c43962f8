"""Three made-up examples, each a number hidden in a text, for trying a harness out without a data set."""

from __future__ import annotations

import random
from typing import Any

_FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def needles(paragraphs: int = 120) -> list[dict[str, str]]:
    """Examples of so many paragraphs each: a text, a question and the answer."""
    examples = []
    for seed, key in enumerate(("lantern", "harbour", "violin")):
        chance = random.Random(seed)
        number = str(chance.randrange(10**6, 10**7))
        lines = [_FILLER] * paragraphs
        lines.insert(chance.randrange(paragraphs), f"The special magic number for {key} is: {number}.")
        question = f"What is the special magic number for {key}?"
        examples.append({"text": "\n\n".join(lines), "question": question, "answer": number})
    return examples


def lm_eval_data(**model_args: Any) -> dict[str, Any]:
    """The examples as lm-eval takes them; it passes the model's arguments, which change nothing."""
    import datasets

    return {"test": datasets.Dataset.from_list(needles())}
