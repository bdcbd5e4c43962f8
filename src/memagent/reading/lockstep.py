"""Keep several reads of one document in step, so that what their prompts have in common is computed once.

In our prompts the chunk comes before the problem. If all questions about a chunk are asked one after the
other, a server with a prefix cache computes the chunk once for all of them. So each read calls an engine of
its own, which waits until all reads are waiting. Then those furthest behind take their turn: of prompts that
begin alike, one goes first, and the others follow side by side once it has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memagent.concurrency import drain, side_by_side
from memagent.engines.wrappers import Wrapper
from memagent.reading.progress import Progress
from memagent.types import Completion, Engine, Message, Sampling

_ALIKE = 0.25  # of the shorter prompt


@dataclass(eq=False)
class _Call:
    """A call waiting for its turn."""

    messages: tuple[Message, ...]
    sampling: Sampling
    done: asyncio.Future[Completion]

    @property
    def text(self) -> str:
        return "\x1e".join(message.content for message in self.messages)


class Seat(Wrapper):
    """The engine of one of the reads; `progress` tells how far that is. Call `leave` when the read ends."""

    def __init__(self, together: Together) -> None:
        super().__init__(together.engine)
        self.together = together
        self.progress: Callable[[], Progress] = Progress
        self.waiting: list[_Call] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the wrapped engine, in this read's turn; at once if there is only one read."""
        if len(self.together.seats) == 1:
            return await super().complete(messages, sampling)
        loop = asyncio.get_running_loop()
        call = _Call(messages, sampling, loop.create_future())
        self.waiting.append(call)
        loop.call_soon(self.together.begin)  # once the calls beside it wait as well
        try:
            return await call.done
        finally:
            if call in self.waiting:
                self.waiting.remove(call)

    def leave(self) -> None:
        """The read has ended: the others no longer wait for it."""
        if self in self.together.present:
            self.together.present.remove(self)
        self.together.begin()

    @property
    def place(self) -> tuple[int, int]:
        """How far the read is: its pass, and how many chunks of it have had their turn."""
        now = self.progress()
        return now.passes, now.reread if now.passes > 1 else now.chunks


class Together:
    """Gives several reads their turns, one seat for each."""

    def __init__(self, engine: Engine, seats: int) -> None:
        self.engine = engine
        self.seats = [Seat(self) for _ in range(seats)]
        self.present = list(self.seats)
        self._running: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Give the turn to the reads furthest behind, if all are waiting and no call is running."""
        if self._running or not self.present or not all(seat.waiting for seat in self.present):
            return
        behind = min(seat.place for seat in self.present)
        calls = [call for seat in self.present if seat.place == behind for call in seat.waiting]
        for seat in self.present:
            if seat.place == behind:
                seat.waiting = []
        for alike in _groups(calls):
            task = asyncio.ensure_future(self._turn(alike))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.begin()

    async def _turn(self, calls: Sequence[_Call]) -> None:
        """Make the first call, then the others, as many at a time as the engine takes."""
        first, *others = calls
        await self._made(first)
        await drain(side_by_side(self._made, others, self.engine.model.calls))

    async def _made(self, call: _Call) -> None:
        if call.done.done():  # its read was cancelled
            return
        work = asyncio.ensure_future(self.engine.complete(call.messages, call.sampling))
        call.done.add_done_callback(lambda done: work.cancel() if done.cancelled() else None)
        try:
            completion = await work
        except asyncio.CancelledError:
            call.done.cancel()
            if not work.cancelled():
                work.cancel()
                raise
        except Exception as error:  # noqa: BLE001 - raised in the read whose call it is
            if not call.done.done():
                call.done.set_exception(error)
        else:
            if not call.done.done():
                call.done.set_result(completion)


def _groups(calls: Sequence[_Call]) -> list[list[_Call]]:
    """Group the calls whose prompts share a long beginning."""
    groups: list[list[_Call]] = []
    for call in sorted(calls, key=lambda call: call.text):
        if groups:
            first = groups[-1][0].text
            alike = int(_ALIKE * min(len(first), len(call.text)))
            if first[:alike] == call.text[:alike]:
                groups[-1].append(call)
                continue
        groups.append([call])
    return groups
