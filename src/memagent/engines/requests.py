"""The bodies of requests for completions, in the words that the endpoint turned out to take."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from memagent.engines.endpoint import Connection
from memagent.engines.refusals import Refusal
from memagent.types import MAX_ALTERNATIVES, Message, Sampling

_log = logging.getLogger("memagent")

THINKING = frozenset({"chat_template_kwargs", "reasoning_effort"})
"""The fields that say whether the model is to think. There is no common one, so requests carry several."""

DRAWING = THINKING | {"temperature", "top_p", "seed"}
"""The fields that say how a reply is drawn, which a trainer's gateway decides."""

LOGPROBS = frozenset({"logprobs", "top_logprobs"})
"""The fields that ask for the log-probabilities of a verdict's alternatives."""

SCHEMA = frozenset({"response_format"})
"""The field that holds a reply to a JSON schema."""


class Requests:
    """Makes requests for one endpoint, and learns from its refusals how they must be worded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limit_name = "max_tokens"
        self._refused: set[str] = {*DRAWING} if connection.gateway else set()

    def body(
        self, model: str, messages: tuple[Message, ...], sampling: Sampling, without: Set[str] = frozenset()
    ) -> dict[str, Any]:
        """The body that asks the model for a completion, `without` these fields."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            self._limit_name: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self._connection.record:
            body |= {"logprobs": True, "return_token_ids": True}
        body |= _thinking(sampling.thinking)
        body |= self._connection.extra or {}
        if sampling.verdict:
            body |= {"logprobs": True, "top_logprobs": MAX_ALTERNATIVES, **(self._connection.verdict or {})}
        if sampling.json_schema:
            schema = {"name": "reply", "strict": True, "schema": json.loads(sampling.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        left_out = self._refused | without
        return {name: value for name, value in body.items() if name not in left_out}

    def adapt(self, model: str, refusal: Refusal) -> None:
        """Adapt later requests to this endpoint's parameters, if those are what it complains about.

        Newer hosted models take `max_completion_tokens`, and no temperature; others know nothing of thinking.
        """
        refused, message = refusal.param, refusal.message
        if refused == "max_tokens" and "max_completion_tokens" in message and not refusal.is_overflow:
            self._limit_name = "max_completion_tokens"
        unsupported = "unsupported" in f"{refusal.code} {message}".lower()
        if unsupported and refused in {"temperature", "top_p", "seed"}:
            self.leave_out(model, {refused})
        if not refusal.is_overflow:
            named = {name for name in THINKING | LOGPROBS if name in f"{refused} {message}"}
            self._refused |= named | LOGPROBS if named & LOGPROBS else named

    def leave_out(self, model: str, fields: Set[str]) -> None:
        """Send no request with these fields again, and say so."""
        if fields - self._refused:
            _log.warning("%s takes no %s: left out", model, ", ".join(sorted(fields)))
            self._refused |= fields


def find_optional(body: Mapping[str, Any], sampling: Sampling) -> frozenset[str]:
    """Fields of a refused body that the endpoint may not know, and that the call can do without."""
    asked = sampling.verdict, bool(sampling.json_schema), sampling.thinking is not None
    for fields, own in zip((LOGPROBS, SCHEMA, THINKING), asked, strict=True):
        if own and fields & body.keys():
            return fields
    return frozenset()


def _thinking(thinking: bool | None) -> dict[str, Any]:
    """The fields that say whether the model is to think; none to leave it to the model.

    vLLM, SGLang and llama.cpp hand the first to the chat template. Ollama knows only the second, and has its
    models think unless it says no; how hard they think is left to them.
    """
    if thinking is None:
        return {}
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinking}}
    return fields if thinking else {**fields, "reasoning_effort": "none"}


def encode(body: Mapping[str, Any]) -> bytes:
    """The body as JSON, in a quarter of the time that `json` takes, unless a text has lone surrogates."""
    try:
        return to_json(body)
    except PydanticSerializationError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
