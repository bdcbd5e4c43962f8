"""Resuming, as "Resume Means Resume" (arXiv 2608.03836) asks of it, for what reads side by side.

The six properties, over random starts, kills, resumes, cancellations and a second process: a resumed read
continues the prefix on record; every reply is paid for exactly once, but for those in flight; forks of a
journal end alike; what is on record is always valid; each reply is consumed once; the end is the same.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from memagent import (
    Chunk,
    Completion,
    Conversation,
    JournalError,
    Message,
    Read,
    ReadSettings,
    Sampling,
    text_document,
)
from memagent.documents.tokens import estimate_tokens
from memagent.reading.conversations import Reading
from memagent.reading.journal import read_journal
from memagent.reading.lines import Overflow, RecordedReply
from memagent.reading.replies import read_overwrite
from memagent.reading.workflows import Workflow, workflows
from memagent.types import Model

CALLS = 4
IN_FLIGHT = {
    "gated": 2 * CALLS - 1,  # chunks in their turn, and others asked in vain
    **dict.fromkeys(("map_reduce", "parallel"), CALLS + 1),  # chunks, and a merge of notes
}
DOCUMENT = (
    "\n\n".join(f"Paragraph {number} tells of number {number * 7}." for number in range(24))
    + "\n\n"
    + ("The same words again.\n\n" * 12)
)
SETTINGS = ReadSettings(chunk_tokens=16, memory_tokens=16, answer_tokens=64, rounds=2)
SIDE_BY_SIDE = tuple(IN_FLIGHT)


class Noter:
    """Replies by its prompt alone, after a pause that varies; counts what each prompt was paid for."""

    def __init__(self, seed: int = 0, most: int | None = None) -> None:
        self.model = Model("noter", estimate_tokens, "pieces", calls=CALLS)
        self.paid: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.most, self.source, self.hangs = most, random.Random(seed), asyncio.Event()

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        prompt = messages[-1].content
        if self.most is not None and self.paid.total() >= self.most:
            self.hangs.set()
            await asyncio.sleep(3600)  # until it is killed
        self.in_flight[prompt] += 1
        for _ in range(self.source.randrange(6)):
            await asyncio.sleep(0)
        self.paid[prompt] += 1
        self.in_flight[prompt] -= 1
        number = sum(map(ord, prompt)) % 9973
        if "and the new memory:" in prompt:
            return Completion("UNCHANGED" if number % 4 else f"MEMORY\nnote {number}")
        return Completion(f"note {number}")

    async def aclose(self) -> None: ...


async def finished(trace: Path, engine: Noter, workflow: str) -> tuple[str, list[tuple[int | None, str]]]:
    """The answer of a read that is begun or continued to its end, and what its conversations came to."""
    settings = SETTINGS.replace(workflow=workflow, lookahead=CALLS if workflow == "gated" else 1)
    read = Read(
        "What is told?", text_document(DOCUMENT, is_example=True), engine, settings, trace=trace, resume=True
    )
    outcomes = [
        (conversation.chunk_index, conversation.memory)
        async for conversation in read
        if not conversation.unused
    ]
    return read.answer, outcomes


async def killed(trace: Path, engine: Noter, workflow: str) -> None:
    """A read that stops dead once its engine hangs: no more is written than what was there."""
    reading = asyncio.ensure_future(finished(trace, engine, workflow))
    while not reading.done():
        await asyncio.sleep(0.001)
        if engine.most is not None and engine.paid.total() >= engine.most:
            break
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


WHOLE = {name: Noter() for name in SIDE_BY_SIDE}
EXPECTED = {
    name: asyncio.run(finished(Path(tempfile.mkdtemp()) / "whole.jsonl", engine, name))
    for name, engine in WHOLE.items()
}
PROMPTS = {name: engine.paid.total() for name, engine in WHOLE.items()}


def replies(trace: Path) -> int:
    return sum(isinstance(line, RecordedReply) for line in read_journal(trace)) if trace.exists() else 0


class Resuming(RuleBasedStateMachine):
    """A journal that is begun, killed, torn, forked, resumed, and claimed by another process.

    How much of a killed read is on record depends on the clock, so no precondition may: a rule that needs
    some does nothing without.
    """

    workflow = "map_reduce"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.trace = self.folder / "read.jsonl"
        self.paid: Counter[str] = Counter()  # over all runs
        self.lost: Counter[str] = Counter()  # paid, but not on record: torn off, or in flight
        self.recorded = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def account(self, engine: Noter) -> None:
        """Every reply that was paid for is on record, but at most those in flight."""
        self.paid += engine.paid
        now = replies(self.trace)
        missing = self.recorded + engine.paid.total() - now
        assert 0 <= missing <= IN_FLIGHT[self.workflow]
        self.lost["in flight"] += missing
        self.recorded = now

    @rule(calls=st.integers(0, 30), seed=st.integers(0, 99))
    def kill(self, calls: int, seed: int) -> None:
        engine = Noter(seed, most=calls)
        asyncio.run(killed(self.trace, engine, self.workflow))
        self.account(engine)

    @rule(seed=st.integers(0, 99))
    def finish(self, seed: int) -> None:
        engine = Noter(seed)
        before = self.recorded
        assert asyncio.run(finished(self.trace, engine, self.workflow)) == EXPECTED[self.workflow]
        assert engine.paid.total() == PROMPTS[self.workflow] - before, "what is on record is not asked again"
        self.account(engine)

    @rule(bytes_torn=st.integers(1, 400))
    def tear(self, bytes_torn: int) -> None:
        """What a loss of power may do to the last lines, if the disk lied."""
        if not self.recorded:
            return
        content = self.trace.read_bytes()
        self.trace.write_bytes(content[: max(len(content) - bytes_torn, 100)])
        now = replies(self.trace)
        self.lost["torn"] += self.recorded - now
        self.recorded = now

    @rule(seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
    def fork(self, seeds: tuple[int, int]) -> None:
        """Two copies, continued apart, end alike."""
        if not self.recorded:
            return
        for number, seed in enumerate(seeds):
            copy = self.folder / f"fork-{number}.jsonl"
            shutil.copy(self.trace, copy)
            engine = Noter(seed)
            assert asyncio.run(finished(copy, engine, self.workflow)) == EXPECTED[self.workflow]
            assert engine.paid.total() == PROMPTS[self.workflow] - self.recorded

    @rule()
    def second_process(self) -> None:
        """While one holds the journal, another is refused and pays nothing."""
        if not self.recorded:
            return

        async def both() -> None:
            first, second = Noter(most=0), Noter()
            reading = asyncio.ensure_future(finished(self.trace, first, self.workflow))
            hangs = asyncio.ensure_future(first.hangs.wait())
            await asyncio.wait({reading, hangs}, return_when=asyncio.FIRST_COMPLETED)
            hangs.cancel()
            if not reading.done():
                with pytest.raises(JournalError, match="in use"):
                    await finished(self.trace, second, self.workflow)
                assert not second.paid
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

        asyncio.run(both())

    @invariant()
    def what_is_on_record_is_valid(self) -> None:
        if self.trace.exists() and self.trace.stat().st_size:
            assert not any(isinstance(line, Overflow) for line in read_journal(self.trace))
        assert self.paid.total() <= PROMPTS[self.workflow] + self.lost.total()


class ResumingParallel(Resuming):
    workflow = "parallel"


class ResumingAhead(Resuming):
    workflow = "gated"


class ResumingOften(Resuming):
    pass


TestResuming = Resuming.TestCase
TestResuming.settings = hypothesis_settings(max_examples=6, stateful_step_count=8, deadline=None)
TestResumingOften = pytest.mark.slow(ResumingOften.TestCase)
TestResumingOften.settings = hypothesis_settings(max_examples=25, stateful_step_count=12, deadline=None)
TestResumingParallel = pytest.mark.slow(ResumingParallel.TestCase)
TestResumingParallel.settings = hypothesis_settings(max_examples=6, stateful_step_count=8, deadline=None)
TestResumingAhead = pytest.mark.slow(ResumingAhead.TestCase)
TestResumingAhead.settings = hypothesis_settings(max_examples=12, stateful_step_count=8, deadline=None)


PROCESS = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from reading.test_resuming import Noter, finished
from memagent import Completion

class Slow(Noter):
    async def complete(self, messages, sampling):
        await asyncio.sleep(0.01)
        made = await super().complete(messages, sampling)
        with open({paid!r}, "a") as file:
            file.write("x")
        return made

print(asyncio.run(finished(Path({trace!r}), Slow(), {workflow!r}))[0])
"""


