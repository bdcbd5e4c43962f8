"""A real instruct model that nobody trained for this reads a report with the defaults: `make test-model`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = Path(__file__).parent / "data" / "lighthouse.md"
QUESTIONS = {
    "Who cleaned the prisms of the lens?": "Dask",
    "Where was the compressor of the foghorn sent?": "Gdansk",
    "Which birds nest on the northern ledge?": "falcon",
    "How many steps do the spiral stairs have?": "144",
    "How much money did the Society of Pilots give?": "400,000",
    "Which airline flies to Reykjavik on Mondays?": None,
}
"""With a word of the answer, or None where the report has none."""


@pytest.mark.model
def test_a_small_instruct_model_answers_with_the_defaults(tmp_path: Path) -> None:
    question_flags = [word for question in QUESTIONS for word in ("-q", question)]
    words = [
        "ask",
        *question_flags,
        str(REPORT),
        "--model",
        os.environ["REAL_MODEL"],
        "--no-discover",
        "--json",
        "--cite",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "memagent", *words, "--trace", str(tmp_path / "trace.jsonl")],
        capture_output=True,
        text=True,
        check=True,
    )
    results = {result["problem"]: result for result in map(json.loads, done.stdout.splitlines())}
    right = {
        question: (word in results[question]["answer"]) if word else not results[question]["found"]
        for question, word in QUESTIONS.items()
    }
    assert sum(right.values()) >= 5, [
        (question, results[question]["answer"]) for question, ok in right.items() if not ok
    ]
    # Whether an answer is in the document's own words differs between processors; else it shows the nearest.
    text = REPORT.read_text("utf-8")
    for question, word in QUESTIONS.items():
        statements = results[question]["statements"]
        sources = [
            source
            for statement in statements
            for source in ([statement["source"]] if statement["source"] else statement["nearest"])
        ]
        assert all(text[source["start"] : source["end"]] == source["excerpt"] for source in sources)
        if word and right[question]:
            assert any(word in source["excerpt"] for source in sources), question
