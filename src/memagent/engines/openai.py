"""The engine for any OpenAI-compatible chat endpoint: vLLM, SGLang, Ollama, llama.cpp, hosted ones.

A call is tried until its reply is usable, with growing, jittered pauses: `requests.py` words it,
`endpoint.py` does the HTTP, `replies.py` judges the reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from memagent.documents.tokens import estimate_tokens, load_tokenizer, tokenizer_name
from memagent.engines import is_missing_path
from memagent.engines.adapters import find_adapter, find_trained
from memagent.engines.endpoint import CONCURRENCY, Connection, Endpoint, UnreachableError, is_own
from memagent.engines.forwarding import Forwarded, begin
from memagent.engines.refusals import (
    HttpReply,
    TransientError,
    UnusableReplyError,
    error_of,
    read_refusal,
)
from memagent.engines.replies import (
    CutPrompts,
    check_read_whole,
    collect_written,
    parse_json,
    read_completion,
    read_models,
    read_usage,
    window_of,
)
from memagent.engines.requests import Requests, encode, find_optional
from memagent.engines.wrappers import Again
from memagent.errors import EngineError, SettingsError
from memagent.settings import EngineSettings
from memagent.types import ESTIMATE, Completion, Message, Model, Sampling, TokenCounter, Usage

__all__ = ["Connection", "OpenAIEngine", "connect", "open_endpoint"]

_log = logging.getLogger("memagent")

# A token of a reply takes some 4 bytes, 12 if escaped; a thought may come with it, sent twice.
_REPLY_BYTES, _BYTES_PER_TOKEN = 256 * 1024, 256
_RECORDED_BYTES_PER_TOKEN = 1024
_PAGE_BYTES, _PAGE_TRIES, _LIST_SECONDS = 16 * 2**20, 3, 10.0
_MAX_DELAY_SECONDS, _MAX_RETRY_AFTER_SECONDS = 30.0, 300.0
_BETWEEN_WARNINGS_SECONDS = 30.0

_T = TypeVar("_T")


class OpenAIEngine:
    """Chat completions from one model behind one URL.

    Raises `SettingsError` for an address, proxy or certificate file that cannot be used.
    """

    def __init__(self, model: Model, connection: Connection) -> None:
        self.model = model
        self.connection = connection
        self.endpoint = Endpoint(connection)
        self._slots = asyncio.Semaphore(connection.concurrency)
        self.requests = Requests(connection)
        self._estimates = False
        self._cuts = CutPrompts()
        self._next_warning = 0.0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, retrying transient failures.

        Raises `ContextOverflowError` for a prompt longer than the window, else `EngineError`.
        """
        return await self.complete_while(messages, sampling)

    async def complete_while(
        self, messages: tuple[Message, ...], sampling: Sampling, again: Again | None = None
    ) -> Completion:
        """See `Retries.complete_while`."""
        once, unusable = partial(self._complete_once, messages, sampling), list[Usage]()

        def keep(usage: Usage | None) -> bool:
            if again and not again(usage):
                return False
            unusable.extend([usage] if usage else [])
            return True

        try:
            async with self._slots:
                completion = await self._try(once, self.connection.retries + 1, keep)
        except EngineError as error:
            error.unusable = tuple(unusable)
            raise
        return replace(completion, unusable=tuple(unusable)) if unusable else completion

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
        """See `Forwards.forward`."""
        async with self._slots, AsyncExitStack() as connections:

            async def once() -> Forwarded:
                async with AsyncExitStack() as tried:
                    forwarded = await begin(self.endpoint, {**(self.connection.extra or {}), **body}, tried)
                    connections.push_async_exit(tried.pop_all())  # the connection stays open
                    return forwarded

            yield await self._try(once, min(_PAGE_TRIES, self.connection.retries + 1))

    async def post(self, path: str, body: Mapping[str, Any], seconds: float | None = None) -> str:
        """Post to another path on the server (`..` leads above the base address); returns the reply's text.

        Raises `EngineError` with the server's own words.
        """

        async def once() -> str:
            max_seconds = seconds or self.connection.timeout_seconds
            reply = await self.endpoint.post(path, json.dumps(body).encode(), _PAGE_BYTES, max_seconds)
            return self._accept(reply).body.decode("utf-8", "replace")

        return await self._try(once, _PAGE_TRIES)

    async def list_models(self) -> dict[str, Mapping[str, Any]]:
        """The models that the endpoint lists, by name; empty if it has no such list.

        Raises `UnreachableError` if there is no endpoint, else `EngineError` if the list cannot be read.
        """

        async def once() -> dict[str, Mapping[str, Any]]:
            max_seconds = min(_LIST_SECONDS, self.connection.timeout_seconds)
            reply = await self.endpoint.get("models", _PAGE_BYTES, max_seconds)
            return {} if reply.status == 404 else read_models(self._accept(reply), self.endpoint.url)

        return await self._try(once, min(_PAGE_TRIES, self.connection.retries + 1))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.endpoint.aclose()

    async def _try(self, once: Callable[[], Awaitable[_T]], tries: int, again: Again | None = None) -> _T:
        """The result of `once`, tried at most `tries` times, and while `again` allows it.

        Raises `EngineError` if the last of them failed, `UnreachableError` if nothing answered.
        """
        attempt = 1
        while True:
            try:
                return await once()
            except TransientError as failure:
                if attempt >= tries or (again and not again(failure.usage)):
                    raise self._give_up(failure, attempt) from failure
                first = self.connection.first_delay_seconds
                seconds = backoff_seconds(attempt - 1, first, failure.retry_after_seconds)
                self._log(failure, seconds, f"try {attempt + 1} of {tries}")
            await asyncio.sleep(seconds)
            attempt += 1

    def _give_up(self, failure: TransientError, attempts: int) -> EngineError:
        times = f"{attempts} time{'s' if attempts > 1 else ''}"
        if failure.unreachable:
            return UnreachableError(f"{failure} (tried {times})")
        error = EngineError(f"{self.endpoint.url} failed {times}, last: {failure}")
        error.usage = failure.usage
        return error

    def _log(self, failure: TransientError, seconds: float, next_try: str) -> None:
        """Log why a call is tried again, as a warning once in a while."""
        loud, url = time.monotonic() >= self._next_warning, self.endpoint.url
        if loud:
            self._next_warning = time.monotonic() + _BETWEEN_WARNINGS_SECONDS
        where = "" if url in str(failure) else f", at {url}"
        level = logging.WARNING if loud else logging.INFO
        _log.log(level, "a call failed, trying again in %.1f s (%s%s): %s", seconds, next_try, where, failure)

    async def _complete_once(
        self, messages: tuple[Message, ...], sampling: Sampling, without: frozenset[str] = frozenset()
    ) -> Completion:
        """One call, without these fields of the request, and without more of them if it is refused."""
        name = self.model.name
        body = self.requests.body(name, messages, sampling, without)
        content = encode(body)
        most = _REPLY_BYTES + _BYTES_PER_TOKEN * sampling.max_tokens
        if self.connection.record:  # the ids of the prompt come too: at most one for each byte
            most += _RECORDED_BYTES_PER_TOKEN * sampling.max_tokens + 8 * len(content)
        seconds = self.connection.timeout_seconds
        reply = await self.endpoint.post("chat/completions", content, most, seconds)
        if reply.status in (400, 422):
            refusal = read_refusal(reply)
            self.requests.adapt(name, refusal)
            if self.requests.body(name, messages, sampling, without) != body:  # or by a concurrent call
                return await self._complete_once(messages, sampling, without)
            if not refusal.is_overflow and (fields := find_optional(body, sampling)):
                completion = await self._complete_once(messages, sampling, without | fields)
                if self.requests.body(name, messages, sampling, without) == body:  # no other cause was found
                    self.requests.leave_out(name, fields)
                return completion
        return await self._completion(reply, messages, sampling, greedy=body.get("temperature") == 0)

    async def _completion(
        self, reply: HttpReply, messages: tuple[Message, ...], sampling: Sampling, *, greedy: bool
    ) -> Completion:
        """The completion in a reply. After an unusable one, a greedy call would only bring the same again."""
        sent = parse_json(self._accept(reply), self.endpoint.url)
        if isinstance(sent, dict) and sent.get("error"):
            raise self._error(reply)
        texts = [message.content for message in messages]
        try:
            verbatim = self.connection.verbatim or self.connection.gateway
            completion = read_completion(sent, sampling, verbatim=verbatim)
            await check_read_whole(texts, completion.usage)
            await self._cuts.check(texts, completion.usage, self.model.count_tokens)
        except (TransientError, EngineError) as error:
            if isinstance(sent, dict) and sent.get("choices"):
                error.usage = await self._usage(texts, sent, read_usage(sent))
                if self.connection.gateway and isinstance(error, TransientError):
                    raise EngineError(f"{error}: a trainer's gateway is not asked again") from error
            if greedy and isinstance(error, UnusableReplyError):
                raise error.lasting() from error
            raise
        usage = await self._usage(texts, sent, completion.usage)
        return replace(completion, usage=usage) if usage.estimated else completion

    async def _usage(self, texts: Sequence[str], sent: Mapping[str, Any], reported: Usage) -> Usage:
        if reported.prompt_tokens:
            return reported
        if not self._estimates:
            self._estimates = True
            _log.warning("%s reports no token usage: tokens and costs are estimates", self.endpoint.url)
        count, written = self.model.count_tokens, collect_written(sent)
        prompt, completion = await asyncio.to_thread(lambda: (sum(map(count, texts)), count(written)))
        return Usage(prompt, completion, estimated=True)

    def _accept(self, reply: HttpReply) -> HttpReply:
        if reply.status >= 300:
            raise self._error(reply)
        return reply

    def _error(self, reply: HttpReply) -> EngineError | TransientError:
        return error_of(read_refusal(reply), self.endpoint.url, self.endpoint.has_key)