@pytest.mark.parametrize(
    ("workflow", "moments"),
    [("gated", 4), *(pytest.param(name, 10, marks=pytest.mark.slow) for name in SIDE_BY_SIDE)],
)
def test_a_side_by_side_read_killed_at_many_moments_ends_the_same(
    tmp_path: Path, workflow: str, moments: int
) -> None:
    """`kill -9` of the process, wherever it is; then again, until it gets through."""
    trace, payments = tmp_path / "read.jsonl", tmp_path / "paid"
    code = PROCESS.format(path=sys.path, paid=str(payments), trace=str(trace), workflow=workflow)
    source, kills = random.Random(7), 0
    for _ in range(moments):
        running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
        before = replies(trace)
        for _ in range(3000):  # until it has begun to read, and a moment longer
            if running.poll() is not None or replies(trace) > before:
                break
            signal.sigtimedwait([], 0.005)
        signal.sigtimedwait([], source.random() * 0.03)
        kills += running.poll() is None
        running.kill()
        running.wait()
    assert kills >= moments // 4
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == EXPECTED[workflow][0]
    assert asyncio.run(finished(trace, Noter(most=0), workflow)) == EXPECTED[workflow], "all is on record"
    assert payments.stat().st_size <= PROMPTS[workflow] + IN_FLIGHT[workflow] * kills, (
        "paid twice: those in flight at most"
    )


def test_an_own_workflow_that_reads_side_by_side_resumes(tmp_path: Path, monkeypatch: Any) -> None:
    """The contract is all that a workflow needs."""

    async def pairs(
        reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
    ) -> AsyncGenerator[Conversation, None]:
        first, second = [chunk async for chunk in chunks][:2]

        async def one(chunk: Chunk) -> list[Conversation]:
            return [conversation async for conversation in reading.update(chunk, memory, read_overwrite)]

        for conversations in reversed(await asyncio.gather(one(first), one(second))):
            for conversation in conversations:
                yield conversation
        yield await reading.answer("both", "both")

    monkeypatch.setitem(workflows(), "pairs", Workflow(pairs, workflows()["overwrite"].prompts))
    trace, engine = tmp_path / "read.jsonl", Noter()
    settings = SETTINGS.replace(workflow="pairs")

    async def memories() -> list[str]:
        read = Read(
            "What?", text_document(DOCUMENT, is_example=True), engine, settings, trace=trace, resume=True
        )
        return [conversation.memory async for conversation in read]

    expected = asyncio.run(memories())
    assert engine.paid.total() == 3
    assert asyncio.run(memories()) == expected
    assert engine.paid.total() == 3
