"""What the tests read: the recipe's folder, and examples with a code in the first chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[2] / "recipes" / "verl"
FILLER = "The wind turned and nobody on the quay had a word to say about it. "


def example(number: int, code: str, sentences: int) -> dict[str, Any]:
    """A row whose document has a code in its first chunk, and then so many sentences of nothing."""
    return {
        "id": f"code-{number}",
        "task": "codes",
        "problem": "What is the code?",
        "document": f"The code is {code}. " + FILLER * sentences,
        "answers": [code],
        "length_tokens": 16 * sentences + 10,
    }