def backoff_seconds(attempt: int, first_seconds: float, retry_after_seconds: float | None = None) -> float:
    """How long to wait after failure number `attempt + 1`: what the server asked for, else doubling.

    Part of it is random, so that callers who failed together do not retry together.
    """
    pause = min(first_seconds * 2.0**attempt, _MAX_DELAY_SECONDS)
    jitter = pause / 2 * random.random()
    if retry_after_seconds is not None:
        return min(retry_after_seconds, _MAX_RETRY_AFTER_SECONDS) + jitter
    return pause / 2 + jitter


async def open_endpoint(settings: EngineSettings, gateway: bool = False) -> OpenAIEngine:
    """Connect to the settings' model, or the endpoint's only one; see `Connection` for a `gateway`.

    Raises `SettingsError`, `EngineError`.
    """
    find_adapter(settings, "openai")  # an error if the settings name one
    count: TokenCounter = estimate_tokens
    tokenizer = ESTIMATE
    if settings.tokenizer:
        count, tokenizer = load_tokenizer(settings.tokenizer), tokenizer_name(settings.tokenizer)
    connection = Connection(
        base_url=settings.base_url,
        api_key=settings.api_key,
        concurrency=settings.concurrency or CONCURRENCY,
        timeout_seconds=settings.timeout_seconds,
        connect_seconds=settings.connect_seconds,
        retries=settings.retries,
        direct=is_own(settings.base_url),
        gateway=gateway,
    )
    try:
        engine = await connect(settings.model, connection)
    except UnreachableError as error:
        raise UnreachableError(f"{error}{_how_to_do_without(settings.base_url_set_by)}") from error
    window = settings.window_tokens or engine.model.window_tokens
    engine.model = replace(engine.model, count_tokens=count, tokenizer=tokenizer, window_tokens=window)
    return engine


