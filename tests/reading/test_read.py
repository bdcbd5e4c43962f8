"""One read from end to end: what it returns, when it stops, and how its failures leave it."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

import pytest

import memagent
from facts import PROBLEM, SETTINGS, FactsEngine, run
from function_engine import FunctionEngine
from memagent import (
    CallLimitError,
    Completion,
    ContextOverflowError,
    Conversation,
    DocumentError,
    EngineError,
    EngineSettings,
    Model,
    ProblemTooLongError,
    Read,
    Result,
    Sampling,
    ScriptedEngine,
    Settings,
    SettingsError,
    aread,
    open_document,
    read,
    text_document,
)
from memagent.documents.tokens import estimate_tokens
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.prompts import GATED
from memagent.storage import Log
from memagent.types import ESTIMATE, Spent, Trained, Usage
from server import count_tokens, facts_document, read_facts

DOCUMENT = facts_document(12)
READ = Settings(read=SETTINGS)
BOTH = pytest.mark.parametrize("workflow", ["overwrite", "gated"])


def chunk_of(message: str) -> str:
    """The chunk that a prompt shows; "" for the final question."""
    match = re.search(r"<(chunk-\w+)>\n(.*)\n</\1>", message, re.DOTALL)
    return match.group(2) if match else ""


def memories(conversations: list[Conversation]) -> list[str]:
    return [conversation.memory for conversation in conversations]


# What comes of a read


@BOTH
def test_every_fact_is_in_the_answer(workflow: str) -> None:
    result, _ = run(FactsEngine(), DOCUMENT, SETTINGS.replace(workflow=workflow))
    assert [f"FACT-{number}" in result.answer for number in range(12)] == [bool(n % 3) for n in range(12)]


def test_the_result_tells_what_was_done(tmp_path: Path) -> None:
    file, trace = tmp_path / "facts.txt", tmp_path / "read.jsonl"
    file.write_text(DOCUMENT)
    engine = FactsEngine()
    result, conversations = run(engine, open_document(file), trace=trace)
    *updates, answer = conversations
    usages = [conversation.completion.usage for conversation in conversations]
    assert result == Result(
        answer=answer.completion.text,
        memory=updates[-1].memory,
        problem=PROBLEM,
        workflow="gated",
        model="FactsEngine",
        chunks=len(updates),
        critical_path=len(conversations),
        document_tokens=result.document_tokens,
        spent=Spent(
            calls=engine.paid,
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
        ),
        cut=0,
        seconds=0.0,
        trace=str(trace),
        stopped_early=False,
        sources=(str(file),),
    )
    assert result.spent.prompt_tokens > result.spent.completion_tokens > 0
    assert count_tokens(DOCUMENT) / 2 < result.document_tokens < count_tokens(DOCUMENT) * 2


@pytest.mark.parametrize("estimated", [True, False])
def test_an_estimate_of_the_usage_cuts_no_memory(estimated: bool) -> None:
    note = "12345678 " * 10  # ten tokens at least, and many more by the estimate

    def reply(prompt: str) -> Completion:
        usage = Usage(0, estimate_tokens(note), estimated=estimated)
        return Completion(f"MEMORY\n{note}" if chunk_of(prompt) else "done", usage=usage)

    engine = FunctionEngine(reply, count_tokens=estimate_tokens, tokenizer=ESTIMATE)
    result, _ = run(engine, "word " * 50, SETTINGS.replace(memory_tokens=40, workflow="gated"))
    assert (result.memory == note.strip()) is estimated
    assert result.spent.estimated is estimated


def test_a_tokenizer_counts_the_document_exactly() -> None:
    engine = ScriptedEngine(lambda messages: "noted" if chunk_of(messages[-1].content) else "done")
    result, (*updates, _) = run(engine, DOCUMENT, SETTINGS.replace(chunk_tokens=50))
    sizes = [len(chunk_of(update.messages[-1].content).split()) for update in updates]
    assert max(sizes) <= 50
    assert result.document_tokens == sum(sizes)
    assert result.model == "scripted"


def test_the_conversations_cover_the_document() -> None:
    _, (*updates, answer) = run(FactsEngine(), DOCUMENT)
    assert [update.kind for update in updates] == ["update"] * len(updates)
    assert (answer.kind, answer.chunk_index, answer.span) == ("answer", None, None)
    spans = [update.span or (0, 0) for update in updates]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(DOCUMENT)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    for update, (start, end) in zip(updates, spans, strict=True):
        assert chunk_of(update.messages[-1].content) == DOCUMENT[start:end]


def test_the_result_so_far_can_be_asked_for_in_between() -> None:
    async def calls() -> list[int]:
        reading = Read(PROBLEM, text_document(DOCUMENT), FactsEngine(), SETTINGS)
        return [reading.result.spent.calls async for _ in reading]

    assert (counted := asyncio.run(calls())) == list(range(1, len(counted) + 1))


def test_the_answer_comes_without_the_thought_before_it() -> None:
    def reply(messages: Any) -> str:
        return f"<think>\nLet me see.\n</think>\n\n{read_facts(messages)}"

    thinking, plain = run(FactsEngine(reply), DOCUMENT)[0], run(FactsEngine(), DOCUMENT)[0]
    assert thinking.answer.startswith("FACT-1: ")
    assert thinking.memory.splitlines()[:-1] == plain.memory.splitlines()[:-1]


@pytest.mark.parametrize("text", ["", " \n\t\n "])
def test_a_document_without_text_is_an_error_before_any_call(text: str, tmp_path: Path) -> None:
    engine = FactsEngine()
    with pytest.raises(DocumentError, match="has no text"):
        run(engine, text, trace=tmp_path / "read.jsonl")
    assert engine.paid == 0


@pytest.mark.parametrize("problem", ["", " \n"])
def test_an_empty_problem_is_refused(problem: str) -> None:
    with pytest.raises(SettingsError, match="the problem is empty"):
        run(FactsEngine(), DOCUMENT, problem=problem)


def test_a_problem_over_its_budget_is_refused_before_any_call(tmp_path: Path) -> None:
    engine, trace = FactsEngine(), tmp_path / "read.jsonl"
    with pytest.raises(ProblemTooLongError, match=r"has \d+ tokens, but its budget is 8: .*`problem_tokens`"):
        run(engine, DOCUMENT, SETTINGS.replace(problem_tokens=8), trace, problem=PROBLEM * 2)
    assert engine.paid == 0
    assert not trace.exists()


def test_an_empty_answer_is_an_error() -> None:
    def reply(messages: Any) -> str:
        return "noted" if chunk_of(messages[-1]["content"]) else "<think>Well, let me"

    with pytest.raises(EngineError, match=r"empty answer \(finish reason 'stop'\): if it was still thinking"):
        run(FactsEngine(reply), DOCUMENT)


# The memory


@BOTH
@pytest.mark.parametrize("reply", ["", " \n", "<think>Nothing here.</think>", "<think>I wonder whether"])
def test_an_empty_reply_leaves_the_memory(workflow: str, reply: str) -> None:
    first = iter(["kept  as\tit is", *[reply] * 100])

    def script(messages: Any) -> str:
        return next(first) if chunk_of(messages[-1]["content"]) else "done"

    _, conversations = run(FactsEngine(script), DOCUMENT, SETTINGS.replace(workflow=workflow))
    assert len(conversations) > 3
    assert set(memories(conversations)) == {"kept  as\tit is"}


@pytest.mark.parametrize(
    "reply",
    ["UNCHANGED", "unchanged", " Unchanged. ", "**UNCHANGED**", "UNCHANGED\nThe chunk says nothing of it."],
)
def test_an_unchanged_memory_is_kept_verbatim(reply: str) -> None:
    memory = "  First:\tone  \n\n\n- two <b>three</b> 3.14  "
    first = iter([memory, *[reply] * 100])

    def script(messages: Any) -> str:
        if messages[-1]["content"].endswith("MEMORY or UNCHANGED:\n"):
            return "UNCHANGED"
        return next(first) if chunk_of(messages[-1]["content"]) else "done"

    _, conversations = run(FactsEngine(script), DOCUMENT)
    assert len(conversations) > 3
    assert set(memories(conversations)) == {memory.strip()}


def test_a_memory_over_its_budget_is_shortened_where_usage_does_not_tell() -> None:
    def reply(prompt: str) -> str:
        return "word " * 1000 if chunk_of(prompt) else "done"

    _, conversations = run(FunctionEngine(reply, FactsEngine()), DOCUMENT, SETTINGS.replace(memory_tokens=50))
    assert all(0 < estimate_tokens(memory) <= 50 for memory in memories(conversations))
    assert all(("word " * 100).startswith(memory) for memory in memories(conversations))
    assert {
        conversation.completion.finish_reason
        for conversation in conversations
        if conversation.kind == "update"
    } == {"length"}


def test_an_estimate_cuts_no_memory_that_may_fit() -> None:
    memory = "\n".join(f"tel {number}" for number in range(3_000_000, 3_000_020))

    def reply(prompt: str) -> str:
        return memory if chunk_of(prompt) else "done"

    assert estimate_tokens(memory) > 100
    _, conversations = run(
        FunctionEngine(reply, FactsEngine()), DOCUMENT, SETTINGS.replace(memory_tokens=100)
    )
    assert set(memories(conversations)) == {memory}
    assert {conversation.completion.finish_reason for conversation in conversations} == {"stop"}


# Stopping early


def knows_enough_at(number: int) -> FactsEngine:
    """An engine that says ENOUGH at so many chunks."""
    numbers = iter(range(1, 1000))

    def reply(messages: Any) -> str:
        if not chunk_of(messages[-1]["content"]):
            return "done"
        return "the fact\nENOUGH" if next(numbers) == number else "a fact"

    return FactsEngine(reply)


def test_a_reader_that_knows_enough_stops_if_it_may() -> None:
    engine = knows_enough_at(2)
    result, (*updates, answer) = run(engine, DOCUMENT, SETTINGS.replace(early_exit=True))
    assert [update.enough for update in updates] == [False, True]
    assert (answer.kind, answer.memory) == ("answer", "the fact")
    assert (result.stopped_early, result.chunks, result.spent.calls, engine.paid) == (True, 2, 3, 3)


def test_knowing_enough_is_no_reason_to_stop_by_default() -> None:
    result, conversations = run(knows_enough_at(2), DOCUMENT)
    assert result.stopped_early is False
    assert result.spent.calls == len(conversations) == result.chunks + 1 > 3


def patient(replies: list[str], patience: int) -> tuple[int, bool]:
    """At which chunk a reader with these replies, then UNCHANGED, stops; whether that is early."""
    remaining = iter(replies)

    def reply(messages: Any) -> str:
        return next(remaining, "UNCHANGED") if chunk_of(messages[-1]["content"]) else "done"

    settings = SETTINGS.replace(early_exit=True, exit_patience=patience, chunk_tokens=40)
    result, _ = run(FactsEngine(reply), DOCUMENT, settings)
    return result.chunks, result.stopped_early


def test_patience_wants_chunks_that_change_nothing_behind_enough() -> None:
    assert patient(["a fact", "the fact\nENOUGH"], 0) == (2, True)
    assert patient(["a fact", "the fact\nENOUGH"], 2) == (4, True)
    assert patient(["the fact\nENOUGH", "UNCHANGED\nENOUGH"], 2) == (3, True), "saying it again is no change"
    assert patient(["the fact\nENOUGH", "another\nENOUGH"], 1) == (3, True), "of the memory as it is now"


def test_a_memory_that_changes_is_no_longer_known_to_be_enough() -> None:
    whole = patient([], 0)[0]
    assert patient(["the fact\nENOUGH", "UNCHANGED", "another"], 2) == (whole, False)


def test_enough_said_of_half_a_chunk_is_not_said_of_what_the_other_half_makes() -> None:
    replies = iter(["the fact\nENOUGH", "the fact, another"])
    refused: list[str] = []

    def reply(messages: Any) -> str:
        if not (chunk := chunk_of(messages[-1]["content"])):
            return "done"
        if not refused:
            refused.append(chunk)
            raise ContextOverflowError("this page is too dense")
        return next(replies, "UNCHANGED")

    settings = SETTINGS.replace(early_exit=True, exit_patience=1, chunk_tokens=200)
    result, conversations = run(FactsEngine(reply), facts_document(60), settings)
    assert [conversation.chunk_index for conversation in conversations[:3]] == [0, 0, 1], (
        "the first chunk was halved"
    )
    assert result.stopped_early is False


def test_enough_at_the_last_chunk_is_not_early() -> None:
    result, _ = run(knows_enough_at(1), "One fact.", SETTINGS.replace(early_exit=True))
    assert (result.stopped_early, result.chunks) == (False, 1)


def test_overwriting_never_stops_early() -> None:
    settings = SETTINGS.replace(early_exit=True, workflow="overwrite")
    result, _ = run(knows_enough_at(2), DOCUMENT, settings)
    assert result.stopped_early is False


# Failing, and going on


def test_the_allowed_calls_are_not_exceeded_and_more_may_be_allowed_later(tmp_path: Path) -> None:
    trace, whole = tmp_path / "read.jsonl", FactsEngine()
    expected, _ = run(whole, DOCUMENT)
    limited, calls = SETTINGS.replace(max_calls=3), 0
    for _ in range((whole.paid - 1) // 3):
        engine = FactsEngine()
        with pytest.raises(CallLimitError, match="the 3 calls of `max_calls` are used up"):
            run(engine, DOCUMENT, limited, trace, resume=True)
        assert engine.paid == 3
        calls += 3
    engine = FactsEngine()
    result, _ = run(engine, DOCUMENT, SETTINGS, trace, resume=True)
    assert result == replace(expected, trace=str(trace))
    assert calls + engine.paid == whole.paid


def test_just_enough_calls_are_enough() -> None:
    whole = FactsEngine()
    run(whole, DOCUMENT)
    assert run(FactsEngine(), DOCUMENT, SETTINGS.replace(max_calls=whole.paid))[0].answer


@pytest.mark.parametrize("times", [1, 2])
def test_a_read_that_is_cancelled_while_its_journal_is_opened_releases_it_first(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, opening, go = tmp_path / "read.jsonl", ThreadEvent(), ThreadEvent()
    lines = Log.lines

    def load_slowly(log: Log) -> Iterator[tuple[dict[str, Any], int]]:
        opening.set()
        assert go.wait(20)
        return lines(log)

    def start() -> asyncio.Task[Result]:
        document = text_document(DOCUMENT)
        return asyncio.create_task(
            aread(PROBLEM, document, engine=FactsEngine(), settings=READ, trace=trace, resume=True)
        )

    async def cancel() -> Result:
        reading = start()
        assert await asyncio.to_thread(opening.wait, 20)
        for _ in range(times):
            reading.cancel()
            await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.1, go.set)
        with pytest.raises(asyncio.CancelledError):
            await reading
        return await start()

    monkeypatch.setattr(Log, "lines", load_slowly)
    assert asyncio.run(cancel()).answer


# A window that is smaller than was thought


def test_a_chunk_over_the_window_is_read_in_parts() -> None:
    digits = "FACT-1: 3141 " + "9876543210 " * 60 + "FACT-2: 59"
    engine = FactsEngine(window=420)
    engine.model = Model("dense", lambda text: len(text) // 6)
    result, (*updates, _) = run(engine, digits)
    assert engine.refused > 0
    assert "FACT-1: 3141; FACT-2: 59" in result.answer
    spans = [update.span or (0, 0) for update in updates]
    assert "".join(digits[start:end] for start, end in spans) == digits


def test_a_window_that_holds_no_chunk_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"window: lower `memory_tokens`, or .* templates"):
        run(FactsEngine(window=50), DOCUMENT)


def test_one_overflow_does_not_shrink_all_later_chunks() -> None:
    """A dense page in a long document: after it, chunks of half the size do for the rest."""

    def refuse_once(_: str) -> None:
        if engine.paid == 3 and not engine.refused:
            engine.refused += 1
            raise ContextOverflowError("this page is too dense")

    whole, engine = FactsEngine(), FactsEngine()
    document = facts_document(30)
    run(whole, document)
    run(FunctionEngine(refuse_once, engine), document)
    assert engine.paid <= 4 * whole.paid


# Budgets


def test_a_read_fits_its_budgets_to_the_window_that_the_model_tells() -> None:
    engine = FactsEngine()
    engine.model = Model("small", estimate_tokens, window_tokens=2048)
    settings = SETTINGS.replace(chunk_tokens=None, memory_tokens=100)
    budgets = Read(PROBLEM, text_document(DOCUMENT), engine, settings).budgets
    assert budgets.memory_tokens == 100
    assert budgets.needed_tokens() + len(GATED.bare_text) // 3 < 2048
    assert Read(PROBLEM, text_document(DOCUMENT), FactsEngine(), settings).budgets.chunk_tokens == 5000


def test_budgets_that_the_model_was_trained_with_are_the_defaults() -> None:
    engine = FactsEngine()
    trained = {"chunk_tokens": 200, "memory_tokens": 128}
    engine.model = Model("small", estimate_tokens, window_tokens=2048, trained=Trained(trained))
    settings = SETTINGS.replace(chunk_tokens=None, memory_tokens=None)
    budgets = Read(PROBLEM, text_document(DOCUMENT), engine, settings).budgets
    assert (budgets.chunk_tokens, budgets.memory_tokens) == (200, 128)
    budgets = Read(PROBLEM, text_document(DOCUMENT), engine, settings.replace(chunk_tokens=300)).budgets
    assert (budgets.chunk_tokens, budgets.memory_tokens) == (300, 128)


# Several reads, several callers


def test_concurrent_reads_of_one_engine_are_each_as_if_alone(serve: Any) -> None:
    server = serve(latency_seconds=0.02)
    documents = [facts_document(6, seed) for seed in range(4)]

    async def alone_and_together() -> tuple[list[str], list[str]]:
        engine = OpenAIEngine(Model("test-model", estimate_tokens), Connection(base_url=server.base_url))

        def answers() -> list[Any]:
            return [aread(PROBLEM, text_document(text), engine=engine, settings=READ) for text in documents]

        try:
            alone = [(await one).answer for one in answers()]
            together = [trajectory.answer for trajectory in await asyncio.gather(*answers())]
        finally:
            await engine.aclose()
        return alone, together

    alone, together = asyncio.run(alone_and_together())
    assert alone == together
    assert len(set(alone)) == 4
    assert server.most_in_flight > 1


def test_read_twice_with_one_engine(serve: Any) -> None:
    """An engine's connections belong to the loop that they began in; both calls use the same one."""
    engine = OpenAIEngine(Model("test-model", estimate_tokens), Connection(base_url=serve().base_url))
    answers = [read(PROBLEM, text_document(DOCUMENT), engine=engine, settings=READ).answer for _ in range(2)]
    assert answers[0] == answers[1] == run(FactsEngine(), DOCUMENT)[0].answer


