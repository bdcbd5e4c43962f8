"""The reads of the server, whoever asks for them: each with a journal that survives a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from memagent.concurrency import Turns
from memagent.errors import JournalError, MemAgentError, StoreError
from memagent.reading.lines import outcome_of
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.workflows import choose_workflow
from memagent.server.database import UNFINISHED, Job
from memagent.server.documents import Content
from memagent.server.errors import api_error
from memagent.server.events import Event, describe_progress, read_events
from memagent.server.gate import CountedEngine, Metrics
from memagent.server.schemas import ReadOptions, State
from memagent.server.sharing import SharedEngine
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Engine, flatten

_log = logging.getLogger("memagent.server")

Stored = TypeVar("Stored")

_MAX_WAITING_EVENTS = 1000
_READS_AT_A_TIME = 500  # each keeps files open
_PAUSE_SECONDS = 1.0


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    attended: bool
    read: Read | None = None


@dataclass(slots=True)
class Jobs:
    """Runs the reads of the store: of those in the queue, as many at a time as the engine takes calls.

    A key without a running read need not wait for those of others, and the keys take turns with the engine's
    calls. If it is `private`, no key learns what the engine had cached, perhaps for another. A client may
    leave while its read is begun, resumed or cancelled: the change is made all the same.
    """

    engine: Engine
    settings: ReadSettings
    store: Store
    metrics: Metrics
    private: bool = False
    slots: Turns = field(default_factory=lambda: Turns(_READS_AT_A_TIME))
    _turns: Turns = field(init=False)  # with the engine's calls
    _running: dict[str, _Running] = field(default_factory=dict)
    _listeners: defaultdict[str, set[asyncio.Queue[Event]]] = field(default_factory=lambda: defaultdict(set))
    _ending: dict[str, asyncio.Task[object]] = field(default_factory=dict)  # reads being cancelled or deleted
    _cancellations: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)  # the queue, or what is running

    def __post_init__(self) -> None:
        """Take as many turns as the engine takes calls."""
        self._turns = Turns(self.engine.model.calls)

    def engine_of(self, owner: str) -> SharedEngine:
        """The engine as this key uses it."""
        return SharedEngine(self.engine, owner, self._turns, self.private)

    @asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """Work through the queue meanwhile; the next server continues what is unfinished then."""
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            tasks = [worker, *(running.task for running in self._running.values()), *self._ending.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(
        self,
        owner: str,
        key: str | None,
        request: Mapping[str, Any],
        documents: Sequence[tuple[str, Content]],
        attended: bool = False,
    ) -> Job:
        """Begin a read, or continue the one that this owner began with the same key. See `Store.begin_read`.

        An `attended` read runs only while someone listens to its `events`: the first listener starts it, and
        it is cancelled when the last one leaves. All others are queued and need no listener. An attended read
        that is begun again without this needs none from then on. Raises `ApiError` and `StoreError`.
        """
        begin = partial(self.store.begin_read, owner, key, request, documents, attended)
        beginning = asyncio.ensure_future(self._begin(begin, attended))

        def abandon(future: asyncio.Future[Job]) -> None:
            if attended and not future.cancelled() and not future.exception():
                job = future.result()
                if not (job.id in self._running or job.id in self._listeners or job.id in self._ending):
                    self._abandon(job)

        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:  # the client has left
            beginning.add_done_callback(abandon)
            raise

    async def _begin(self, begin: Callable[[], Job], attended: bool) -> Job:
        while True:
            before = self._cancellations
            job = await asyncio.to_thread(begin)
            if ending := self._ending.get(job.id):  # its last listener left at this moment
                await asyncio.wait({ending})
            elif before == self._cancellations and job.state in (*UNFINISHED, "done"):
                break  # else it may have been cancelled since its state was looked up
        if not attended:
            was_attended, job = job.attended, replace(job, attended=False)
            if running := self._running.get(job.id):
                running.attended = False
            elif was_attended and job.state == "running":  # its client left before it listened
                self._start(job)
            self._changed.set()
        return job

    async def resume(self, job: Job) -> bool:
        """Queue a read that failed or was cancelled; False for any other."""
        return await asyncio.shield(self._resume(job))

    async def _resume(self, job: Job) -> bool:
        queued = await asyncio.to_thread(self.store.requeue, job.id)
        self._changed.set()
        return queued

    async def cancel(self, job: Job) -> None:
        """End a read, whether it is queued or running."""
        await asyncio.shield(self._cancel(job))

    async def _cancel(self, job: Job) -> None:
        if await asyncio.to_thread(self.store.end, job.id, "cancelled"):
            await self._stop(job.id)
            self._end(job.id, "cancelled")

    async def forget(self, job: Job) -> None:
        """Delete a read, now or as soon as the store can: a client that asks again wants another answer."""
        delete = partial(self.store.delete_read, job.id, durable=False)
        try:
            await asyncio.to_thread(delete)
        except StoreError:
            self._finish(job, _store(delete))

    def progress(self, job: Job) -> Progress | None:
        """The progress of a read, if it is running here."""
        running = self._running.get(job.id)
        return running.read.progress if running and running.read else None

    def last_progress(self, job: Job) -> Mapping[str, Any] | None:
        """The progress of a read as clients see it; the last one if it has ended, None without any."""
        live = self.progress(job) if job.state in UNFINISHED else None
        return describe_progress(live) if live else job.outcome.get("progress")

    def describe_workflow(self, job: Job) -> dict[str, Any]:
        """A read's workflow, and what it says of itself; None if its settings are no longer valid."""
        try:
            name, workflow = choose_workflow(self.settings_of(job), self.engine.model.trained)
        except (MemAgentError, ValidationError):
            return {"workflow": None, "takes_notes": False}
        return {"workflow": name, "takes_notes": workflow.takes_notes}

    def settings_of(self, job: Job) -> ReadSettings:
        """The settings of a read. Raises `SettingsError`, `ValidationError` if they are no longer valid."""
        return ReadOptions(**job.request["options"]).over(self.settings)

    async def events(self, job: Job, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the events of a read from conversation `after` + 1 on.

        A listener that does not keep up is dropped: it can come back with the last number that it received.
        """
        queue: asyncio.Queue[Event] = asyncio.Queue(_MAX_WAITING_EVENTS)
        listeners = self._listeners[job.id]
        listeners.add(queue)  # before the record is read, so that nothing is missed
        has_ended = False
        try:
            if job.attended and job.state == "running" and job.id not in self._running:
                self._start(job)
            async with aclosing(self._events(job, queue, after)) as events:
                async for event in events:
                    has_ended = event.name == "end"
                    yield event
        finally:
            listeners.discard(queue)
            if not listeners:
                self._listeners.pop(job.id, None)
                running = self._running.get(job.id)
                if not has_ended and (running.attended if running else job.attended):
                    self._abandon(job)

    async def _events(self, job: Job, queue: asyncio.Queue[Event], after: int) -> AsyncGenerator[Event, None]:
        async for event in read_events(self.store.journal_of(job), after):
            after = event.number or after
            yield event
        now = await asyncio.to_thread(self.store.read, job.owner, job.id)
        if queue.empty() and (now is None or now.state not in UNFINISHED):  # else its end is in the queue
            state = now.state if now else "cancelled"
            yield Event("end", {"state": state}, outcome=now.outcome if now else {})
            return
        while queue in self._listeners[job.id] or not queue.empty():
            event = await queue.get()
            if event.number is None or event.number > after:
                yield event
            if event.name == "end":
                return

    def _tell(self, id: str, event: Event) -> None:
        for queue in list(self._listeners.get(id, ())):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._listeners[id].discard(queue)

    def _end(self, id: str, state: State, outcome: Mapping[str, Any] | None = None) -> None:
        self.metrics.reads.labels(state).inc()
        self._tell(id, Event("end", {"state": state}, outcome=outcome or {}))

    def _abandon(self, job: Job) -> None:
        """Cancel a read that nobody listens to any more."""

        async def cancel() -> None:
            await self._stop(job.id)
            if await _store(partial(self.store.end, job.id, "cancelled", durable=False)):
                self._end(job.id, "cancelled")
            self._cancellations += 1

        self._finish(job, cancel())

    def _finish(self, job: Job, work: Coroutine[Any, Any, object]) -> None:
        """Do the last that is to be done with a read, while others go on."""
        self._ending[job.id] = task = asyncio.create_task(work)

        def drop(_task: asyncio.Task[object]) -> None:
            if self._ending.get(job.id) is task:
                del self._ending[job.id]

        task.add_done_callback(drop)

    async def _work(self) -> None:
        """Start the reads of the queue. One task does so, however many reads run."""
        while True:
            self._changed.clear()
            job = await _store(partial(self.store.claim, self.engine.model.calls))
            if job is None:
                await self._changed.wait()
                continue
            await self._stop(job.id)  # if it was cancelled a moment ago
            self._start(job)

    def _start(self, job: Job) -> None:
        task = asyncio.create_task(self._run(job))
        self._running[job.id] = running = _Running(task, job.attended)
        self.metrics.running.inc()

        def end(_task: asyncio.Task[None]) -> None:
            self.metrics.running.dec()
            if self._running.get(job.id) is running:
                del self._running[job.id]
            self._changed.set()

        task.add_done_callback(end)

    async def _stop(self, id: str) -> None:
        if running := self._running.get(id):
            running.task.cancel()
            await asyncio.wait({running.task})

    async def _run(self, job: Job) -> None:
        """Run a read to its end, good or bad: the boundary at which failures become states."""
        running = self._running[job.id]
        state: State = "failed"
        try:
            async with self.slots.take(job.owner):
                now = await asyncio.to_thread(self.store.read, job.owner, job.id)
                if now is None or now.state != "running":  # cancelled between its claim and its start
                    return
                outcome = await self._read(job)
            state = "done"
        except Exception as error:  # noqa: BLE001 the boundary
            if not isinstance(error, MemAgentError):
                _log.error("a defect in memagent while reading %s: %s", job.id, type(error).__name__)
            outcome = api_error(error).body
        if running.read:
            outcome["progress"] = describe_progress(running.read.progress)
        end = partial(self.store.end, job.id, state, outcome, durable=not running.attended)
        try:
            was_open = await (asyncio.to_thread(end) if running.attended else _store(end))
        except StoreError:
            was_open = True  # those who wait hear of it all the same
        if was_open:
            self._end(job.id, state, outcome)

    async def _read(self, job: Job) -> dict[str, Any]:
        """Read to the end. A journal that cannot be continued, say of another window, is set aside.

        One that cannot be opened or written now, say because the disk is full, is kept for later.
        """
        journal, running = self.store.journal_of(job), self._running[job.id]
        resume = await asyncio.to_thread(journal.exists)
        try:
            return await self._try(job, resume)
        except JournalError as error:
            read = running.read
            if not resume or read is None or read.progress.spent.calls or _is_of_system(error):
                raise
        await asyncio.to_thread(journal.replace, journal.with_name("earlier.jsonl"))
        return await self._try(job, resume=False)

    async def _try(self, job: Job, resume: bool) -> dict[str, Any]:
        read = self._running[job.id].read = Read(
            job.request["problem"],
            await asyncio.to_thread(self.store.document_of, job),
            CountedEngine(self.engine_of(job.owner), self.metrics),
            self.settings_of(job),
            trace=self.store.journal_of(job),
            resume=resume,
            memory=job.request["memory"],
        )
        number = 0
        async with aclosing(aiter(read)) as conversations:
            async for conversation in conversations:
                number += 1  # as in the journal
                self._tell(job.id, Event("conversation", outcome_of(conversation), number))
                self._tell(job.id, Event("progress", read.progress))
                await asyncio.to_thread(self.store.check_in_place)  # before more is paid for
        result = flatten(read.result)
        del result["trace"]  # a path on this machine
        return {"result": result}


async def _store(change: Callable[[], Stored]) -> Stored:
    """Change the store in a thread. While that fails, log it and try again: no read may be lost."""
    level = logging.ERROR
    while True:
        try:
            return await asyncio.to_thread(change)
        except StoreError as error:
            _log.log(level, "the reads cannot be stored: %s; trying again", error)
            level = logging.INFO  # once is enough
            await asyncio.sleep(_PAUSE_SECONDS)


def _is_of_system(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, OSError) or _is_of_system(error.__cause__))
