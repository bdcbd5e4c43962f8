"""An engine that replies from a script: for tests, demonstrations and documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from memagent.errors import EngineError
from memagent.types import Completion, Message, Model, Sampling, Usage


class ScriptedEngine:
    """Replies with the entries of a list in turn, or with what a function makes of the messages.

    Tokens are counted as white-space separated words. Raises `EngineError` when the list is used up.
    """

    def __init__(
        self,
        replies: Iterable[str] | Callable[[tuple[Message, ...]], str],
        window_tokens: int | None = None,
        calls: int = 1,
    ) -> None:
        self.model = Model("scripted", count_words, "words", window_tokens, calls, chat_tokens=0)
        self.prompts: list[tuple[Message, ...]] = []
        self._function = replies if callable(replies) else None
        self._list: Iterator[str] = iter(()) if callable(replies) else iter(replies)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The next reply, cut at `sampling.max_tokens` words; every prompt is kept in `prompts`."""
        self.prompts.append(messages)
        reply = self._function(messages) if self._function else next(self._list, None)
        if reply is None:
            raise EngineError(f"the script has no reply for call {len(self.prompts)}: add one")
        words = count_words(reply)
        cut = words > sampling.max_tokens
        text = " ".join(reply.split()[: sampling.max_tokens]) if cut else reply
        prompt_words = sum(count_words(message.content) for message in messages)
        return Completion(
            text,
            finish_reason="length" if cut else "stop",
            usage=Usage(prompt_words, min(words, sampling.max_tokens)),
        )

    async def aclose(self) -> None:
        """Nothing to release."""


def count_words(text: str) -> int:
    """White-space separated words."""
    return len(text.split())
