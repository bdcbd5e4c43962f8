"""The longest chain of calls in a read that had to wait for each other."""

from __future__ import annotations

from memagent.types import Completion, Engine, Message, Sampling


class Chain:
    """Passes calls on to `engine` and measures the longest chain of them.

    Each call of a chain began after the one before it had ended. So sequential calls all count; of
    concurrent calls, only one does.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.model = engine, engine.model
        self.longest = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the underlying engine. A call that fails does not count."""
        place = self.longest + 1  # it extends the longest chain that has ended
        completion = await self.engine.complete(messages, sampling)
        self.longest = max(self.longest, place)
        return completion

    async def aclose(self) -> None:
        """The engine stays open."""
