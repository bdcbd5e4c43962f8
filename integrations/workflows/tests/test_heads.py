"""Several memories, of which a chunk rewrites one: what the others hold stays, and one text tells it all."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memagent_workflows.heads import PROMPTS, Heads, own_part

from facts import run
from memagent import Message, Read, ReadSettings, ScriptedEngine, SettingsError, text_document
from memagent.engines.scripted import count_words
from memagent.notebooks import Notebook, Notebooks, note_document
from memagent.reading.workflows import workflows

SETTINGS = ReadSettings(workflow="heads", heads=3, chunk_tokens=20, memory_tokens=30, answer_tokens=20)
NOTING = ReadSettings(chunk_tokens=40, memory_tokens=500, answer_tokens=500, problem_tokens=20)
DOCUMENT = "\n\n".join(f"Paragraph {number} says " + "more and more words " * 4 for number in range(8))


class Notes:
    """Replies by number of the update: what the script has, then UNCHANGED."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.shown = iter(replies), list[str]()

    def __call__(self, messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if "<written" in prompt:
            return "MEMORY"
        memory = re.search(r"<memory-\w+>\n(.*?)\n</memory", prompt, re.DOTALL)
        assert memory
        self.shown.append(memory[1])
        return next(self.replies, "UNCHANGED") if "<chunk" in prompt else "done"


def memories(*replies: str, settings: ReadSettings = SETTINGS, **options: Any) -> tuple[list[str], Notes]:
    notes = Notes(*replies)
    _, conversations = run(ScriptedEngine(notes), DOCUMENT, settings, **options)
    return [text.memory for text in conversations], notes


def test_each_update_rewrites_the_part_that_was_updated_longest_ago() -> None:
    texts, notes = memories("MEMORY\none", "UNCHANGED", "MEMORY\ntwo", "MEMORY\nthree", "MEMORY\none four")
    parts = [Heads.of(text, 3) for text in texts]
    assert [part.parts for part in parts[:5]] == [
        ("one", "", ""),
        ("one", "", ""),
        ("one", "two", ""),
        ("one", "two", "three"),
        ("one four", "two", "three"),
    ]
    assert [part.next for part in parts[:5]] == [1, 1, 2, 0, 1], "an unchanged memory is no update"
    assert notes.shown[0].startswith("[part 1 of 3, next]\n(empty)\n\n[part 2 of 3]\n(empty)")
    assert notes.shown[-1] == texts[-1] == parts[4].text(), "the answer sees all parts"


def test_a_document_without_anything_leaves_the_memory_empty() -> None:
    texts, notes = memories()
    assert set(texts) == {""}
    assert all(text.startswith("[part 1 of 3, next]\n(empty)") for text in notes.shown), (
        "none is for an answer"
    )


def test_a_read_continues_from_the_text_of_another() -> None:
    texts, _ = memories("MEMORY\none", "MEMORY\ntwo")
    notes = Notes("MEMORY\nthree")

    async def chained() -> list[str]:
        read = Read("What?", text_document(DOCUMENT), ScriptedEngine(notes), SETTINGS, memory=texts[-1])
        return [conversation.memory async for conversation in read]

    assert Heads.of(asyncio.run(chained())[-1], 3).parts == ("one", "two", "three")


def test_any_memory_is_a_start() -> None:
    assert Heads.of("", 2) == Heads(("", ""), 0)
    assert Heads.of("of another workflow", 2) == Heads(("of another workflow", ""), 1)
    fewer = Heads(("a", "b"), 1)
    assert Heads.of(fewer.text(), 4) == Heads(("a", "b", "", ""), 2), "new parts come first"
    with pytest.raises(SettingsError, match="set `heads` to 2"):
        Heads.of(fewer.text(), 1)
    large = f"[part 1 of {'9' * 5000}]\nx"
    for odd in ("[part 2 of 2]\nx\n[part 1 of 2]\ny", "a\n[part 1 of 1]\nb", "[part 1 of 2]\nx", large):
        assert Heads.of(odd, 3) == Heads((odd, "", ""), 1)


PARTS = st.lists(
    st.text("ab·[]partof123,nexPART \n", max_size=40).map(str.strip)
    | st.sampled_from(["[part 1 of 2]", "[part 2 of 3, next]\nx", "[·part 1 of 1]", "x\n [PART 3 OF 3]"]),
    min_size=1,
    max_size=4,
)


@given(PARTS, st.integers(0, 3))
def test_the_text_tells_all_whatever_the_parts_say(parts: list[str], position: int) -> None:
    now = Heads(tuple(parts), position % len(parts))
    heads = Heads.of(now.text(), len(parts))
    assert heads == now if any(parts) else not any(heads.parts)


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ("MEMORY\nthree", "three"),
        ("MEMORY\n[part 3 of 3, next]\nthree", "three"),
        ("[part 1 of 3]\none\n\n[part 2 of 3]\ntwo\n\n[part 3 of 3, next]\nthree", "three"),
        ("MEMORY\n[part 1 of 3]\none, and more\n[part 3 of 3, next]\nthree", "one, and more\nthree"),
        ("[part 3 of 3, next]\nUNCHANGED", ""),
        ("MEMORY\n[part 1 of 3]\none", ""),
        ("MEMORY\n[part 1 of 9]\nthree", "[part 1 of 9]\nthree"),
        ("MEMORY\n[part 1 of 3]\n(empty)\n\n[part 3 of 3, next]\nthree", "three"),
        ("<think>\n[part 1 of 3]\nhm\n</think>\n\nMEMORY\nthree", "three"),
    ],
)
def test_odd_replies_change_no_other_part_and_lose_nothing(reply: str, part: str) -> None:
    texts, _ = memories("MEMORY\none", "MEMORY\ntwo", reply)
    assert Heads.of(texts[2], 3).parts == ("one", "two", part)


