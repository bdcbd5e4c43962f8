"""Keep several reads of one document in step, so that what their prompts have in common is computed once.

In our prompts the chunk comes before the problem. If all questions about a chunk are asked one after the
other, a server with a prefix cache computes the chunk once for all of them. So each read calls an engine of
its own, which waits until all reads are waiting. Then the read furthest behind takes its turn, and with it
whatever the others wait for up to that chunk: of prompts that begin alike, one goes first, and the others
follow side by side once it has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from memagent.engines.wrappers import Wrapper
from memagent.reading.passes import reached
from memagent.types import Completion, Engine, Message, Sampling

_ALIKE = 0.25  # of the shorter prompt


@dataclass(eq=False, slots=True)
class _Call:
    """A call that waits for its turn. Once it has ended, its `followers` take theirs."""

    text: str
    turn: asyncio.Future[None]
    reached: tuple[int, int] = field(default_factory=reached.get)
    followers: list[_Call] = field(default_factory=list)


class Seat(Wrapper):
    """The engine of one of the reads. Call `leave` when the read ends."""

    def __init__(self, together: Together) -> None:
        super().__init__(together.engine)
        self.together = together
        self.waiting: list[_Call] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the wrapped engine, in this read's turn; at once if there is only one read."""
        if len(self.together.seats) == 1:
            return await self.engine.complete(messages, sampling)
        loop = asyncio.get_running_loop()
        call = _Call("\x1e".join(message.content for message in messages), loop.create_future())
        self.waiting.append(call)
        loop.call_soon(self.together.begin)  # once the calls beside it wait as well
        try:
            await call.turn
            return await self.engine.complete(messages, sampling)
        finally:
            if call in self.waiting:
                self.waiting.remove(call)
            self.together.end(call)

    def leave(self) -> None:
        """The read has ended: the others no longer wait for it."""
        if self in self.together.present:
            self.together.present.remove(self)
        self.together.begin()


class Together:
    """Gives several reads their turns, one seat for each."""

    def __init__(self, engine: Engine, seats: int) -> None:
        self.engine = engine
        self.seats = [Seat(self) for _ in range(seats)]
        self.present = list(self.seats)
        self._running: set[_Call] = set()

    def begin(self) -> None:
        """If all are waiting and no call is running, give the turn to the calls up to a chunk.

        It is the last chunk for which the read furthest behind waits.
        """
        if self._running or not self.present or not all(seat.waiting for seat in self.present):
            return
        end = min(max(call.reached for call in seat.waiting) for seat in self.present)
        calls = [
            call
            for seat in self.present
            for call in seat.waiting
            if call.reached <= end and not call.turn.done()
        ]
        for seat in self.present:
            seat.waiting = [call for call in seat.waiting if call.reached > end]
        for first, *followers in _groups(calls):
            first.followers = followers
            self._start([first])

    def end(self, call: _Call) -> None:
        """A call has ended, or was given up: those that follow it take their turn."""
        if call in self._running:
            self._running.remove(call)
            self._start(call.followers)
            self.begin()

    def _start(self, calls: Sequence[_Call]) -> None:
        """Give the turn to these calls, but for those whose read was cancelled."""
        for call in calls:
            if not call.turn.done():
                self._running.add(call)
                call.turn.set_result(None)


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
