"""A note on every chunk: the memory is what the notes come from, word for word, and the best of it stays."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from facts import run, section
from function_engine import FunctionEngine
from memagent import (
    ContextOverflowError,
    Conversation,
    Read,
    ReadSettings,
    Result,
    SettingsError,
    open_document,
    text_document,
)
from memagent.documents.tokens import estimate_tokens
from memagent.reading.excerpts import excerpts_of
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.reading.read import NO_ROOM
from memagent.reading.windows import MAX_SENTENCE
from memagent.types import ESTIMATE

PROBLEM = "Which keys does the warden Jonas carry?"
FACTS = (
    "The warden Jonas carries a brass key.",
    "Jonas also carries the iron key of the gate.",
    "Of silver is the last key that the warden Jonas carries.",
)
RAIN = "Rain fell on hill {0}. Sheep went by road {0}. A cart stood near barn {0}."
DOCUMENT = "\n\n".join(
    text
    for index in range(12)
    for text in (RAIN.format(index), *FACTS[index // 4 : index // 4 + (index % 4 == 2)])
)
SETTINGS = ReadSettings(workflow="notes", chunk_tokens=60, memory_tokens=200, answer_tokens=40)


def noter(calls: int = 4) -> FunctionEngine:
    """Notes the sentences with a key that it sees, in other words; its answers name the keys it is shown."""

    async def note(prompt: str) -> str:
        await asyncio.sleep(0.001)
        if text := section(prompt, "text"):
            sentences = [sentence for sentence in re.split(r"(?<=\.)\s+", text) if "key" in sentence]
            return " And: ".join(sentences) or "It does not say which."
        kinds = re.findall("brass|iron|silver|golden", section(prompt, "document"))
        return ", ".join(dict.fromkeys(kinds)) or "Not in the document."

    return FunctionEngine(note, count_tokens=estimate_tokens, tokenizer=ESTIMATE, calls=calls)


def read(
    engine: FunctionEngine | None = None, text: str = DOCUMENT, **settings: object
) -> tuple[Result, list[Conversation]]:
    return run(engine or noter(), text_document(text, "a.txt"), SETTINGS.replace(**settings), problem=PROBLEM)


def test_what_stands_in_the_document_is_found_and_kept_word_for_word() -> None:
    engine = noter()
    result, (*updates, answer) = read(engine)
    assert (result.found, result.answer) == (True, "brass, iron, silver")
    sources = [excerpt.source for excerpt in excerpts_of(result.memory)]
    assert [source.excerpt for source in sources] == [*FACTS]
    assert all(
        DOCUMENT[source.start : source.end] == source.excerpt and source.file == "a.txt" for source in sources
    )
    assert "".join(section(update.messages[-1].content, "text") for update in updates) == DOCUMENT.rstrip()
    assert section(answer.messages[-1].content, "document") == "\n".join(f"- {fact}" for fact in FACTS)
    assert all("memory" not in prompt and "UNCHANGED" not in prompt for prompt in engine.prompts)


def test_omissions_of_a_note_are_reported() -> None:
    _, (*updates, _) = read()
    before = ""
    for update in updates:
        assert bool(update.ignored) == (update.memory == before)
        assert update.completion.text.startswith(update.ignored)
        before = update.memory


def test_notes_are_taken_side_by_side_and_kept_in_order() -> None:
    alone, several = noter(calls=1), noter(calls=4)
    assert [conversation.memory for conversation in read(alone)[1]] == [
        conversation.memory for conversation in read(several)[1]
    ]
    assert (alone.busiest, several.busiest) == (1, 4)


def test_it_passes_over_what_relates_to_nothing() -> None:
    engine = noter()
    result, _ = read(engine, screen=True)
    assert result.passed_over > 0 and len(engine.prompts) == result.chunks - result.passed_over + 1
    assert result.answer == "brass, iron, silver"
    assert engine.busiest == 1, "what is noted decides what is read next"


def test_it_starts_from_a_memory_and_extends_it() -> None:
    first, _ = read(text=FACTS[0])
    document = text_document(f"{FACTS[1]}\n\n{RAIN.format(1)}", "b.txt")
    engine = noter()
    more = Read(PROBLEM, document, engine, SETTINGS, memory=first.memory)

    async def last() -> Conversation:
        return [conversation async for conversation in more][-1]

    answer = asyncio.run(last())
    assert [(excerpt.source.file, excerpt.source.excerpt) for excerpt in excerpts_of(more.memory)] == [
        ("a.txt", FACTS[0]),
        ("b.txt", FACTS[1]),
    ]
    passages = section(answer.messages[-1].content, "document")
    assert passages == f"- a.txt: {FACTS[0]}\n- b.txt: {FACTS[1]}", "of several files, each is named"
    other = Read(PROBLEM, document, engine, SETTINGS, memory="Jonas has a key.")
    with pytest.raises(SettingsError, match=r"does not consist of excerpts.*'Jonas has a key\.'"):
        asyncio.run(anext(aiter(other)))


def test_within_the_budget_the_best_passages_stay() -> None:
    vague = "\n\n".join(f"A golden key lies in drawer {number} of room {number}." for number in range(20))
    text = f"{vague}\n\n{RAIN.format(1)}\n\n{FACTS[0]}\n\n{vague.replace('golden', 'small')}"
    result, conversations = read(text=text, memory_tokens=90)
    sizes = [estimate_tokens(conversation.memory) for conversation in conversations]
    assert max(sizes) <= 90 and sizes[-1] > 45, "the room there is is used"
    excerpts = [excerpt.source.excerpt for excerpt in excerpts_of(result.memory)]
    assert FACTS[0] in excerpts and len(excerpts) < 5
    assert not any(conversation.completion.finish_reason == "length" for conversation in conversations), (
        "no passage is cut"
    )


def spoken(times: int, every: int = 600) -> str:
    """A text without the end of a sentence or a line, with a fact among every so many other words."""
    chance = random.Random(1)

    def talk() -> str:
        return " ".join(
            chance.choice(("river", "stone", "wheel", "lamp", "salt", "paper")) for _ in range(every)
        )

    return " ".join(f"{talk()} the key number {number} hangs on hook H{number}" for number in range(times))


def hooks() -> FunctionEngine:
    """Notes each key with its hook, and answers with the hooks that it is shown."""

    def note(prompt: str) -> str:
        text = section(prompt, "text") or section(prompt, "document")
        return " ".join(re.findall(r"the key number \d+ hangs on hook H\d+", text)) or "It does not say."

    return FunctionEngine(note, count_tokens=estimate_tokens, tokenizer=ESTIMATE, calls=4)


@pytest.mark.parametrize("chunk_tokens", [300, 1200])
def test_a_text_without_sentences_yields_windows_around_what_was_noted(chunk_tokens: int) -> None:
    text, settings = spoken(10), SETTINGS.replace(chunk_tokens=chunk_tokens, memory_tokens=1024)
    result, _ = run(hooks(), text_document(text, "a.txt"), settings, problem="Which hook is each key on?")
    sources = [excerpt.source for excerpt in excerpts_of(result.memory)]
    assert all(
        f"hangs on hook H{number}" in " ".join(source.excerpt for source in sources) for number in range(10)
    )
    for source in sources:
        assert text[source.start : source.end] == source.excerpt and len(source.excerpt) <= MAX_SENTENCE
        assert f" {source.excerpt} " in f" {text} ", "it begins and ends with whole words"
    assert result.given_up == 0


def test_what_the_memory_has_no_room_for_is_counted() -> None:
    text = "\n\n".join(f"The warden Jonas carries key {number}." for number in range(20))
    result, (*updates, _) = read(text=text, chunk_tokens=16, memory_tokens=90)
    assert 0 < len(excerpts_of(result.memory)) < 10 < result.given_up
    assert sum(update.given_up for update in updates) == result.given_up


def test_what_was_noted_and_given_up_is_not_called_nothing() -> None:
    result, (*_, last) = read(text=FACTS[0], memory_tokens=12)
    assert last.kind == "update" and (result.found, result.memory, result.given_up) == (False, "", 1)
    assert result.answer == NO_ROOM


def test_a_repeated_passage_is_kept_once() -> None:
    result, _ = read(text="\n\n".join([FACTS[0], RAIN.format(1), FACTS[0]]), chunk_tokens=16)
    assert [excerpt.source.excerpt for excerpt in excerpts_of(result.memory)] == [FACTS[0]]


@pytest.mark.parametrize(
    ("text", "doubtful"), [(FACTS[0], False), ("The warden has a key. It is iron, somebody said.", True)]
)
def test_the_model_may_decline_only_if_it_is_doubtful(text: str, doubtful: bool) -> None:
    _, (*_, answer) = read(text=f"{RAIN.format(1)}\n\n{text}")
    assert ("not in the document" in answer.messages[-1].content) == doubtful


def test_an_answer_that_is_declined_is_not_found(tmp_path: Path) -> None:
    text, trace = f"{RAIN.format(1)}\n\nA key was seen, of tin.", tmp_path / "read.jsonl"
    result, (*_, answer) = run(noter(), text, SETTINGS, trace, problem=PROBLEM)
    assert answer.completion.text == "Not in the document."
    assert not result.found and result.memory
    assert "does not hold the answer" in result.answer and result.statements == ()
    assert [line.found for line in read_journal(trace) if isinstance(line, Answer)] == [False]


def test_files_that_adjoin_make_no_passage_together(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text(FACTS[0])
    (tmp_path / "2.txt").write_text(FACTS[1])
    result, _ = run(noter(), open_document(tmp_path), SETTINGS.replace(chunk_tokens=400), problem=PROBLEM)
    excerpts = [
        (Path(excerpt.source.file).name, excerpt.source.excerpt) for excerpt in excerpts_of(result.memory)
    ]
    assert excerpts == [("1.txt", FACTS[0]), ("2.txt", FACTS[1])]


def test_a_chunk_that_is_too_long_for_the_window_is_noted_on_in_parts() -> None:
    def refuse(prompt: str) -> None:
        if estimate_tokens(prompt) > 130:
            raise ContextOverflowError("too long")

    result, (*updates, _) = read(FunctionEngine(refuse, noter()), chunk_tokens=200)
    assert len(updates) > result.chunks and result.answer == "brass, iron, silver"
    assert all(excerpt.source.excerpt in DOCUMENT for excerpt in excerpts_of(result.memory))


def test_a_note_that_says_that_nothing_is_there_adds_nothing_to_a_passage() -> None:
    """The problem's own words still lead to it, but a passage that answers is worth more."""
    talk = "Which keys the warden Jonas carries, a document in the tower may tell."

    def decline(prompt: str) -> str | None:
        return "Not in the document." if "tower" in section(prompt, "text") else None

    text = f"{talk}\n\n{RAIN.format(1)}\n\n{FACTS[1]}"
    for memory_tokens, expected in ((200, [talk, FACTS[1]]), (50, [FACTS[1]])):
        engine = FunctionEngine(decline, noter())
        result, (first, *_) = read(engine, text, chunk_tokens=30, memory_tokens=memory_tokens)
        assert first.completion.text == "Not in the document."
        assert [excerpt.source.excerpt for excerpt in excerpts_of(result.memory)] == expected