def _how_to_do_without(setter: str) -> str:
    """What to do about a wrong address that was set by `setter`, on lines of their own."""
    if not setter:
        return ""
    how = "leave it out" if setter == "`base_url`" else "remove it there"
    if setter.endswith("_BASE_URL"):
        how = f"unset {setter}"
    return (
        f"\nthe address is set by {setter}: correct it, or {how}\n"
        "without an address, a model found on this machine is used, or a small one that `memagent ask` "
        "offers to fetch"
    )


async def connect(name: str | None, connection: Connection) -> OpenAIEngine:
    """An engine for the model called `name`, or for the endpoint's only model.

    Asks the endpoint for its models once, to learn the name and, if it reports it, the window.
    Raises `EngineError` if nothing answers, or if `name` is None and there is not just one model;
    `SettingsError` if `name` is a path to a missing file that the endpoint does not list.
    """
    model = Model(name or "", estimate_tokens, calls=connection.concurrency, trained=find_trained(name or ""))
    engine = OpenAIEngine(model, connection)
    try:
        engine.model = await _model(name, engine)
    except BaseException:
        await engine.aclose()
        raise
    return engine


async def _model(name: str | None, engine: OpenAIEngine) -> Model:
    try:
        models = await engine.list_models()
    except EngineError as error:
        if isinstance(error, UnreachableError) or name is None or is_missing_path(name):
            raise
        return engine.model  # a key for completions may not be allowed to see the list
    whole = [known for known, entry in models.items() if not entry.get("parent")]  # vLLM lists adapters too
    if name is None and len(whole) != 1:
        listed = ", ".join(sorted(models)) or f"{engine.endpoint.url} lists none (does it end in /v1?)"
        raise EngineError(f"name a model with `model`: {listed}")
    if name and name not in models and is_missing_path(name):
        raise SettingsError(
            f"there is no model at {name}, and {engine.endpoint.url} does not list it: check the path, or "
            f"name a model with `model`: {', '.join(sorted(models)) or 'it lists none'}"
        )
    name = name or whole[0]
    window = window_of(models.get(name, {}))
    return replace(engine.model, name=name, window_tokens=window, trained=find_trained(name))
