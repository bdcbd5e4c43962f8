"""An answer in the memory's place, handed from chunk to chunk."""

from __future__ import annotations

from evaluation.measured import story
from facts import FactsEngine
from memagent import ScriptedEngine
from memagent.reading.read import NOT_FOUND
from reading.test_workflows import reading, section


def test_refine_hands_the_answer_from_chunk_to_chunk() -> None:
    replies = iter(f"answer {number}" for number in range(99))
    engine = FactsEngine(lambda messages: next(replies))
    answer, _ = reading("refine", story(), engine)
    shown = [section(prompt, "answer") for prompt in engine.prompts]
    assert shown == ["(no answer yet)", *(f"answer {number}" for number in range(len(shown) - 1))]
    assert "".join(section(prompt, "chunk") for prompt in engine.prompts).count("w0") >= 600
    assert answer == f"answer {len(shown) - 1}" and len(shown) > 4


def test_an_answer_that_was_never_written_is_not_found() -> None:
    for nothing in (" ", "UNCHANGED"):
        silent = ScriptedEngine(lambda messages, nothing=nothing: nothing)
        assert reading("refine", story(30), silent)[0] == NOT_FOUND
