"""Small examples and hand-made rows for the tests of evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent.evaluation.rows import EvaluationRow
from memagent.storage import read_log
from memagent.types import Spent, unflatten

PROBLEM = "What is the secret code of the lighthouse?"
CODE = "marmalade77"
TAGS = ("chunk", "problem", "memory", "document", "notes", "answer")


def story(words: int = 600, place: float = 0.5, code: str = CODE) -> str:
    """So many words, each unlike the rest, with the code at a place from 0 to 1."""
    before = round(words * place)
    filler = [f"w{number:04}" for number in range(words)]
    fact = f"The secret code of the lighthouse is {code}."
    lines = [" ".join(filler[start : start + 12]) + "." for start in range(0, words, 12)]
    lines.insert(before // 12, fact)
    return "\n".join(lines)


def find_code(messages: Sequence[Mapping[str, str]]) -> str:
    """A model that knows the code if it stands anywhere in the prompt."""
    prompt = messages[-1]["content"]
    matches = re.findall(r"code of the lighthouse is (\w+)", prompt) or re.findall(r"The code: (\w+)", prompt)
    if matches and "ADD" in prompt:
        return f'ADD "code of the lighthouse is {matches[0]}"'
    if matches:
        return f"The code: {matches[0]}"
    return "UNCHANGED" if "UNCHANGED" in prompt else "no idea"


def write_examples(path: Path, count: int, words: int = 200) -> Path:
    """A file of examples, each with a code of its own."""
    rows = [
        {
            "id": f"lamp-{number}",
            "problem": PROBLEM,
            "document": story(words, place=(number % 10) / 10, code=f"code{number:03}"),
            "answers": [f"code{number:03}"],
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def row(**fields: Any) -> EvaluationRow:
    """A row, with what does not matter filled in."""
    usual: dict[str, Any] = {
        "task": "niah_single_1", "length": 2048, "documents": None, "index": 0, "workflow": "gated",
        "sample": 0, "example_id": "", "problem": "", "score": 1.0, "prediction": "", "answers": ("x",),
        "error": None, "cause": None, "calls": 2, "cut": 0, "prompt_tokens": 100, "cached_tokens": 0,
        "completion_tokens": 10, "cost": None,
        "length_tokens": 2000, "depth": None, "captured": None,
        "retained": None, "seconds": 1.0, "critical_path": 2, "chunks": 1, "passed_over": 0,
    }  # fmt: skip
    values = unflatten({**usual, **fields})
    return EvaluationRow(**{**values, "spent": Spent(**values["spent"])})


def header(**fields: Any) -> dict[str, Any]:
    """What stands in run.json, with what does not matter filled in."""
    usual = {
        "version": "0.1.0", "python": "3.12", "created": "2026-11-21T00:00:00Z", "command": "memagent eval",
        "attempts": 1, "model": {"name": "m", "window_tokens": None, "tokenizer": "estimate"}, "prompts": {},
        "plan": {"workflows": ["overwrite", "gated", "full"], "corpora": {}}, "settings": {},
    }  # fmt: skip
    return {**usual, **fields}


def without_times(folder: Path) -> list[str]:
    """The rows of a run as they must always come out: sorted, without the seconds."""
    return sorted(json.dumps({**values, "seconds": 0.0}) for values in read_log(folder / "rows.jsonl"))
