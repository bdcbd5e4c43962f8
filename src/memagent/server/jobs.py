"""Reads that continue without their client: a few at a time, each with a journal that survives a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from memagent.concurrency import in_thread
from memagent.errors import JournalError, MemAgentError, StoreError
from memagent.reading.journal import read_journal
from memagent.reading.lines import outcome_of
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.workflows import chosen_workflow
from memagent.server.bodies import ReadOptions
from memagent.server.errors import ApiError, api_error
from memagent.server.metrics import Counted, Metrics
from memagent.server.store import UNFINISHED, Job, State, Store
from memagent.settings import ReadSettings
from memagent.types import Conversation, Engine, flatten

_log = logging.getLogger("memagent.server")

Stored = TypeVar("Stored")

_MOST_WAITING_EVENTS = 1000
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a read: a `conversation` with its number, its `progress`, or its `end`."""

    name: str
    data: Mapping[str, Any]
    number: int | None = None


@dataclass(slots=True)
class _Running:
    """A read in progress."""

    task: asyncio.Task[None]
    read: Read | None = None


@dataclass(slots=True)
class Jobs:
    """Runs the reads of the store, `workers` at a time, once `start` is called."""

    engine: Engine
    settings: ReadSettings
    store: Store
    metrics: Metrics
    workers: int
    _running: dict[str, _Running] = field(default_factory=dict)
    _listeners: defaultdict[str, set[asyncio.Queue[Event]]] = field(default_factory=lambda: defaultdict(set))
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _queued: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Start on the queue."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.workers)]

    async def stop(self) -> None:
        """Stop reading; the next server continues the unfinished reads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self) -> None:
        """Signal that something was queued."""
        self._queued.set()

    def progress(self, job: Job) -> Progress | None:
        """The progress of a read, if it is running here."""
        running = self._running.get(job.id)
        return running.read.progress if running and running.read else None

    def told(self, job: Job) -> dict[str, Any] | None:
        """The progress of a read, as sent to clients; of one that has ended, the last. None without any."""
        live = self.progress(job) if job.state in UNFINISHED else None
        return told_progress(live) if live else job.outcome.get("progress")

    def workflow(self, job: Job) -> str | None:
        """The workflow of a read; None if the settings that it was started with are no longer valid."""
        try:
            return chosen_workflow(self._settings(job), self.engine.model.trained)[0]
        except (MemAgentError, ValidationError):
            return None

    def _settings(self, job: Job) -> ReadSettings:
        return ReadOptions(**job.request["options"]).over(self.settings)

    async def cancel(self, job: Job) -> None:
        """End a read, whether it is queued or running."""
        if await asyncio.to_thread(self.store.end, job.id, "cancelled"):
            running = self._running.get(job.id)
            if running:
                running.task.cancel()
                await asyncio.wait({running.task})
            self._ended(job.id, "cancelled")

    async def events(self, job: Job, after: int, seconds: float) -> AsyncGenerator[Event, None]:
        """Yield the events of a read from conversation `after` + 1 on, its progress at least every `seconds`.

        A listener that does not keep up is dropped: it can come back with the last number that it received.
        """
        queue: asyncio.Queue[Event] = asyncio.Queue(_MOST_WAITING_EVENTS)
        listeners = self._listeners[job.id]
        listeners.add(queue)  # before the record is read, so that nothing is missed
        try:
            async for event in self._recorded(self.store.journal_of(job), after):
                after = event.number or after
                yield event
            now = await asyncio.to_thread(self.store.read, job.owner, job.id)
            if now is None or now.state not in UNFINISHED:
                yield Event("end", {"state": now.state if now else "cancelled"})
                return
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        event = await queue.get()
                except TimeoutError:
                    if queue not in listeners:
                        return
                    live = self.progress(job)
                    event = Event("progress", told_progress(live) if live else {"state": "queued"})
                if event.number is not None and event.number <= after:
                    continue
                yield event
                if event.name == "end":
                    return
        finally:
            listeners.discard(queue)
            if not listeners:
                self._listeners.pop(job.id, None)

    async def _recorded(self, journal: Path, after: int) -> AsyncIterator[Event]:
        number = 0
        try:
            async for line in in_thread(read_journal(journal)):
                if isinstance(line, Conversation):
                    number += 1
                    if number > after:
                        yield Event("conversation", outcome_of(line), number)
        except JournalError:
            return  # it has not begun

    def _tell(self, id: str, event: Event) -> None:
        for queue in list(self._listeners.get(id, ())):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._listeners[id].discard(queue)

    def _ended(self, id: str, state: State) -> None:
        self.metrics.reads.labels(state).inc()
        self._tell(id, Event("end", {"state": state}))

    async def _work(self) -> None:
        while True:
            self._queued.clear()
            job = await _stored(self.store.claim)
            if job is None:
                await self._queued.wait()
                continue
            self._queued.set()  # there may be more
            running = _Running(asyncio.create_task(self._run(job)))
            self._running[job.id] = running
            self.metrics.running.inc()
            try:
                await asyncio.wait({running.task})
            finally:
                running.task.cancel()
                await asyncio.gather(running.task, return_exceptions=True)
                self.metrics.running.dec()
                if self._running.get(job.id) is running:  # else it was resumed, and runs again
                    del self._running[job.id]

    async def _run(self, job: Job) -> None:
        """Run a read to its end, good or bad: the boundary at which failures become states."""
        state: State = "failed"
        try:
            outcome = await self._outcome(job)
            state = "done"
        except MemAgentError as error:
            outcome = api_error(error).body
        except Exception as error:  # noqa: BLE001 the boundary
            _log.error("a defect in memagent while reading %s: %s", job.id, type(error).__name__)
            outcome = ApiError(500, f"a defect in memagent: {type(error).__name__}", "defect").body
        running = self._running.get(job.id)
        if running and running.read:
            outcome = {**outcome, "progress": told_progress(running.read.progress)}
        if await _stored(partial(self.store.end, job.id, state, outcome)):
            self._ended(job.id, state)

    async def _outcome(self, job: Job) -> dict[str, Any]:
        """The outcome of a read. A journal that it cannot continue, say of another window, is set aside.

        One that cannot be opened or written now, say because the disk is full, is kept for later.
        """
        journal = self.store.journal_of(job)
        resume = await asyncio.to_thread(journal.exists)
        try:
            return await self._read(job, journal, resume)
        except JournalError as error:
            read = self._running[job.id].read
            if not resume or read is None or read.progress.spent.calls or _is_of_system(error):
                raise
        await asyncio.to_thread(journal.replace, journal.with_name("earlier.jsonl"))
        return await self._read(job, journal, resume=False)

    async def _read(self, job: Job, journal: Path, resume: bool) -> dict[str, Any]:
        request = job.request
        document = await asyncio.to_thread(self.store.document_of, job)
        read = Read(
            request["problem"],
            document,
            Counted(self.engine, self.metrics),
            self._settings(job),
            trace=journal,
            resume=resume,
            memory=request["memory"],
        )
        self._running[job.id].read = read
        async with aclosing(aiter(read)) as conversations:
            async for conversation in conversations:
                now = read.progress
                self._tell(job.id, Event("conversation", outcome_of(conversation), now.spent.calls))
                self._tell(job.id, Event("progress", told_progress(now)))
                await asyncio.to_thread(self.store.check_in_place)  # before more is paid for
        result = flatten(read.result)
        del result["trace"]  # a path on this machine
        return {"result": result}


async def _stored(change: Callable[[], Stored]) -> Stored:
    """Change the store in a thread. While that cannot be, say so and try again: no read may be lost."""
    while True:
        try:
            return await asyncio.to_thread(change)
        except StoreError as error:
            _log.error("the reads cannot be stored: %s; trying again", error)
            await asyncio.sleep(_PAUSE_SECONDS)


def _is_of_system(error: BaseException | None) -> bool:
    """Whether the operating system's refusal led to an error."""
    return error is not None and (isinstance(error, OSError) or _is_of_system(error.__cause__))


def told_progress(progress: Progress) -> dict[str, Any]:
    """The progress of a read, as sent to clients."""
    return {**flatten(progress), "chunks_in_all": progress.chunks_in_all}
