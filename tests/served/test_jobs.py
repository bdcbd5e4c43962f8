"""`Jobs.begin`: the same key continues, and an attended read runs while someone listens."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

import pytest

from function_engine import FunctionEngine, HeldEngine
from memagent.server.database import Job
from memagent.server.events import Event
from memagent.server.gate import Metrics
from memagent.server.jobs import Jobs
from memagent.server.schemas import State
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Engine
from server import facts_document

SETTINGS = ReadSettings(
    workflow="overwrite", problem_tokens=60, chunk_tokens=120, memory_tokens=300, answer_tokens=300
)
REQUEST = {"problem": "Which facts?", "memory": "", "options": {}}
CALLS = 5


@asynccontextmanager
async def jobs_of(engine: Engine, folder: Path) -> AsyncIterator[Jobs]:
    with Store(folder) as store:
        jobs = Jobs(engine, SETTINGS, store, Metrics())
        async with jobs.work():
            yield jobs


async def begin(jobs: Jobs, attended: bool = True, key: str | None = "key") -> Job:
    return await jobs.begin("owner", key, REQUEST, [("text", facts_document(9))], attended=attended)


async def listen(jobs: Jobs, job: Job) -> list[Event]:
    """All events of a read."""
    async with aclosing(jobs.events(job)) as events:
        return [event async for event in events]


async def listen_to_the_first_call(engine: HeldEngine, jobs: Jobs, job: Job) -> asyncio.Task[list[Event]]:
    """Someone who listens to a read, whose first call is in flight."""
    listener = asyncio.create_task(listen(jobs, job))
    await engine.held.wait()
    return listener


async def leave(listener: asyncio.Task[Any]) -> None:
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


async def wait_for_state(jobs: Jobs, state: str) -> None:
    """Wait until the only read has this state."""

    def state_now() -> str | None:
        names = [path.name for path in (jobs.store.folder / "reads").iterdir()]
        return next((job.state for name in names if (job := jobs.store.read("owner", name))), None)

    while state_now() != state:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run some work that must end."""
    asyncio.run(asyncio.wait_for(work, 60))


def test_two_who_begin_the_same_listen_to_one_read_and_one_may_leave(facts: Any, tmp_path: Path) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, tmp_path) as jobs:
            first, second = await asyncio.gather(begin(jobs), begin(jobs))
            assert first.id == second.id and (await begin(jobs, key="other")).id != first.id
            listeners = [asyncio.create_task(listen(jobs, job)) for job in (first, second)]
            await engine.held.wait()
            await leave(listeners[0])
            engine.go.set()
            *_, end = await listeners[1]
            assert (end.name, end.data) == ("end", {"state": "done"}) and "FACT-8" in str(end.outcome)
            assert engine.paid == CALLS
            assert len(list((tmp_path / "reads").iterdir())) == 2

    finish(run())


def test_the_last_to_leave_cancels_and_whoever_begins_the_same_at_once_continues(
    facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, tmp_path) as jobs:
            job = await begin(jobs)
            listener = await listen_to_the_first_call(engine, jobs, job)
            await leave(listener)
            again = await begin(jobs)
            engine.go.set()
            *_, end = await listen(jobs, again)
            assert (again.id, end.data) == (job.id, {"state": "done"})
            assert engine.paid == CALLS, "the call in flight was cancelled, and no other was made twice"

    finish(run())


def test_an_attended_read_is_not_begun_while_nobody_listens_and_stays_cancelled_when_they_left(
    facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, tmp_path) as jobs:
            job, other = await begin(jobs), await begin(jobs, attended=False, key=None)
            engine.go.set()
            assert (await listen(jobs, other))[-1].data == {"state": "done"}  # the queue has been worked off
            assert engine.paid == CALLS
            engine.paid = 0
            engine.go.clear()
            engine.held.clear()
            listener = await listen_to_the_first_call(engine, jobs, job)
            await leave(listener)
            while (now := jobs.store.read("owner", job.id)) and now.state != "cancelled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert now

    finish(run())


def test_an_attended_read_that_is_begun_to_last_needs_no_listener_any_more(
    facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, tmp_path) as jobs:
            job = await begin(jobs)
            listener = await listen_to_the_first_call(engine, jobs, job)
            assert (await begin(jobs, attended=False)).id == job.id
            await leave(listener)
            engine.go.set()
            assert (await listen(jobs, job))[-1].data == {"state": "done"}
            assert engine.paid == CALLS

    finish(run())


