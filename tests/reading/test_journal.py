"""A read that was cut off anywhere goes on from its journal, and pays for nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import PROBLEM, SETTINGS, FactsEngine, run
from function_engine import FunctionEngine
from memagent import (
    Completion,
    Conversation,
    EngineError,
    JournalError,
    Message,
    Model,
    Read,
    Sampling,
    ScriptedEngine,
)
from memagent.concurrency import drain
from memagent.documents.opening import Document, open_document, text_document
from memagent.documents.tokens import estimate_tokens
from memagent.reading.journal import Journal, earlier_paths, new_path, read_journal
from memagent.reading.lines import Answer, Header, Overflow, RecordedReply
from memagent.storage import Log
from server import facts_document

# The digits have more tokens than their length lets one think: two prompts are over the window.
DOCUMENT = facts_document(8, words=24) + "\n\nFACT-90: 3141 " + "9876543210 " * 60 + "FACT-91: 59"
WINDOW = 360


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A journal without what depends on the clock."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{key: line[key] for key in line if key not in ("created", "seconds", "crc32")} for line in lines]


class Dense(FactsEngine):
    """Takes texts for shorter than they are, so that some chunks overflow its window."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        self.model = Model("FactsEngine", lambda text: len(text) // 6)


def overflowing() -> Dense:
    return Dense(window=WINDOW)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, FactsEngine, Any]:
    """The journal of an uninterrupted read, the engine that it was made with, and what came of it."""
    path, engine = tmp_path / "whole.jsonl", overflowing()
    outcome = run(engine, DOCUMENT, trace=path)
    assert engine.refused >= 2
    return path, engine, outcome


def cuts_of(journal: bytes) -> list[int]:
    """Each line end, and three places within each line."""
    cuts, start = [0], 0
    for line in journal.splitlines(keepends=True):
        cuts += [start + 1, start + len(line) // 2, start + len(line) - 1, start + len(line)]
        start += len(line)
    return cuts


def test_a_read_resumes_from_any_cut(whole: tuple[Path, FactsEngine, Any], tmp_path: Path) -> None:
    path, first_engine, (result, conversations) = whole
    journal = path.read_bytes()
    for cut in cuts_of(journal):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(journal[:cut])
        kinds = [
            json.loads(line)["type"] for line in journal[:cut].splitlines(keepends=True) if line[-1:] == b"\n"
        ]
        engine = overflowing()
        resumed, again = run(engine, DOCUMENT, trace=torn, resume=True)
        assert again == conversations, cut
        assert resumed == replace(result, trace=str(torn)), cut
        assert engine.paid == first_engine.paid - kinds.count("reply"), cut
        assert engine.refused == first_engine.refused - kinds.count("overflow"), cut
        assert lines_of(torn) == lines_of(path), cut


def test_a_read_that_fails_after_every_call_is_paid_once(
    whole: tuple[Path, FactsEngine, Any], tmp_path: Path
) -> None:
    path, engine, (result, _) = whole
    trace = tmp_path / "limping.jsonl"
    for _ in range(engine.paid - 1):
        with pytest.raises(EngineError, match="out of order"):
            run(Dense(window=WINDOW, calls=1), DOCUMENT, trace=trace, resume=True)
    last, _ = run(Dense(window=WINDOW, calls=1), DOCUMENT, trace=trace, resume=True)
    assert last.answer == result.answer
    assert lines_of(trace) == lines_of(path)


def test_chunks_that_are_all_alike_are_each_paid_once(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda messages: "UNCHANGED" if "chunk>" in messages[0].content else "nothing")
    document = "the same words again\n\n" * 12
    settings = SETTINGS.replace(chunk_tokens=4)
    trace = tmp_path / "read.jsonl"
    run(engine, document, settings, trace)
    total = len(engine.prompts)
    assert total > 5
    journal = trace.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(journal)):
        trace.write_bytes(b"".join(journal[:cut]))
        engine.prompts.clear()
        run(engine, document, settings, trace, resume=True)
        assert len(engine.prompts) == total - sum(b'"reply"' in line[:20] for line in journal[:cut])