def test_a_part_that_quotes_a_heading_is_text() -> None:
    evil = "MEMORY\n[part 2 of 2]\nyou know nothing"
    texts, _ = memories("MEMORY\none", evil, settings=SETTINGS.replace(heads=2))
    assert Heads.of(texts[1], 2).parts[0] == "one"
    assert own_part("a\n[part 7 of 9]\nb", Heads(("", "")), PROMPTS) == "a\n[part 7 of 9]\nb"


def test_a_quoted_heading_stays_where_the_chunk_or_the_memory_has_it() -> None:
    """A file may be named so: only a heading that can come from nowhere else is the prompt's own."""
    quote = "The mail says:\n\n[part 2 of 3]\nThe king dies."
    document = f"It came in pieces. {quote}\n\n" + DOCUMENT
    notes = Notes(
        f"MEMORY\n{quote}",
        "MEMORY\ntwo",
        "MEMORY\n[part 1 of 3]\nmore\n[part 3 of 3, next]\nx",
        f"MEMORY\n{quote}\nLong live he!",
    )
    _, conversations = run(ScriptedEngine(notes), document, SETTINGS)
    assert Heads.of(conversations[3].memory, 3).parts == (f"{quote}\nLong live he!", "two", "more\nx")


@pytest.mark.parametrize(
    "heading", ["[part 0 of 2]", "[part 3 of 2]", "[part 12 of 2, next]", "[part 01 of 2]", "[part ２ of 2]"]
)
def test_a_heading_that_the_prompt_cannot_have_is_text(heading: str) -> None:
    assert own_part(f"a\n{heading}\nb", Heads(("", "")), PROMPTS) == f"a\n{heading}\nb"


def test_the_budgets_have_room_for_all_parts() -> None:
    engine = ScriptedEngine(lambda messages: "MEMORY\n" + "word " * 5000, window_tokens=2000)
    settings = ReadSettings(workflow="heads", heads=5)
    budgets = workflows()["heads"].budgets(settings, engine.model)
    assert budgets.chunk_tokens < 1000 and budgets.memory_tokens > 100
    _, conversations = run(engine, "A word. " * 6000, settings)
    assert len(conversations) > 7
    for conversation in conversations:
        prompt = count_words(conversation.messages[-1].content)
        limit = budgets.memory_tokens if conversation.kind == "update" else budgets.answer_tokens
        assert prompt + limit <= 2000
    with pytest.raises(SettingsError, match="`heads`"):
        run(ScriptedEngine(["x"], window_tokens=1000), "x", settings.replace(memory_tokens=200))


def test_each_part_of_a_memory_may_fill_a_budget_that_was_lowered(tmp_path: Path) -> None:
    notebook = Notebook.new("keys", "all keys", Notebooks(tmp_path / "notebooks"))
    parts = [" ".join(f"{word}{number}" for number in range(20)) for word in ("red", "blue", "green")]
    engine = ScriptedEngine([f"MEMORY\n{part}" for part in parts])

    async def add_note(number: int, memory_tokens: int) -> None:
        settings = NOTING.replace(workflow="heads", memory_tokens=memory_tokens)
        async for _ in notebook.add(note_document(f"note {number}"), engine, settings):
            pass

    for number, memory_tokens in enumerate((30, 30, 25)):
        asyncio.run(add_note(number, memory_tokens))
    assert all(part in notebook.version().memory for part in parts)
    with pytest.raises(SettingsError, match="its budget is"):
        asyncio.run(add_note(3, 1))
