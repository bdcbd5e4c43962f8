"""The same three examples as a task of inspect_ai."""

from __future__ import annotations

import sys
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

sys.path.insert(0, str(Path(__file__).parent))  # inspect_ai loads this file alone

from needles import needles


@task
def needle() -> Task:
    """A number in a long text, whose tags tell it from the question."""
    samples = [
        Sample(input=f"<text>\n{item['text']}\n</text>\n\n{item['question']}", target=item["answer"])
        for item in needles()
    ]
    return Task(dataset=samples, solver=generate(), scorer=includes())