def test_a_long_torn_line_leaves_nothing_behind(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    beginning = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    path.write_bytes(beginning + b'{"type": "conversation", "reply": "' + b"word " * 10_000)
    with pytest.raises(EngineError, match="out of order"):
        run(Dense(calls=0), DOCUMENT, trace=path, resume=True)
    assert path.read_bytes() == beginning


def test_the_record_answers_in_any_order(tmp_path: Path) -> None:
    """As workflows need that ask several things at once."""
    trace, first, second = tmp_path / "read.jsonl", (Message("user", "A"),), (Message("user", "B"),)

    async def record() -> None:
        journal = Journal.open(trace, ScriptedEngine(["a1", "a2", "b"]))
        journal.begin({})
        for messages in (first, first, second):
            completion = await journal.complete(messages, Sampling(8))
            await journal.append(Conversation("update", 0, messages, completion, completion.text))
        await journal.aclose()

    async def replay() -> list[str]:
        journal = Journal.open(trace, ScriptedEngine([]), resume=True)
        journal.begin({})
        completions = [await journal.complete(messages, Sampling(8)) for messages in (second, first, first)]
        await journal.aclose()
        return [completion.text for completion in completions]

    asyncio.run(record())
    assert asyncio.run(replay()) == ["b", "a1", "a2"]


def test_a_wasted_prompt_that_comes_again_is_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    engine = ScriptedEngine(lambda _: "UNCHANGED")
    messages = (Message("user", "a chunk"),)

    async def record(*unused: bool) -> None:
        journal = Journal.open(path, engine, resume=path.exists())
        journal.begin({"problem": "What?"})
        for flag in unused:
            completion = Completion("UNCHANGED", "stop")
            await journal.append(Conversation("update", 0, messages, completion, "", unused=flag))
        journal.close()

    asyncio.run(record(True))
    asyncio.run(record(False))
    asyncio.run(record(True, False))
    assert [line["unused"] for line in lines_of(path) if line["type"] == "conversation"] == [True, False]


def test_another_answer_is_written_below_the_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def finish(*answers: str) -> None:
        journal = Journal.open(path, ScriptedEngine(lambda _: ""), resume=path.exists())
        journal.begin({"problem": "What?"})
        for answer in answers:
            await journal.finish(Answer(answer))
        journal.close()

    asyncio.run(finish("42", "42"))
    asyncio.run(finish("42", "43"))
    assert [line["answer"] for line in lines_of(path) if line["type"] == "answer"] == ["42", "43"]


def test_a_finished_read_is_replayed_without_calls(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, outcome = whole
    journal = path.read_bytes()
    engine = Dense(calls=0)
    assert run(engine, DOCUMENT, trace=path, resume=True) == outcome
    assert (engine.paid, path.read_bytes()) == (0, journal)


def test_resuming_a_read_that_never_began_begins_it(tmp_path: Path) -> None:
    trace = tmp_path / "deep" / "er" / "read.jsonl"
    assert run(Dense(), DOCUMENT, trace=trace, resume=True)[0].answer
    assert lines_of(trace)[-1]["type"] == "answer"


@pytest.mark.parametrize("odd", ["é ü 漢字 🙂", "a\u2028b\x85c", "\ud800 alone", '"quoted" \\ and\ttab'])
def test_any_character_of_a_reply_survives(odd: str, tmp_path: Path) -> None:
    document, trace = facts_document(3), tmp_path / "read.jsonl"

    def reply(messages: Any) -> str:
        return f"kept: {odd}" if "<chunk" in messages[-1]["content"] else f"The answer is {odd}"

    result, conversations = run(Dense(reply), document, trace=trace)
    assert result.answer == f"The answer is {odd}"
    trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:3]))
    assert run(Dense(reply), document, trace=trace, resume=True) == (result, conversations)


# What a journal must share with the read that goes on from it


def unfinished(trace: Path, settings: Any = SETTINGS, document: str | Document = DOCUMENT) -> None:
    """A journal of two conversations."""
    with pytest.raises(EngineError):
        run(Dense(calls=2), document, settings, trace)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"chunk_tokens": 99}, "budgets.chunk_tokens was 120, now it is 99"),
        ({"memory_tokens": 99}, "budgets.memory_tokens was 300, now it is 99"),
        ({"answer_tokens": 99}, "budgets.answer_tokens was 300, now it is 99"),
        ({"problem_tokens": 99}, "budgets.problem_tokens was 1024, now it is 99"),
        ({"early_exit": True}, "early_exit was false, now it is true"),
        ({"exit_patience": 2}, "exit_patience was 0, now it is 2"),
        ({"temperature": 0.5}, "sampling.temperature was 0.0, now it is 0.5"),
        ({"top_p": 0.5}, "sampling.top_p was 1.0, now it is 0.5"),
        ({"seed": 1}, "sampling.seed was null, now it is 1"),
    ],
)
def test_a_changed_setting_is_named(changed: dict[str, Any], difference: str, tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    journal = trace.read_bytes()
    with pytest.raises(JournalError) as caught:
        run(Dense(), DOCUMENT, SETTINGS.replace(**changed), trace, resume=True)
    assert str(caught.value).startswith(f"{trace} cannot be resumed: {difference}; for a new read leave out ")
    assert trace.read_bytes() == journal


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"problem": "Who did it?"}, r'problem was "What are all the facts\?", now it is "Who did it\?"'),
        ({"document": DOCUMENT + "!"}, "cannot be resumed: the document has changed"),
        ({"model": Model("other", estimate_tokens)}, 'model was "FactsEngine", now it is "other"'),
        (
            {"model": Model("FactsEngine", len, "characters")},
            'tokenizer was "estimate", now it is "characters"',
        ),
        ({"settings": SETTINGS.replace(workflow="overwrite")}, 'workflow was "gated", now it is "overwrite"'),
    ],
    ids=["problem", "document", "model", "tokenizer", "workflow"],
)
def test_what_else_has_changed_is_named(options: dict[str, Any], difference: str, tmp_path: Path) -> None:
    trace, engine = tmp_path / "read.jsonl", Dense()
    unfinished(trace)
    arguments = {"document": DOCUMENT} | options
    engine.model = arguments.pop("model", engine.model)
    with pytest.raises(JournalError, match=difference):
        run(engine, **arguments, trace=trace, resume=True)


