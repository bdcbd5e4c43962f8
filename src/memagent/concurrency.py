"""Run work concurrently, within bounds."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import cache
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # calls whose results were not yielded yet, as a multiple of the limit
_MAX_AHEAD = 8  # items fetched per visit to a thread
_MOMENT_SECONDS = 0.002
_MIN_PATIENT, _MAX_PATIENT = 2, 8  # threads: a slow item keeps a core busy


async def map_concurrent(
    work: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item] | AsyncIterable[Item],
    limit: int,
    ordered: bool = True,
) -> AsyncGenerator[Result, None]:
    """Await `work(item)` for all items, at most `limit` at a time, and yield the results.

    Results come in the items' order or, if `ordered` is False, as they are ready. An item is taken only when
    there is room for it. The first error is raised at once. An error, or closing the generator, cancels
    whatever is still running.
    """
    source = _each(items)
    tasks: list[asyncio.Task[Result]] = []  # not yielded yet, in the items' order
    more = True
    try:
        while True:
            while more and len(tasks) < _AHEAD * limit and sum(not task.done() for task in tasks) < limit:
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    more = False
                else:
                    tasks.append(asyncio.ensure_future(work(item)))
            if not tasks:
                return
            ready = [task for task in tasks if task.done()]
            for task in ready:
                task.result()  # raises the first error
            if ordered:
                ready = tasks[:1] if tasks[0].done() else []
            if ready:
                tasks.remove(ready[0])
                yield ready[0].result()
            else:
                unfinished = [task for task in tasks if not task.done()]
                await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await source.aclose()


async def one_by_one(
    work: Callable[[Item], Awaitable[Result]], items: AsyncIterable[Item]
) -> AsyncGenerator[Result, None]:
    """Like `map_concurrent`, but the next item is taken only once the result before it was used."""
    async for item in items:
        yield await work(item)


class Turns:
    """Lets at most `limit` callers work at a time; the keys of those who wait take turns.

    A key with many callers thus does not keep the others waiting for all of them.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the key whose turn is next comes first

    @asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it until the end of the `async with`."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it came at this moment
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a free turn to the next caller who waits for one."""
        while self._waiting:
            key = next(iter(self._waiting))
            line = self._waiting.pop(key)
            turn = line.popleft()
            while turn.cancelled() and line:
                turn = line.popleft()
            if line:
                self._waiting[key] = line  # behind the others
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1


async def drain(items: AsyncGenerator[Any, None]) -> None:
    """Run a generator to its end for its side effects; close it after an error."""
    async with aclosing(items):
        async for _ in items:
            pass


async def _each(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncGenerator[Item, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def in_thread(
    items: Iterable[Item], is_slow: Callable[[], bool] = lambda: False
) -> AsyncGenerator[Item, None]:
    """Yield the items of a blocking iterable, fetched in a thread so that the event loop stays free.

    Each visit to the thread fetches as many items as come within a moment, because switching threads takes
    longer than most items. `is_slow` is called in the thread before each item. A slow item, which may take
    minutes, waits for one of a few threads reserved for such items, so that they never occupy all threads.
    """
    source = iter(items)

    def some(patient: bool) -> tuple[list[Item], Exception | None, bool]:
        until = time.monotonic() + _MOMENT_SECONDS
        fetched: list[Item] = []
        try:
            while patient or not is_slow():
                fetched.append(next(source))
                if patient or len(fetched) == _MAX_AHEAD or time.monotonic() > until:
                    return fetched, None, False
        except StopIteration:
            return fetched, None, False
        except Exception as error:  # noqa: BLE001 - raised below, after the items before it
            return fetched, error, False
        return fetched, None, True

    loop, patient = asyncio.get_running_loop(), False
    while True:
        threads = _patient_threads() if patient else None
        fetched, error, patient = await loop.run_in_executor(threads, some, patient)
        for item in fetched:
            yield item
        if error:
            raise error
        if not (fetched or patient):
            return


@cache
def _patient_threads() -> ThreadPoolExecutor:
    """The process's threads for items that may take minutes."""
    count = min(max(os.cpu_count() or 0, _MIN_PATIENT), _MAX_PATIENT)
    return ThreadPoolExecutor(count, thread_name_prefix="memagent-patient")
