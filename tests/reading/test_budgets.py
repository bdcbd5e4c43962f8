"""Budgets shrink together until they fit the model's window; what the user gave is held."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent import Prompts, Read, ReadSettings, ScriptedEngine, SettingsError, text_document
from memagent.prompts import GATED, OVERWRITE
from memagent.reading.budgets import SET_BUDGETS, Budgets, fit_budgets

PAPER = Budgets()
NAMES = list(SET_BUDGETS)
CHAT = 64  # what is left for the chat template
WINDOWS = (512, 600, 768, 1000, 1024, 1536, 2048, 3000, 4096, 6000, 8000, 8192)


def needed(budgets: Budgets, fixed: int) -> int:
    """What the longest prompt and its completion come to: an update's, or the answer's."""
    update = budgets.problem_tokens + budgets.chunk_tokens + 2 * budgets.memory_tokens
    answer = budgets.problem_tokens + budgets.memory_tokens + budgets.answer_tokens
    return fixed + CHAT + max(update, answer)


def test_the_defaults_are_those_of_the_paper() -> None:
    assert PAPER.in_force == {
        "problem_tokens": 1024,
        "chunk_tokens": 5000,
        "memory_tokens": 1024,
        "answer_tokens": 1024,
    }
    assert PAPER.needed_tokens() == 8072
    assert Budgets(100, 200, 50, 1000).needed_tokens() == 1150


def test_what_fits_stays_unchanged() -> None:
    exact = 8072 + 200 + CHAT
    assert PAPER.fit(exact, 200, frozenset()) == PAPER
    assert PAPER.fit(128_000, 200, frozenset()) == PAPER
    assert PAPER.fit(exact - 1, 200, frozenset()) != PAPER


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("fixed", [0, 150, 300])
def test_all_shrink_alike_into_the_window(window: int, fixed: int) -> None:
    fitted = PAPER.fit(window, fixed, frozenset())
    assert needed(fitted, fixed) <= window
    assert needed(fitted, fixed) >= min(window, needed(PAPER, fixed)) - 5, "room was left unused"
    scales = [getattr(fitted, name) / getattr(PAPER, name) for name in NAMES]
    assert max(scales) - min(scales) < 0.002
    assert min(scales) > 0


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("held", NAMES)
def test_a_given_value_is_held(window: int, held: str) -> None:
    budgets = dataclasses.replace(PAPER, **{held: 100})
    fitted = budgets.fit(window, 50, frozenset([held]))
    assert getattr(fitted, held) == 100
    assert needed(fitted, 50) <= window
    for name in NAMES:
        assert 0 < getattr(fitted, name) <= getattr(budgets, name)


@given(
    st.builds(Budgets, *[st.integers(16, 20_000)] * 4),
    st.integers(1, 40_000),
    st.integers(0, 2000),
    st.sets(st.sampled_from(NAMES)),
)
def test_a_fit_is_a_fit_or_an_error(budgets: Budgets, window: int, fixed: int, held: set[str]) -> None:
    try:
        fitted = budgets.fit(window, fixed, frozenset(held))
    except SettingsError as error:
        assert f"the model's window has {window}" in str(error)
        assert needed(budgets, fixed) > window
        return
    assert needed(fitted, fixed) <= window
    assert all(getattr(fitted, name) == getattr(budgets, name) for name in held - {"chunk_tokens"})
    assert "chunk_tokens" not in held or fitted.chunk_tokens >= budgets.chunk_tokens - fixed - CHAT
    assert min(fitted.chunk_tokens, fitted.memory_tokens, fitted.answer_tokens) >= 16


@pytest.mark.parametrize(
    ("window", "fixed", "given_tokens"),
    [
        (0, 0, {}),
        (100, 0, {}),
        (512, 512, {}),
        (4096, 200, {"chunk_tokens": 5000}),
        (4096, 200, {"memory_tokens": 2000}),
        (8192, 200, {"answer_tokens": 8000}),
        (8192, 200, {"problem_tokens": 8000}),
        (8192, 200, dict.fromkeys(NAMES, 3000)),
    ],
)
def test_what_cannot_fit_names_the_numbers_and_the_settings(
    window: int, fixed: int, given_tokens: dict[str, int]
) -> None:
    budgets = dataclasses.replace(PAPER, **given_tokens)
    with pytest.raises(SettingsError) as refused:
        budgets.fit(window, fixed, frozenset(given_tokens))
    message = str(refused.value)
    for part in (str(needed(budgets, fixed)), f"window has {window}", "`chunk_tokens`", "`memory_tokens`"):
        assert part in message


def test_the_papers_own_budgets_given_in_full_make_room_for_the_prompts_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fitted = PAPER.fit(8192, 300, frozenset(NAMES))
    assert fitted == dataclasses.replace(PAPER, chunk_tokens=5000 - (8072 + 300 + CHAT - 8192))
    assert "chunks have 4756 tokens instead of 5000" in caplog.text


@pytest.mark.parametrize("window", [512, 1024, 2048, 8192])
@pytest.mark.parametrize("workflow", ["overwrite", "gated"])
def test_no_prompt_of_a_read_passes_the_window(window: int, workflow: str) -> None:
    """With an engine that counts words, and fills every memory and answer to its limit."""
    engine = ScriptedEngine(lambda messages: "word " * 5000, window_tokens=window)
    document = text_document("The quick brown fox jumps over the lazy dog.\n" * 1000)
    settings = ReadSettings(workflow=workflow)
    reading = Read("What does the fox do?", document, engine, settings)
    assert reading.budgets.needed_tokens() < window

    async def run() -> list[int]:
        sizes = []
        async for conversation in reading:
            usage = conversation.completion.usage
            sizes.append(usage.prompt_tokens + usage.completion_tokens)
        return sizes

    sizes = asyncio.run(run())
    assert max(sizes) <= window
    assert len(sizes) > 1


@pytest.mark.parametrize("prompts", [GATED, OVERWRITE])
def test_our_own_words_are_a_small_part_of_the_smallest_window(prompts: Prompts) -> None:
    assert len(prompts.bare_text.split()) < 512 / 3


def test_templates_longer_than_the_window_are_named() -> None:
    """Lower budgets would not help."""
    prompts = Prompts("word " * 900 + "{problem} {chunk} {memory}", "{problem} {memory}")
    for window in (500, 1000):
        model = ScriptedEngine(["x"], window_tokens=window).model
        with pytest.raises(SettingsError, match=f"the templates alone take 901 tokens.* is only {window}"):
            fit_budgets(ReadSettings(memory_tokens=100), model, prompts)
    with pytest.raises(SettingsError, match=r"the budgets need .*`heads`"):
        fit_budgets(ReadSettings(), ScriptedEngine(["x"], window_tokens=1100).model, prompts, memories=9)
