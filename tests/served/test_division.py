"""What of a chat is the problem, and what the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memagent.engines.scripted import count_words
from memagent.server.division import Division, divide, key_of
from memagent.server.errors import ApiError
from memagent.server.schemas import Turn
from memagent.settings import ReadSettings
from memagent.types import Model

LONG = "Call me Ishmael.\n\n" + "Some years ago, never mind how long. " * 40 + "\n\nAnd so it ended."


def turn(role: str, *texts: str) -> Turn:
    """A message of parts, or of one text."""
    content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return Turn.model_validate({"role": role, "content": content})


def division(*turns: Turn, budget: int = 40) -> Division:
    """The division under a budget of words."""
    return divide(turns, budget, count_words)


def test_the_last_user_turn_is_the_problem_and_earlier_turns_are_the_document() -> None:
    chat = (turn("user", LONG), turn("assistant", "I have read it."), turn("user", "Who tells it?"))
    problem, texts = division(*chat).problem, division(*chat).texts
    assert problem == "Who tells it?"
    assert texts == (("conversation", f"User: {LONG}\n\nAssistant: I have read it."),)


def test_a_short_system_message_stands_before_the_problem_a_long_one_is_read() -> None:
    turns = turn("system", "Answer in French."), turn("system", "Be brief."), turn("user", "Who?")
    assert division(*turns) == Division("Answer in French.\n\nBe brief.\n\nWho?")
    read = division(turn("system", LONG), turn("user", "Who?"))
    assert read == Division("Who?", (("conversation", f"System: {LONG}"),))


def test_a_long_part_is_the_document_word_for_word() -> None:
    divided = division(turn("user", LONG, "Who tells it?"))
    assert divided == Division("Who tells it?", (("message", LONG),))
    divided = division(turn("user", "Who tells them?"), turn("user", LONG), turn("user", "Again. " + LONG))
    assert divided.texts == (("message 1", LONG), ("message 2", "Again. " + LONG))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("word " * 200 + "\n\nWho?\n\nWhy?", "Who?\n\nWhy?"),
        ("word " * 200 + "\nWho?\nWhy?", "Who?\nWhy?"),
        ("word " * 200 + ". Tell me.", "Tell me."),
        ("word " * 200, "word " * 40),
    ],
    ids=["paragraphs", "lines", "sentences", "words"],
)
def test_the_end_of_a_text_is_made_of_paragraphs_lines_sentences_or_words(text: str, problem: str) -> None:
    assert divide([turn("user", text)], 40, count_words, "end").problem == problem.strip()


def test_a_million_characters_without_a_space_are_cut() -> None:
    problem = divide([turn("user", "x" * 1_000_000)], 40, len, "end").problem
    assert len(problem) == 40


def test_tool_results_behind_the_question_are_the_document() -> None:
    result = division(turn("user", "Who?"), turn("assistant", "I look."), turn("tool", LONG))
    assert result == Division("Who?", (("conversation", f"Assistant: I look.\n\nTool: {LONG}"),))


def test_the_calls_of_tools_are_read_with_their_results() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"key": "4711"}'}}
    other = {"id": "2", "type": "custom", "custom": {"name": "x", "input": "y"}}
    asks = Turn.model_validate({"role": "assistant", "content": None, "tool_calls": [call, other]})
    result = division(turn("user", "Who?"), asks, turn("tool", LONG))
    assert result == Division(
        "Who?", (("conversation", f'Assistant: search({{"key": "4711"}})\n\nTool: {LONG}'),)
    )


def test_without_a_text_nothing_is_asked() -> None:
    with pytest.raises(ApiError, match="no message asks anything"):
        division(turn("user", " "), Turn(role="assistant", content=None))


def test_the_key_of_a_read_depends_on_the_judge_the_settings_and_the_templates(tmp_path: Path) -> None:
    templates = tmp_path / "prompts.toml"

    def key(judges: str = "", **settings: Any) -> str:
        model = Model("m", count_words, "words", 8192, judges=judges)
        return key_of("Who?", "00", ["a.txt"], ReadSettings(**settings), model)

    assert key() == key()
    keys = [key(), key(judges="lora"), key(likeliest_chunks=0)]
    for word in ("Memory", "Notes"):
        templates.write_text(
            f"update = '{word}: {{memory}} {{chunk}} {{problem}}'\nanswer = '{{problem}} {{memory}}'"
        )
        keys.append(key(workflow="overwrite", templates=str(templates)))
    assert len(set(keys)) == len(keys)