def test_a_read_whose_client_left_before_it_listened_can_be_begun_to_last(facts: Any, tmp_path: Path) -> None:
    async def run() -> None:
        engine = facts()
        async with jobs_of(engine, tmp_path) as jobs:
            first = await begin(jobs)
            job = await begin(jobs, attended=False)
            assert (await listen(jobs, job))[-1].data == {"state": "done"}
            assert (job.id, len(engine.prompts)) == (first.id, CALLS)

    finish(run())


def test_a_listener_that_does_not_keep_up_is_dropped_and_can_come_back(
    facts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memagent.server.jobs._MAX_WAITING_EVENTS", 2)

    async def run() -> None:
        async with jobs_of(facts(), tmp_path) as jobs:
            job = await begin(jobs)
            async with aclosing(jobs.events(job)) as events:
                received_events = [await anext(events)]
                while (now := jobs.store.read("owner", job.id)) and now.state != "done":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                received_events += [event async for event in events]
            assert [event.name for event in received_events] == ["conversation", "progress", "conversation"]
            rest = [event.number for event in await listen(jobs, job)]
            assert rest == [*range(1, CALLS + 1), None]

    finish(run())


def test_only_lasting_reads_continue_by_themselves_after_a_restart(facts: Any, tmp_path: Path) -> None:
    folder, killed = tmp_path / "data", tmp_path / "killed"

    async def begin_both() -> tuple[str, str]:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, folder) as jobs:
            attended, lasting = await begin(jobs), await begin(jobs, attended=False, key=None)
            listener = asyncio.create_task(listen(jobs, attended))
            await engine.held.wait()
            shutil.copytree(folder, killed)
            engine.go.set()
            await listener
            return attended.id, lasting.id

    async def restart(attended: str, lasting: str) -> None:
        async with jobs_of(facts(), killed) as jobs:
            job = jobs.store.read("owner", lasting)
            assert job and (await listen(jobs, job))[-1].data == {"state": "done"}
            attended_job = jobs.store.read("owner", attended)
            assert attended_job and attended_job.state == "cancelled"

    finish(restart(*asyncio.run(begin_both())))