def test_read_where_a_loop_is_running() -> None:
    async def notebook() -> str:
        return read(PROBLEM, text_document(DOCUMENT), engine=FactsEngine(), settings=READ).answer

    assert asyncio.run(notebook()) == run(FactsEngine(), DOCUMENT)[0].answer


def test_read_opens_the_engine_that_the_settings_name(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "facts.txt"
    file.write_text(DOCUMENT)
    settings = Settings(EngineSettings(base_url=serve().base_url), SETTINGS)
    trajectory = memagent.read(PROBLEM, file, settings=settings, trace=tmp_path / "read.jsonl")
    assert trajectory.answer == run(FactsEngine(), DOCUMENT)[0].answer
    assert trajectory.conversations[-1].completion.text == trajectory.answer
    assert (trajectory.error, trajectory.reward) == (None, None)


def test_a_given_engine_is_left_open() -> None:
    class Closing(FactsEngine):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    engine = Closing()
    read(PROBLEM, text_document(DOCUMENT), engine=engine, settings=READ)
    assert not engine.closed


def test_the_sampling_is_that_of_the_settings() -> None:
    settings = SETTINGS.replace(temperature=0.7, top_p=0.9, seed=3, answer_tokens=99)
    engine = FunctionEngine(lambda _: None, FactsEngine())
    run(engine, DOCUMENT, settings)
    *others, last = engine.samplings
    assert set(others) == {Sampling(300, 0.7, 0.9, 3, False)}
    assert last == Sampling(99, 0.7, 0.9, 3, False)


def _answer_in_a_fork(_: int) -> str:
    return read(PROBLEM, text_document(DOCUMENT), engine=FactsEngine(), settings=READ).answer


def test_a_forked_process_reads_as_well() -> None:
    answer = _answer_in_a_fork(0)  # the parent's loop has a thread, which a fork does not inherit
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_answer_in_a_fork, range(4)).get(timeout=60) == [answer] * 4


def test_progress_counts_the_bytes_of_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_bytes(("Жил-был старик со старухою у самого синего моря. " * 400).encode("cp1251"))
    reading = Read(PROBLEM, open_document(path), FactsEngine(), SETTINGS)

    async def fractions() -> list[float | None]:
        return [reading.progress.fraction async for conversation in reading if conversation.kind == "update"]

    shares = asyncio.run(fractions())
    assert len(shares) > 5 and shares[-1] == pytest.approx(1, abs=0.01)
    assert shares[len(shares) // 2] == pytest.approx(0.5, abs=0.1)