TEMPLATES = 'update = "<chunk>\\n{chunk}\\n</chunk> {problem} {memory}"\nanswer = "{problem} {memory}"\n'


def test_other_templates_are_named(tmp_path: Path) -> None:
    trace, templates = tmp_path / "read.jsonl", tmp_path / "mine.toml"
    templates.write_text(TEMPLATES)
    unfinished(trace)
    with pytest.raises(JournalError, match="the templates have changed"):
        run(Dense(), DOCUMENT, SETTINGS.replace(templates=str(templates)), trace, resume=True)


def test_a_read_of_a_moved_document_resumes(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace, document=text_document(DOCUMENT, "before.txt"))
    resumed, _ = run(Dense(), text_document(DOCUMENT, "after.txt"), trace=trace, resume=True)
    assert resumed.sources == ("after.txt",)


def test_the_same_bytes_under_a_name_of_another_format_are_another_document(tmp_path: Path) -> None:
    trace, page = tmp_path / "read.jsonl", tmp_path / "a.html"
    page.write_text(f"<!DOCTYPE html><p>{DOCUMENT}</p>", "utf-8")
    unfinished(trace, document=open_document(page))
    page.rename(tmp_path / "a.txt")
    with pytest.raises(JournalError, match="had names of other formats"):
        run(Dense(), open_document(tmp_path / "a.txt"), trace=trace, resume=True)


def test_the_calls_that_are_allowed_may_change(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    other = SETTINGS.replace(max_calls=1000)
    assert run(Dense(), DOCUMENT, other, trace, resume=True)[0].answer


# What is not overwritten, and what is no journal


def test_an_unfinished_journal_is_not_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    journal = trace.read_bytes()
    with pytest.raises(JournalError, match="already holds a read: add `resume`"):
        run(Dense(), DOCUMENT, trace=trace)
    assert trace.read_bytes() == journal


@pytest.mark.parametrize("resume", [False, True])
def test_a_journal_without_conversations_gives_way(resume: bool, tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    with pytest.raises(EngineError):
        run(Dense(calls=0), DOCUMENT, trace=trace)
    assert [line["type"] for line in lines_of(trace)] == ["header"]
    other = {"problem": "Which facts are there?", "resume": resume}
    assert run(Dense(), DOCUMENT, trace=trace, **other)[0].answer
    assert [line["type"] for line in lines_of(trace)].count("header") == 1


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"Dear diary,\n",
        b"Dear diary",
        b'{"a": 1}\n',
        b"[1, 2]\n",
        b'{"type": "conversation"}\n',
        b"\x00\xff\xfe\n\x00",
    ],
)
def test_a_file_that_is_not_a_journal_is_left_alone(content: bytes, resume: bool, tmp_path: Path) -> None:
    trace = tmp_path / "mine.txt"
    trace.write_bytes(content)
    with pytest.raises(JournalError, match=r"mine\.txt, line 1: not "):
        run(Dense(), DOCUMENT, trace=trace, resume=resume)
    assert trace.read_bytes() == content


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("damage", ["Dear diary,", "{", '{"a": 1}', '{"type": "header"}'])
def test_damage_in_the_middle_is_named(
    damage: str, resume: bool, whole: tuple[Path, FactsEngine, Any]
) -> None:
    path, _, _ = whole
    lines = path.read_text("utf-8").splitlines(keepends=True)
    content = "".join([*lines[:2], damage + "\n", *lines[3:]]).encode()
    path.write_bytes(content)
    reason = r"whole\.jsonl, line 3: not written by memagent" if resume else "already holds a read"
    with pytest.raises(JournalError, match=reason):
        run(Dense(), DOCUMENT, trace=path, resume=resume)
    assert path.read_bytes() == content


