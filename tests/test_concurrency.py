"""Side by side: bounded, in order, and nothing left running behind an error."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from memagent.concurrency import Turns, in_thread, map_concurrent


class Work:
    """Doubles numbers, slowly and unevenly; counts how many it does at a time."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.now = self.most = self.done = self.cancelled = 0
        self.fails_at = fails_at

    async def __call__(self, number: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(random.Random(number).random() / 100)
            if number == self.fails_at:
                raise ValueError(number)
            self.done += 1
            return 2 * number
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


async def results(work: Work, items: Any, limit: int, ordered: bool = True) -> list[int]:
    async with aclosing(map_concurrent(work, items, limit, ordered)) as stream:
        return [result async for result in stream]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_results_come_in_order_and_within_the_limit(limit: int) -> None:
    work = Work()
    assert asyncio.run(results(work, range(40), limit)) == [2 * number for number in range(40)]
    assert work.most == min(limit, 40)


def test_results_come_as_they_are_ready() -> None:
    numbers = asyncio.run(results(Work(), range(40), 8, ordered=False))
    assert sorted(numbers) == [2 * number for number in range(40)] != numbers


def test_items_are_taken_only_when_there_is_room() -> None:
    numbers: list[int] = []
    work = Work()

    def items() -> Iterator[int]:
        for number in range(30):
            numbers.append(number)
            assert len(numbers) - work.done <= 3
            yield number

    asyncio.run(results(work, items(), 3, ordered=False))
    assert len(numbers) == 30


def test_the_first_error_ends_it_and_nothing_stays_behind() -> None:
    work = Work(fails_at=5)

    async def run() -> None:
        with pytest.raises(ValueError, match="5"):
            await results(work, range(1000), 10)
        assert work.now == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert work.done + work.cancelled < 100


def test_a_consumer_that_stops_leaves_nothing_running() -> None:
    work = Work()

    async def run() -> None:
        async with aclosing(map_concurrent(work, range(1000), 10)) as stream:
            async for _ in stream:
                break
        assert work.now == 0

    asyncio.run(run())
    assert work.done < 50


def test_items_may_come_from_an_async_iterator() -> None:
    async def items() -> AsyncIterator[int]:
        for number in range(5):
            await asyncio.sleep(0)
            yield number

    assert asyncio.run(results(Work(), items(), 2)) == [0, 2, 4, 6, 8]


def test_what_blocks_does_not_hold_up_the_loop() -> None:
    def slow() -> Iterator[int]:
        for number in range(4):
            time.sleep(0.05)
            yield number

    async def run() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        assert [number async for number in in_thread(slow())] == [0, 1, 2, 3]
        ticking.cancel()
        return ticks

    assert asyncio.run(run()) > 10


def test_what_came_before_an_error_comes_before_it() -> None:
    def broken() -> Iterator[int]:
        yield from range(3)
        raise ValueError("broken")

    async def run() -> None:
        items = []
        with pytest.raises(ValueError, match="broken"):
            async for item in in_thread(broken()):
                items.append(item)
        assert items == [0, 1, 2]

    asyncio.run(run())


def test_slow_work_has_its_own_threads() -> None:
    """However many slow ones there are, others go on, and what waits for a turn can be cancelled."""
    go, started = threading.Event(), list[int]()

    def slow(number: int) -> Iterator[int]:
        started.append(number)
        assert go.wait(60)
        yield number

    async def take_all(items: Iterable[int], is_slow: bool) -> list[int]:
        return [item async for item in in_thread(items, lambda: is_slow)]

    async def run() -> None:
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            waiting = [asyncio.create_task(take_all(slow(n), is_slow=True)) for n in range(20)]
            try:
                async with asyncio.timeout(60):
                    while len(started) < 2:  # noqa: ASYNC110 a thread adds to it
                        await asyncio.sleep(0.005)
                    assert await take_all(range(20), is_slow=False) == list(range(20))
                assert len(started) < 10
                for task in waiting[10:]:
                    task.cancel()
                await asyncio.wait(waiting[10:])
            finally:
                go.set()
            assert await asyncio.gather(*waiting[:10]) == [[number] for number in range(10)]
            assert await take_all(range(3), is_slow=True) == [0, 1, 2]
        assert sorted(started) == list(range(10)), "a cancelled one was begun"

    asyncio.run(run())


def test_keys_take_turns_however_many_wait_for_one_of_them() -> None:
    worked: list[str] = []

    async def work(turns: Turns, key: str, number: int) -> None:
        async with turns.take(key):
            worked.append(f"{key}{number}")
            await asyncio.sleep(0)

    async def run() -> None:
        turns = Turns(1)
        tasks = [asyncio.create_task(work(turns, "a", number)) for number in range(9)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(work(turns, key, 0)) for key in "bc"]
        await asyncio.sleep(0)
        for task in tasks[1:8:2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await work(turns, "d", 0)  # every place was given back

    asyncio.run(run())
    assert worked == ["a0", "a2", "b0", "c0", "a4", "a6", "a8", "d0"]


def test_a_turn_that_comes_as_its_task_is_cancelled_goes_to_the_next() -> None:
    async def run() -> None:
        turns = Turns(1)

        async def wait() -> None:
            async with turns.take("b"):
                pass

        async with turns.take("a"):
            first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
            await asyncio.sleep(0)
        first.cancel()  # its turn has come, but it has not heard of it
        await asyncio.wait_for(second, 5)
        assert first.cancelled()

    asyncio.run(run())
