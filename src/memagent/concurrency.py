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
    Sequence,
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


async def side_by_side(
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
    begun: list[asyncio.Task[Result]] = []  # not yielded yet, in the items' order
    more = True
    try:
        while True:
            while more and len(begun) < _AHEAD * limit and sum(not it.done() for it in begun) < limit:
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    more = False
                else:
                    begun.append(asyncio.ensure_future(work(item)))
            if not begun:
                return
            ready = [task for task in begun if task.done()]
            for task in ready:
                task.result()  # raises the first error
            if ordered:
                ready = begun[:1] if begun[0].done() else []
            if ready:
                begun.remove(ready[0])
                yield ready[0].result()
            else:
                unfinished = [task for task in begun if not task.done()]
                await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await source.aclose()


async def one_by_one(
    work: Callable[[Item], Awaitable[Result]], items: AsyncIterable[Item]
) -> AsyncGenerator[Result, None]:
    """As `side_by_side`, but the next item is taken only once the result before it was used."""
    async for item in items:
        yield await work(item)


async def interleave(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Yield one item of each generator in turn until all have ended; each works ahead on its next item.

    An error is raised in its turn. An error, or closing this generator, cancels whatever is still running.
    """
    running = {place: asyncio.ensure_future(anext(source)) for place, source in enumerate(sources)}
    try:
        while running:
            for place in list(running):
                try:
                    item = await running[place]
                except StopAsyncIteration:
                    del running[place]
                else:
                    running[place] = asyncio.ensure_future(anext(sources[place]))
                    yield item
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        for source in sources:
            await source.aclose()


class Turns:
    """Lets `places` of those who come work at a time; the keys of those who wait take turns.

    So whoever has much to do does not keep others waiting for all of it.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the key whose turn is next comes first

    @asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[None]:
        """Wait for a place, and have it meanwhile."""
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
        """Give a place that is free to the next who waits for one."""
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
    """Take all items, for what the generator does to yield them; close it after an error."""
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
        taken: list[Item] = []
        try:
            while patient or not is_slow():
                taken.append(next(source))
                if patient or len(taken) == _MAX_AHEAD or time.monotonic() > until:
                    return taken, None, False
        except StopIteration:
            return taken, None, False
        except Exception as error:  # noqa: BLE001 - raised below, after the items before it
            return taken, error, False
        return taken, None, True

    loop, patient = asyncio.get_running_loop(), False
    while True:
        threads = _patient_threads() if patient else None
        taken, error, patient = await loop.run_in_executor(threads, some, patient)
        for item in taken:
            yield item
        if error:
            raise error
        if not (taken or patient):
            return


@cache
def _patient_threads() -> ThreadPoolExecutor:
    """The process's threads for items that may take minutes."""
    count = min(max(os.cpu_count() or 0, _MIN_PATIENT), _MAX_PATIENT)
    return ThreadPoolExecutor(count, thread_name_prefix="memagent-patient")