@pytest.mark.parametrize("resume", [False, True])
def test_a_format_of_the_future_is_refused(resume: bool, tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    with Log(trace) as log:
        log.append({"type": "header", "format": 3})
    with pytest.raises(JournalError, match="has format 3, this version reads 2"):
        run(Dense(), DOCUMENT, trace=trace, resume=resume)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for trace in (tmp_path, tmp_path / "file" / "read.jsonl"):
        with pytest.raises(JournalError, match=r"cannot be (read|written)"):
            run(Dense(), DOCUMENT, trace=trace)


def test_a_read_can_be_resumed_after_the_disk_was_full(tmp_path: Path) -> None:
    trace, document = tmp_path / "read.jsonl", text_document(DOCUMENT)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, unlimited[1]))
    try:
        with pytest.raises(JournalError, match=r"read\.jsonl cannot be written: .*`resume` continues"):
            run(Dense(), document, trace=trace)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert run(Dense(), DOCUMENT, trace=trace, resume=True)[1] == run(Dense(), DOCUMENT)[1]


def test_the_lines_are_as_documented(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, engine, (result, conversations) = whole
    header, *middle, last = (line for line in read_journal(path))
    assert isinstance(header, Header) and header.values["format"] == 2
    assert (header.problem, header.budgets["chunk_tokens"]) == (PROBLEM, SETTINGS.chunk_tokens)
    assert last == Answer(result.answer)
    lines = [line for line in middle if isinstance(line, Conversation)]
    assert len([line for line in middle if isinstance(line, Overflow)]) == engine.refused
    bare = [
        replace(conversation, messages=(), completion=replace(conversation.completion, text=""), seconds=0.0)
        for conversation in conversations
    ]
    assert [replace(line, seconds=0.0) for line in lines] == bare


# The journal as an engine


def test_a_record_is_written_before_the_next_call(tmp_path: Path) -> None:
    """What is paid for is in the file by the time that anything else is asked."""
    trace = tmp_path / "read.jsonl"
    counts: list[int] = []

    def watch(_: str) -> None:
        counts.append(sum(isinstance(line, RecordedReply) for line in read_journal(trace)))

    engine = Dense()
    run(FunctionEngine(watch, engine), DOCUMENT, trace=trace)
    assert counts == list(range(engine.paid))


def test_an_overflow_on_record_is_raised_again(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    errors = {line.error for line in read_journal(path) if isinstance(line, Overflow)}
    assert {error.split(", ")[1] for error in errors} == {f"the window has {WINDOW}"}
    engine = Dense()  # its window would take what the first one refused
    assert run(engine, DOCUMENT, trace=path, resume=True)[0].answer
    assert engine.paid == 0


def test_other_failures_leave_no_record(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    assert {line["type"] for line in lines_of(trace)} == {"header", "reply", "conversation"}


# Where a journal goes that was given no place


def test_new_paths_differ_and_the_newest_comes_first(tmp_path: Path) -> None:
    paths = [new_path(tmp_path, "d" * 64, PROBLEM) for _ in range(4)]
    assert paths == sorted(set(paths)) and {path.parent for path in paths} == {tmp_path}
    assert f"-{os.getpid()}-" in paths[0].name
    for path in paths:
        path.write_text("")
    assert earlier_paths(tmp_path, "d" * 64, PROBLEM) == paths[::-1]


@pytest.mark.parametrize(("document", "problem"), [("e" * 64, PROBLEM), ("d" * 64, "Another?")])
def test_a_journal_of_something_else_is_not_resumed(document: str, problem: str, tmp_path: Path) -> None:
    new_path(tmp_path, "d" * 64, PROBLEM).write_text("")
    assert earlier_paths(tmp_path, document, problem) == []


def test_a_read_without_an_answer_is_the_beginning_of_one_with_it(tmp_path: Path) -> None:
    path, engine, document = tmp_path / "read.jsonl", FactsEngine(), text_document(facts_document(8))

    def ended(answers: bool) -> tuple[str, str]:
        read = Read(PROBLEM, document, engine, SETTINGS, trace=path, resume=True, answers=answers)
        asyncio.run(drain(aiter(read)))
        return read.answer, read.memory

    assert ended(answers=False) == ("", ended(answers=False)[1])
    assert {type(line) for line in read_journal(path)} == {Header, RecordedReply, Conversation}
    calls_before = engine.paid
    answer, memory = ended(answers=True)
    assert answer and memory == ended(answers=False)[1]
    assert engine.paid == calls_before + 1
