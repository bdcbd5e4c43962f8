"""Judge a reply: whole, cut at its limit, or a failure; and read a list of models.

A reply that is neither whole nor cut must not pass for an answer: it may be empty, filtered or broken off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.documents.tokens import fewest_tokens
from memagent.engines.endpoint import UnreachableError
from memagent.engines.refusals import HttpReply, TransientError, UnusableReplyError, brief, is_page
from memagent.errors import ContextOverflowError, EngineError
from memagent.prompts.thoughts import thinking_advice, without_thought
from memagent.types import Completion, Sampling, TokenCounter, Usage

# In lower case; OpenAI's word first, then those of other servers and of gateways that pass theirs on.
_WHOLE = frozenset({
    "stop", "eos", "eos_token", "end_turn", "stop_sequence", "stop_token", "stop_str", "end", "done",
    "complete", "completed", "finish", "finished", "finish_reason_stop",
})  # fmt: skip
_CUT = frozenset({
    "length", "max_tokens", "max_output_tokens", "max_new_tokens", "max_length", "model_length",
    "token_limit", "finish_reason_length", "finish_reason_max_tokens", "model_context_window_exceeded",
})  # fmt: skip
_ENDS = _WHOLE | _CUT | {"tool_calls", "function_call", "content_filter"}
"""How a chat that is passed through may end; its client sees which."""
_THOUGHTS = ("reasoning_content", "reasoning")
_BESIDE_TEXT = ("tool_calls", "function_call", "refusal", "audio", "images")
_ABSURD_CHARACTERS_PER_TOKEN = 64
_ALWAYS_ALLOWED_CHARACTERS = 4096
_MAX_TOKENS = 2**31
# A server has dropped part of a prompt if it read less than this share of its fewest tokens, minus this many.
_MIN_SHARE_READ, _MIN_DROPPED_TOKENS = 0.9, 64
# It cuts all prompts to one length if this many, this far apart in length, have one count of at least this.
_MIN_CUT_PROMPTS, _MIN_CUT_CHARACTERS, _MIN_CUT_TOKENS = 4, 256, 1024
_WIDEN = "give its model a larger window (num_ctx, for Ollama), or lower `chunk_tokens`"


def read_completion(reply: Any, sampling: Sampling, *, verbatim: bool = False) -> Completion:
    """The completion in a server's reply, with the finish reason "stop" or "length".

    With `verbatim`, an empty text or an unfinished thought is accepted as the model's output, as training
    needs. Raises `TransientError` with the reason for every reply that is not a usable completion; it is an
    `UnusableReplyError` if the reason is what the model wrote.
    """
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        text = _text(message.get("content"))
        usage = read_usage(reply)
        reason = _finish_reason(choice, text, usage, sampling)
        if not (verbatim or sampling.verdict):
            _refuse_empty(text, message, reason, sampling)
        if len(text) > max(_ALWAYS_ALLOWED_CHARACTERS, _ABSURD_CHARACTERS_PER_TOKEN * sampling.max_tokens):
            raise UnusableReplyError(
                f"the reply has {len(text):,} characters where {sampling.max_tokens:,} tokens were allowed"
            )
        tokens = (choice.get("logprobs") or {}).get("content") or ()
        ids = choice.get("token_ids") or [token["id"] for token in tokens if "id" in token]
        return Completion(
            text,
            reason,
            prompt_ids=tuple(reply.get("prompt_token_ids") or ()),
            completion_ids=tuple(ids),
            logprobs=tuple(float(token["logprob"]) for token in tokens),
            usage=usage,
            alternatives=_alternatives(tokens) if sampling.verdict else {},
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise TransientError(f"the reply is no completion: {brief(repr(reply)[:1000])}") from error


@dataclass(slots=True)
class ReplyState:
    """What a forwarded reply contains so far, whether it is whole or a stream of pieces."""

    anything: bool = False  # a text or a thought, even one that nobody sees
    visible: bool = False  # something to show: a part of the answer, or a thought
    answered: bool = False  # something of an answer: visible text, a refusal, a call of a tool
    reason: str = ""  # the finish reason, in lower case

    def add(self, sent: Any) -> None:
        """Add a completion, or a piece of one. Raises `TransientError` if it is neither, or has failed."""
        try:
            for choice in sent["choices"]:
                message = choice.get("message") or choice.get("delta") or {}
                text, thought = _text(message.get("content")), bool(_thought(message))
                self.answered |= is_visible(text) or any(message.get(name) for name in _BESIDE_TEXT)
                self.anything |= bool(text) or thought
                self.visible |= self.answered or thought
                self.reason = str(choice.get("finish_reason") or self.reason).lower()
        except (KeyError, TypeError, AttributeError) as error:
            raise TransientError(f"the reply is no completion: {brief(repr(sent)[:1000])}") from error
        if self.reason and self.reason not in _ENDS:
            raise TransientError(f"the server ended the reply with finish_reason {self.reason!r}")

    def check(self) -> None:
        """Raise `TransientError` if the reply, which has ended, is empty without being cut."""
        if not self.answered and not (self.anything and self.reason in _CUT):
            what = "nothing but a thought" if self.visible else "empty"
            raise TransientError(f"the reply is {what} (finish_reason {self.reason!r})")


async def check_read_whole(texts: Sequence[str], usage: Usage) -> None:
    """Raise `ContextOverflowError` if the server's own count shows that it dropped a part of the prompt.

    Some do so silently (Ollama, if a prompt is longer than its `num_ctx`).
    """
    read = usage.prompt_tokens
    fewest = await asyncio.to_thread(lambda: sum(map(fewest_tokens, texts)))
    if 0 < read < _min_read(fewest):
        raise ContextOverflowError(
            f"the endpoint read {read:,} tokens of a prompt that has at least {fewest:,}, and silently "
            f"dropped the rest: {_WIDEN}"
        )


class CutPrompts:
    """Notices a server that cuts all longer prompts to one length: its counts stay while prompts grow.

    Prompts that are read whole rarely have the same count, and hardly ever so many in a row, unless their
    chunks were cut by the model's own tokenizer: then it counts no more than the server.
    """

    def __init__(self) -> None:
        self._tokens = 0  # of the longest prompt, as the server counted it
        self._lengths: set[int] = set()  # in characters, of prompts with this count

    async def check(self, texts: Sequence[str], usage: Usage, count: TokenCounter) -> None:
        """Raise `EngineError` if the server has counted the same for several prompts of different length.

        It is not raised if the model's own `count` of this one's tokens is no higher.
        """
        length, read = sum(map(len, texts)), usage.prompt_tokens
        if read != self._tokens:
            if length < min(self._lengths, default=0):
                return  # it may have been short enough
            self._tokens, self._lengths = read, set()
        lengths = self._lengths
        lengths.add(length)
        least, most = min(lengths), max(lengths)
        if len(lengths) < _MIN_CUT_PROMPTS or most - least < _MIN_CUT_CHARACTERS or read < _MIN_CUT_TOKENS:
            return
        if await asyncio.to_thread(lambda: sum(map(count, texts))) > read:
            raise EngineError(
                f"the endpoint read {read:,} tokens of each of {len(lengths)} prompts of {least:,} to "
                f"{most:,} characters: it silently drops the rest, and what was read so far was cut: {_WIDEN}"
            )


def _min_read(fewest: int) -> float:
    """The fewest tokens that a server may report for a whole prompt of at least `fewest`."""
    return fewest * _MIN_SHARE_READ - _MIN_DROPPED_TOKENS


def collect_texts(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of a chat that every chat template shows; some leave out earlier thoughts."""
    texts = [(message["role"], _text(message.get("content"))) for message in messages]
    return [without_thought(text) if role == "assistant" else text for role, text in texts]


