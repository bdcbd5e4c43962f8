"""How many calls of a read had to wait for each other."""

from __future__ import annotations

from memagent.types import Completion, Engine, Message, Model, Sampling


class Chain:
    """Passes calls on to `engine`, and counts the longest chain of them.

    Each call of a chain began after the one before it had ended. So calls that are made one after the other
    are all in it; of calls side by side, one is, and those that wait until one of them has ended.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.longest = 0

    @property
    def model(self) -> Model:
        """The model of the engine behind."""
        return self.engine.model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """As the engine does. A call that fails is none."""
        place = self.longest + 1  # of the chains that have ended the longest goes on with it
        completion = await self.engine.complete(messages, sampling)
        self.longest = max(self.longest, place)
        return completion

    async def aclose(self) -> None:
        """The engine stays open."""
