"""A read that was cut off anywhere goes on from its journal, and pays for nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from facts import PROBLEM, SETTINGS, FactsEngine, run
from memagent import (
    Completion,
    Conversation,
    EngineError,
    JournalError,
    Message,
    Model,
    Sampling,
    ScriptedEngine,
    Usage,
)
from memagent.documents.opening import Document, text_document
from memagent.reading.journal import Journal, earlier_paths, new_path, read_lines
from server import facts_document

# The digits have more tokens than their length lets one think: two prompts are over the window.
DOCUMENT = facts_document(8, words=24) + "\n\nFACT-90: 3141 " + "9876543210 " * 60 + "FACT-91: 59"
WINDOW = 360


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A journal without what depends on the clock."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{key: line[key] for key in line if key not in ("created", "seconds")} for line in lines]


def overflowing() -> FactsEngine:
    return FactsEngine(window=WINDOW)


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


def test_a_read_goes_on_from_any_cut(whole: tuple[Path, FactsEngine, Any], tmp_path: Path) -> None:
    path, paid, (result, conversations) = whole
    journal = path.read_bytes()
    for cut in cuts_of(journal):
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(journal[:cut])
        kept = [
            json.loads(line)["type"] for line in journal[:cut].splitlines(keepends=True) if line[-1:] == b"\n"
        ]
        engine = overflowing()
        resumed, again = run(engine, DOCUMENT, trace=torn, resume=True)
        assert again == conversations, cut
        assert resumed == replace(result, trace=str(torn)), cut
        assert engine.paid == paid.paid - kept.count("conversation"), cut
        assert engine.refused == paid.refused - kept.count("overflow"), cut
        assert lines_of(torn) == lines_of(path), cut


def test_a_read_that_fails_after_every_call_is_paid_once(
    whole: tuple[Path, FactsEngine, Any], tmp_path: Path
) -> None:
    path, paid, (result, _) = whole
    trace = tmp_path / "limping.jsonl"
    for _ in range(paid.paid - 1):
        with pytest.raises(EngineError, match="out of order"):
            run(FactsEngine(window=WINDOW, calls=1), DOCUMENT, trace=trace, resume=True)
    last, _ = run(FactsEngine(window=WINDOW, calls=1), DOCUMENT, trace=trace, resume=True)
    assert last.answer == result.answer
    assert lines_of(trace) == lines_of(path)


def test_the_chunks_follow_the_usage_and_are_the_same_after_a_resume(tmp_path: Path) -> None:
    """Without a tokenizer, sizes are estimated from the usage of all calls so far."""

    class Silent(FactsEngine):
        async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
            return replace(await super().complete(messages, sampling), usage=Usage())

    def spans(conversations: list[Conversation]) -> list[tuple[int, int] | None]:
        return [conversation.span for conversation in conversations]

    document = facts_document(12)
    corrected = spans(run(FactsEngine(), document)[1])
    assert corrected != spans(run(Silent(), document)[1])
    trace = tmp_path / "read.jsonl"
    with pytest.raises(EngineError):
        run(FactsEngine(calls=3), document, trace=trace)
    assert spans(run(FactsEngine(), document, trace=trace, resume=True)[1]) == corrected


def test_chunks_that_are_all_alike_are_each_paid_once(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda messages: "UNCHANGED" if "chunk>" in messages[0].content else "nothing")
    document = "the same words again\n\n" * 12
    settings = replace(SETTINGS, chunk_tokens=4)
    trace = tmp_path / "read.jsonl"
    run(engine, document, settings, trace)
    total = len(engine.prompts)
    assert total > 5
    journal = trace.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(journal)):
        trace.write_bytes(b"".join(journal[:kept]))
        engine.prompts.clear()
        run(engine, document, settings, trace, resume=True)
        assert len(engine.prompts) == max(0, total - (kept - 1))


def test_a_long_torn_line_leaves_nothing_behind(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    path.write_bytes(kept + b'{"type": "conversation", "reply": "' + b"word " * 10_000)
    with pytest.raises(EngineError, match="out of order"):
        run(FactsEngine(calls=0), DOCUMENT, trace=path, resume=True)
    assert path.read_bytes() == kept


def test_the_record_answers_in_any_order(tmp_path: Path) -> None:
    """As workflows need that ask several things at once."""
    trace, first, second = tmp_path / "read.jsonl", (Message("user", "A"),), (Message("user", "B"),)

    async def record() -> None:
        journal = Journal(trace, {}, ScriptedEngine(["a1", "a2", "b"]))
        for messages in (first, first, second):
            completion = await journal.complete(messages, Sampling(8))
            journal.append(Conversation("update", 0, messages, completion, completion.text))
        await journal.aclose()

    async def replay() -> list[str]:
        journal = Journal(trace, {}, ScriptedEngine([]), resume=True)
        completions = [await journal.complete(it, Sampling(8)) for it in (second, first, first)]
        await journal.aclose()
        return [completion.text for completion in completions]

    asyncio.run(record())
    assert asyncio.run(replay()) == ["b", "a1", "a2"]


def test_a_finished_read_is_replayed_without_calls(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, outcome = whole
    journal = path.read_bytes()
    engine = FactsEngine(calls=0)
    assert run(engine, DOCUMENT, trace=path, resume=True) == outcome
    assert (engine.paid, path.read_bytes()) == (0, journal)


def test_resuming_what_was_never_begun_begins_it(tmp_path: Path) -> None:
    trace = tmp_path / "deep" / "er" / "read.jsonl"
    assert run(FactsEngine(), DOCUMENT, trace=trace, resume=True)[0].answer
    assert lines_of(trace)[-1]["type"] == "answer"


@pytest.mark.parametrize("odd", ["é ü 漢字 🙂", "a\u2028b\x85c", "\ud800 alone", '"quoted" \\ and\ttab'])
def test_any_character_of_a_reply_survives(odd: str, tmp_path: Path) -> None:
    document, trace = facts_document(3), tmp_path / "read.jsonl"

    def reply(messages: Any) -> str:
        return f"kept: {odd}" if "<chunk>" in messages[-1]["content"] else f"The answer is {odd}"

    result, conversations = run(FactsEngine(reply), document, trace=trace)
    assert result.answer == f"The answer is {odd}"
    trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:3]))
    assert run(FactsEngine(reply), document, trace=trace, resume=True) == (result, conversations)


# What a journal must share with the read that goes on from it


def unfinished(trace: Path, settings: Any = SETTINGS, document: str | Document = DOCUMENT) -> None:
    """A journal of two conversations."""
    with pytest.raises(EngineError):
        run(FactsEngine(calls=2), document, settings, trace)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"chunk_tokens": 99}, "budgets.chunk_tokens was 120, now it is 99"),
        ({"memory_tokens": 99}, "budgets.memory_tokens was 300, now it is 99"),
        ({"answer_tokens": 99}, "budgets.answer_tokens was 300, now it is 99"),
        ({"problem_tokens": 99}, "budgets.problem_tokens was 1024, now it is 99"),
        ({"early_exit": True}, "early_exit was false, now it is true"),
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
        run(FactsEngine(), DOCUMENT, replace(SETTINGS, **changed), trace, resume=True)
    assert str(caught.value) == f"{trace} cannot be resumed: {difference}"
    assert trace.read_bytes() == journal


def test_another_problem_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    with pytest.raises(
        JournalError, match=r'problem was "What are all the facts\?", now it is "Who did it\?"'
    ):
        run(FactsEngine(), DOCUMENT, trace=trace, resume=True, problem="Who did it?")


def test_another_document_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    with pytest.raises(JournalError, match=r"document\.sha256 was .*, now it is "):
        run(FactsEngine(), DOCUMENT + "!", trace=trace, resume=True)


def test_another_model_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    engine = FactsEngine()
    engine.model = Model("other")  # type: ignore[attr-defined]
    with pytest.raises(JournalError, match='model was "FactsEngine", now it is "other"'):
        run(engine, DOCUMENT, trace=trace, resume=True)


def test_another_tokenizer_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    engine = FactsEngine()
    engine.model = Model("FactsEngine", count_tokens=len, tokenizer="characters")  # type: ignore[attr-defined]
    with pytest.raises(JournalError, match=r'chunk_plan\.tokenizer was "estimate", now it is "characters"'):
        run(engine, DOCUMENT, trace=trace, resume=True)


TEMPLATES = 'update = "<chunk>\\n{chunk}\\n</chunk> {problem} {memory}"\nanswer = "{problem} {memory}"\n'


def test_other_templates_are_named(tmp_path: Path) -> None:
    trace, templates = tmp_path / "read.jsonl", tmp_path / "mine.toml"
    templates.write_text(TEMPLATES)
    unfinished(trace)
    with pytest.raises(JournalError, match=r"prompts was .*, now it is "):
        run(FactsEngine(), DOCUMENT, replace(SETTINGS, templates=str(templates)), trace, resume=True)


def test_another_workflow_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    with pytest.raises(JournalError, match='workflow was "gated", now it is "overwrite"'):
        run(FactsEngine(), DOCUMENT, replace(SETTINGS, workflow="overwrite"), trace, resume=True)


def test_a_moved_document_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace, document=text_document(DOCUMENT, "before.txt"))
    resumed, _ = run(FactsEngine(), text_document(DOCUMENT, "after.txt"), trace=trace, resume=True)
    assert resumed.sources == ("after.txt",)


def test_retries_timeouts_and_concurrency_may_change(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    other = replace(SETTINGS, retries=0, timeout_seconds=1.0, concurrency=2, max_calls=1000)
    assert run(FactsEngine(), DOCUMENT, other, trace, resume=True)[0].answer


def test_a_journal_of_other_prompts_is_refused(tmp_path: Path) -> None:
    """As when this program cuts chunks in another way than the version that began the read."""
    trace = tmp_path / "read.jsonl"
    document = facts_document(12)
    with pytest.raises(EngineError):
        run(FactsEngine(calls=5), document, trace=trace)
    lines = trace.read_text("utf-8").splitlines(keepends=True)
    usage = json.loads(lines[1])["usage"]["prompt_tokens"]
    lines[1] = lines[1].replace(f'"prompt_tokens": {usage}', f'"prompt_tokens": {usage * 2}')
    trace.write_text("".join(lines), "utf-8")
    engine = FactsEngine()
    with pytest.raises(JournalError, match=r"made from other prompts.*start a new --trace"):
        run(engine, document, trace=trace, resume=True)
    assert engine.paid == 0


# What is not overwritten, and what is no journal


def test_an_unfinished_journal_is_not_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    journal = trace.read_bytes()
    with pytest.raises(JournalError, match="holds an unfinished read: add --resume"):
        run(FactsEngine(), DOCUMENT, trace=trace)
    assert trace.read_bytes() == journal


def test_a_finished_journal_gives_way_to_a_new_read(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    engine = FactsEngine()
    run(engine, facts_document(2), trace=path)
    assert engine.paid > 0
    assert lines_of(path)[0]["document"]["sha256"] == text_document(facts_document(2)).fingerprint


def test_a_journal_without_conversations_gives_way(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    with pytest.raises(EngineError):
        run(FactsEngine(calls=0), DOCUMENT, trace=trace)
    assert [line["type"] for line in lines_of(trace)] == ["header"]
    assert run(FactsEngine(), DOCUMENT, trace=trace, problem="Which facts are there?")[0].answer


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
def test_what_is_no_journal_is_left_alone(content: bytes, resume: bool, tmp_path: Path) -> None:
    trace = tmp_path / "mine.txt"
    trace.write_bytes(content)
    with pytest.raises(JournalError, match=r"mine\.txt, line 1: not a memagent journal"):
        run(FactsEngine(), DOCUMENT, trace=trace, resume=resume)
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
    with pytest.raises(JournalError, match=r"whole\.jsonl, line 3: not a memagent journal"):
        run(FactsEngine(), DOCUMENT, trace=path, resume=resume)
    assert path.read_bytes() == content


@pytest.mark.parametrize("resume", [False, True])
def test_a_format_of_the_future_is_refused(resume: bool, tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    trace.write_text('{"type": "header", "format": 2}\n')
    with pytest.raises(JournalError, match="has format 2, this version reads 1"):
        run(FactsEngine(), DOCUMENT, trace=trace, resume=resume)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for trace in (tmp_path, tmp_path / "file" / "read.jsonl"):
        with pytest.raises(JournalError, match=r"cannot be (read|written): "):
            run(FactsEngine(), DOCUMENT, trace=trace)


def test_a_full_disk_is_an_error_that_can_be_gone_on_from(tmp_path: Path) -> None:
    trace, document = tmp_path / "read.jsonl", text_document(DOCUMENT)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, unlimited[1]))
    try:
        with pytest.raises(JournalError, match=r"read\.jsonl cannot be written: .*--resume goes on"):
            run(FactsEngine(), document, trace=trace)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert run(FactsEngine(), DOCUMENT, trace=trace, resume=True)[1] == run(FactsEngine(), DOCUMENT)[1]


def test_read_lines_tells_where_each_line_ends(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    journal = path.read_bytes()
    ends = [end for _, end in read_lines(path)]
    assert ends[-1] == len(journal)
    assert all(journal[end - 1 : end] == b"\n" for end in ends)


def test_the_lines_are_as_documented(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, engine, (result, conversations) = whole
    header, *middle, last = (line for line, _ in read_lines(path))
    assert (header["type"], header["format"], header["problem"]) == ("header", 1, PROBLEM)
    assert last == {"type": "answer", "answer": result.answer}
    made = [line for line in middle if line["type"] == "conversation"]
    assert len([line for line in middle if line["type"] == "overflow"]) == engine.refused
    for line, conversation in zip(made, conversations, strict=True):
        assert line["kind"] == conversation.kind
        assert line["memory"] == conversation.memory
        assert line["reply"] == conversation.completion.text
        assert line["usage"] == asdict(conversation.completion.usage)
        assert (tuple(line["span"]) if line["span"] else None) == conversation.span


# The journal as an engine


def test_a_record_is_written_before_the_next_call(tmp_path: Path) -> None:
    """What is paid for is in the file by the time that anything else is asked."""
    trace = tmp_path / "read.jsonl"
    counts: list[int] = []

    class Watching(FactsEngine):
        async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
            counts.append(sum(line["type"] == "conversation" for line, _ in read_lines(trace)))
            return await super().complete(messages, sampling)

    engine = Watching()
    run(engine, DOCUMENT, trace=trace)
    assert counts == list(range(engine.paid))


def test_an_overflow_on_record_is_raised_again(whole: tuple[Path, FactsEngine, Any]) -> None:
    path, _, _ = whole
    lines = [line for line, _ in read_lines(path)]
    assert {line["error"].split(", ")[1] for line in lines if line["type"] == "overflow"} == {
        f"the window has {WINDOW}"
    }
    engine = FactsEngine()  # its window would take what the first one refused
    assert run(engine, DOCUMENT, trace=path, resume=True)[0].answer
    assert engine.paid == 0


def test_other_failures_leave_no_record(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    unfinished(trace)
    assert {line["type"] for line in lines_of(trace)} == {"header", "conversation"}


# Where a journal goes that was given no place


def test_new_paths_differ_and_the_newest_with_a_conversation_comes_first(tmp_path: Path) -> None:
    paths = [new_path(tmp_path, "d" * 64, PROBLEM) for _ in range(4)]
    assert paths == sorted(set(paths)) and {path.parent for path in paths} == {tmp_path}
    assert f"-{os.getpid()}-" in paths[0].name
    header, conversation = '{"type": "header"}\n', '{"type": "conversation"}\n'
    for path, text in zip(paths, (header + conversation, header + conversation, header, ""), strict=True):
        path.write_text(text)
    assert earlier_paths(tmp_path, "d" * 64, PROBLEM) == [paths[1], paths[0], paths[3], paths[2]]


@pytest.mark.parametrize(("document", "problem"), [("e" * 64, PROBLEM), ("d" * 64, "Another?")])
def test_a_journal_of_something_else_is_not_resumed(document: str, problem: str, tmp_path: Path) -> None:
    new_path(tmp_path, "d" * 64, PROBLEM).write_text("")
    with pytest.raises(
        JournalError, match=r"no journal of this document and problem in .*leave out --resume"
    ):
        earlier_paths(tmp_path, document, problem)


def test_two_reads_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    first = Journal(path, {"problem": "what?"}, ScriptedEngine([]))
    with pytest.raises(JournalError, match="in use by another read"):
        Journal(path, {"problem": "what?"}, ScriptedEngine([]), resume=True)
    asyncio.run(first.aclose())
    asyncio.run(Journal(path, {"problem": "what?"}, ScriptedEngine([]), resume=True).aclose())


def test_what_cannot_hold_a_journal_is_refused() -> None:
    with pytest.raises(JournalError, match="/dev/null cannot be written"):
        Journal(Path(os.devnull), {"problem": "what?"}, ScriptedEngine([]))