def collect_written(reply: Any) -> str:
    """All that the model wrote, its thought too; empty if the reply is no completion."""
    try:
        message = reply["choices"][0]["message"]
        return _text(_thought(message)) + _text(message.get("content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""


def parse_json(reply: HttpReply, url: str) -> Any:
    """Parse a reply as JSON. Raises `TransientError` if it is not JSON."""
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        message = (
            about_a_page(url) if is_page(reply.text) else f"the reply is not JSON: {brief(reply.text)!r}"
        )
        raise TransientError(message) from error


def about_a_page(url: str) -> str:
    """The message for an endpoint that sends a web page instead of JSON."""
    return f"{url} is not an OpenAI-compatible endpoint (it sent an HTML page): does it end in /v1?"


def _text(content: Any) -> str:
    """The text of a message, which may come in parts. Raises `TypeError` for anything else."""
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else _text_of(part) for part in content)
    if content is None:
        return ""
    if not isinstance(content, str):
        raise TypeError(f"content is a {type(content).__name__}")
    if content.isascii():
        return content
    # JSON can carry half a surrogate pair, but UTF-8 cannot.
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _thought(message: Mapping[str, Any]) -> Any:
    """The thought of a message, which servers name differently; None if it has none."""
    return next((thought for name in _THOUGHTS if (thought := message.get(name))), None)


def _text_of(part: Mapping[str, Any]) -> str:
    """The text of a part of a message; empty for thoughts and images."""
    return part.get("text") or "" if part.get("type", "text") in ("text", "output_text") else ""


def _alternatives(tokens: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The likeliest first tokens with their log-probabilities, as OpenAI's servers return them."""
    candidates = tokens[0].get("top_logprobs") or () if tokens else ()
    return {token["token"]: float(token["logprob"]) for token in candidates}


def _finish_reason(choice: Mapping[str, Any], text: str, usage: Usage, sampling: Sampling) -> str:
    """Whether the reply is whole ("stop") or cut ("length").

    Raises `TransientError` for a reply that ended in any other way.
    """
    reason = choice.get("finish_reason")
    if not reason and text:  # some servers never say
        return "length" if usage.completion_tokens >= sampling.max_tokens else "stop"
    word = str(reason or "").lower()
    if word in _WHOLE or not word:
        return "stop"
    if word in _CUT:
        return "length"
    error = choice.get("error")
    details = f": {brief(str(error))}" if error else ""
    had = "part of a reply" if text else "no reply"
    raise TransientError(f"the server ended the reply with finish_reason {reason!r} and {had}{details}")


def _refuse_empty(text: str, message: Mapping[str, Any], reason: str, sampling: Sampling) -> None:
    """Raise `TransientError` for a reply without an answer, saying what it has instead.

    An empty reply that the server calls whole is the only one that may be the server's mistake.
    """
    answer = without_thought(text)
    if is_visible(answer) and not answer.endswith("</think>"):
        return
    if reason == "length":  # some servers keep the thought to themselves
        raise UnusableReplyError(
            f"the model was still thinking when its {sampling.max_tokens:,} tokens were used up: "
            f"{thinking_advice(sampling.thinking)}"
        )
    if is_visible(text) or _thought(message):
        raise UnusableReplyError(
            f"the reply is nothing but a thought (finish_reason {reason!r}): set `thinking` to "
            f"{'off' if sampling.thinking else 'on'}, or try another `model`"
        )
    if refusal := message.get("refusal"):
        raise UnusableReplyError(f"the model refused: {brief(str(refusal))}: try another `model`")
    if message.get("tool_calls"):
        raise UnusableReplyError("the model called a tool, but it was given none: try another `model`")
    raise TransientError(f"the reply is empty (finish_reason {reason!r})")


def is_visible(text: str) -> bool:
    """Whether a text has anything but white space, control and zero-width characters."""
    return any(character.isprintable() and not character.isspace() for character in text)


def read_usage(reply: Any) -> Usage:
    """The usage that a server's reply reports; anything that is not a token count counts as 0.

    Cached tokens are among the prompt's, except as Anthropic counts, which some gateways pass on.
    """
    sent = reply.get("usage") if isinstance(reply, dict) else None
    if not isinstance(sent, dict):
        return Usage()
    details = sent.get("prompt_tokens_details")
    in_details = details.get("cached_tokens") if isinstance(details, dict) else 0
    cached = _count(in_details or sent.get("cache_read_input_tokens"))
    prompt = _count(sent.get("prompt_tokens"))
    if 0 < prompt < cached:
        prompt += cached
    return Usage(prompt, _count(sent.get("completion_tokens")), min(cached, prompt))


def _count(value: Any) -> int:
    whole = isinstance(value, int | float) and 0 <= value < _MAX_TOKENS
    return int(value) if whole else 0


def read_models(reply: HttpReply, url: str) -> dict[str, Mapping[str, Any]]:
    """The models by name. Raises `UnreachableError` for a web page, `EngineError` if it is not a list."""
    if is_page(reply.text):
        raise UnreachableError(about_a_page(url))
    sent = parse_json(reply, url)
    entries = sent.get("data") if isinstance(sent, dict) else sent  # some send the list alone
    listed = entries if isinstance(entries, list) else [None]
    models: dict[str, Mapping[str, Any]] = {
        entry["id"]: entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    }
    if listed and not models:
        raise EngineError(f"{url} did not list its models ({brief(reply.text)!r}): name one with `model`")
    return models


def window_of(entry: Mapping[str, Any]) -> int | None:
    """The window of a listed model in tokens; vLLM and SGLang call it `max_model_len`, others differ."""
    meta = entry.get("meta")
    windows = [entry.get("max_model_len"), entry.get("context_length")]
    windows += [meta.get("n_ctx")] if isinstance(meta, dict) else []
    return next((window for window in windows if type(window) is int and 0 < window < _MAX_TOKENS), None)
