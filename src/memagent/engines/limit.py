"""An engine that allows so many calls and then fails: a bound on what a read may cost."""

from __future__ import annotations

from memagent.errors import CallLimitError
from memagent.types import Completion, Engine, Message, Sampling


class CallLimit:
    """Passes the first `calls` calls on to `engine`; the next one raises `CallLimitError`."""

    def __init__(self, engine: Engine, calls: int) -> None:
        self.engine = engine
        self.model = engine.model
        self.calls = self.left = calls

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """As the engine does, while calls are left."""
        if self.left == 0:
            calls = (
                "one call of --max-calls is" if self.calls == 1 else f"{self.calls} calls of --max-calls are"
            )
            raise CallLimitError(f"the {calls} used up")
        self.left -= 1
        return await self.engine.complete(messages, sampling)

    async def aclose(self) -> None:
        """Close the engine."""
        await self.engine.aclose()