def test_an_attended_read_whose_client_leaves_while_it_is_stored_is_cancelled(
    facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        async with jobs_of(HeldEngine(facts()), tmp_path) as jobs:
            beginning = asyncio.create_task(begin(jobs))
            await asyncio.sleep(0)
            await leave(beginning)
            await wait_for_state(jobs, "cancelled")
            assert (await listen(jobs, await begin(jobs)))[-1].data == {"state": "done"}

    finish(run())


def test_two_who_leave_at_once_cancel_no_read_of_a_third(
    facts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, end = iter([0.0, 0.4, 0.0]), Store.end

    def end_slowly(store: Store, id: str, state: State, *outcome: Any, **options: Any) -> bool:
        time.sleep(next(seconds))
        return end(store, id, state, *outcome, **options)

    monkeypatch.setattr(Store, "end", end_slowly)

    async def run() -> None:
        engine = HeldEngine(facts(), free=2)
        async with jobs_of(engine, tmp_path) as jobs:
            beginnings = [asyncio.create_task(begin(jobs)) for _ in range(2)]
            for _ in range(3):  # until both are being stored
                await asyncio.sleep(0)
            for beginning in beginnings:
                beginning.cancel()
            time.sleep(0.5)  # noqa: ASYNC251 so that both are known to be stored at the same moment
            await asyncio.gather(*beginnings, return_exceptions=True)
            await wait_for_state(jobs, "cancelled")
            await asyncio.sleep(0.1)
            job = await begin(jobs)
            listener = await listen_to_the_first_call(engine, jobs, job)
            await asyncio.sleep(0.5)
            engine.go.set()
            assert (await listener)[-1].data == {"state": "done"}

    finish(run())


@pytest.mark.parametrize("before", ["new", "attended", "failed"])
def test_a_lasting_read_whose_client_leaves_while_it_is_stored_is_read(
    before: str, facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        async with jobs_of(facts(), tmp_path) as jobs:
            await asyncio.sleep(0.2)  # until the worker waits for something to do
            job = await begin(jobs) if before != "new" else None
            if job and before == "failed":
                jobs.store.end(job.id, "failed")
                change: Coroutine[Any, Any, Any] = jobs.resume(job)
            else:
                change = begin(jobs, attended=False)
            changing = asyncio.create_task(change)
            await asyncio.sleep(0)
            await leave(changing)
            await wait_for_state(jobs, "done")

    finish(run())


def test_a_read_is_stopped_even_if_the_client_who_cancels_it_leaves(facts: Any, tmp_path: Path) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=2)
        async with jobs_of(engine, tmp_path) as jobs:
            job = await begin(jobs, attended=False)
            listener = await listen_to_the_first_call(engine, jobs, job)
            cancelling = asyncio.create_task(jobs.cancel(job))
            await asyncio.sleep(0)
            await leave(cancelling)
            assert (await listener)[-1].data == {"state": "cancelled"}
            assert engine.busy == 0

    finish(run())


def test_one_of_two_who_is_slow_to_listen_has_the_result_though_the_other_forgets_the_read(
    facts: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with jobs_of(engine, tmp_path) as jobs:
            job = await begin(jobs)
            first = await listen_to_the_first_call(engine, jobs, job)
            async with aclosing(jobs.events(await begin(jobs))) as events:
                await anext(events)  # the journal has begun to be replayed
                engine.go.set()
                await first
                await jobs.forget(job)
                *_, end = [event async for event in events]
            assert end.data == {"state": "done"} and "FACT-8" in str(end.outcome)

    finish(run())


def test_the_events_of_a_read_that_counts_have_the_same_numbers_live_and_on_record(tmp_path: Path) -> None:
    plan = {"row": "one payment", "fields": [{"name": "amount", "type": "money"}],
            "sql": "SELECT SUM(amount) FROM rows"}  # fmt: skip

    def tally(prompt: str) -> str:
        return json.dumps(plan if prompt.rstrip().endswith("The JSON object:") else [{"amount": "5 EUR"}])

    async def run() -> None:
        engine = FunctionEngine(tally, window_tokens=4000)
        async with jobs_of(engine, tmp_path) as jobs:
            request = {"problem": "How much in all?", "memory": "", "options": {"workflow": "tally"}}
            document = "Bo got 5 EUR from us.\n\n" + ("Nothing else was said that day. " * 60 + "\n\n") * 3
            job = await jobs.begin("owner", "key", request, [("text", document)], attended=True)
            live, recorded = await listen(jobs, job), await listen(jobs, job)
            assert live[-1].data == {"state": "done"}, live[-1].outcome
            numbers = [event.number for event in live if event.name == "conversation"]
            assert numbers == [event.number for event in recorded if event.name == "conversation"]

    finish(run())


def test_a_read_that_is_cancelled_between_its_claim_and_its_start_is_not_read(
    facts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, claimed, go = HeldEngine(facts()), ThreadEvent(), ThreadEvent()
    claim = Store.claim

    def claim_slowly(store: Store, most: int) -> Job | None:
        if job := claim(store, most):
            claimed.set()
            assert go.wait(20)
        return job

    monkeypatch.setattr(Store, "claim", claim_slowly)

    async def run() -> None:
        async with jobs_of(engine, tmp_path) as jobs:
            job = await begin(jobs, attended=False)
            assert await asyncio.to_thread(claimed.wait, 20)
            await jobs.cancel(job)
            go.set()
            other = await begin(jobs, attended=False, key="other")
            assert (await listen(jobs, other))[-1].data == {"state": "done"}
            assert engine.paid == CALLS, "the other's"
            assert (await listen(jobs, job))[-1].data == {"state": "cancelled"}

    finish(run())


def test_an_interrupted_read_is_kept_for_a_week(tmp_path: Path) -> None:
    with Store(tmp_path) as store:

        def add(key: str, attended: bool = True) -> Job:
            return store.begin_read("owner", key, REQUEST, [("text", "some text")], attended)

        abandoned, lasting, done, running = add("left"), add("lasting", False), add("done"), add("running")
        for job in (abandoned, lasting):
            store.end(job.id, "cancelled")
        store.end(done.id, "done")
        assert add("left").id == abandoned.id
        store.end(abandoned.id, "cancelled")
        store.max_age_seconds = -1.0
        add("next")
        kept_ids = [job.id for job in (abandoned, lasting, done, running) if store.read("owner", job.id)]
    assert abandoned.id not in kept_ids and not (tmp_path / "reads" / abandoned.id).exists()
    assert kept_ids[:3] == [lasting.id, done.id, running.id]
