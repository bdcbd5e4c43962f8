"""A universe in PhantomWiki's format, made by hand, becomes examples that `eval` and training read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.tasks import load_examples
from memagent.tasks.scoring import score_reply

SCRIPT = Path(__file__).parents[2] / "recipes" / "phantomwiki.py"
PEOPLE = {"Ada Ervin": "Bo Cater, Cy Cater", "Bo Cater": "Ada Ervin", "Cy Cater": "Ada Ervin"}
QUESTIONS = [
    {
        "id": "q1",
        "question": "Who is the friend of Ada Ervin?",
        "answer": ["Bo Cater", "Cy Cater"],
        "type": 0,
    },
    {"id": "q2", "question": "How many friends does Ada Ervin have?", "answer": ["2"], "difficulty": 2},
    {"id": "q3", "question": "Who is the aunt of Bo Cater?", "answer": []},
]


def test_each_question_with_an_answer_is_an_example_over_all_articles(tmp_path: Path) -> None:
    articles = [
        {"title": name, "article": f"# {name}\n\n## Friends\nThe friend of {name} is {friends}."}
        for name, friends in PEOPLE.items()
    ]
    (tmp_path / "articles.json").write_text(json.dumps(articles), "utf-8")
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS), "utf-8")
    out = tmp_path / "examples.jsonl"
    process = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "--out", out], capture_output=True, text=True, check=True
    )
    assert process.stdout == f"2 examples: {out}\n"
    both, count = load_examples(out)
    assert (both.id, both.task, both.answers) == ("q1", "phantomwiki", ("Bo Cater, Cy Cater",))
    assert count.answers == ("2",)
    assert all(article["article"] in example.document for article in articles for example in (both, count))
    assert both.document != count.document  # each has an order of its own
    assert score_reply("f1", "Cy Cater and Bo Cater", both.answers) > score_reply(
        "f1", "Bo Cater", both.answers
    )
    assert score_reply("f1", "Bo Cater", both.answers) == pytest.approx(2 / 3)
