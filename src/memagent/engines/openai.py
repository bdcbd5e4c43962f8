"""Any OpenAI-compatible chat endpoint: vLLM, SGLang, Ollama, llama.cpp, hosted ones.

Requests go through the official client, without its own retries: this module also retries what
that client takes for success, a reply that is no valid completion.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import openai

from memagent.documents.tokens import estimate_tokens, load_tokenizer
from memagent.engines.adapters import adapter_of
from memagent.errors import ContextOverflowError, EngineError
from memagent.settings import EngineSettings
from memagent.types import ESTIMATE, Completion, Message, Model, Sampling, TokenCounter, Usage

_log = logging.getLogger("memagent")

_OVERFLOW = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum (?:context|model|input|prompt) length|max[ _]model[ _]len"
    r"|(?:prompt|input|request).{0,40}(?:too long|too large|exceeds)|too many (?:input )?tokens"
    r"|longer than the (?:model|maximum)|max[ _]new[ _]tokens\W+must be",
    re.IGNORECASE,
)
_RETRIED_STATUS = {408, 409, 425, 429}
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
_LONGEST_RETRY_AFTER_SECONDS = 300.0

CONCURRENCY = 16
"""The requests in flight where nothing else is set."""

Prepare = Callable[[tuple[Message, ...]], Awaitable[None]]
"""What is done with a prompt before it is sent."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to talk to an endpoint.

    `concurrency` bounds the requests in flight; `retries` is how often a failed call is tried
    again; `extra` goes into every request's body (a server's own sampling options, for instance);
    `record` asks for token ids and log-probabilities, which strict endpoints refuse.
    """

    base_url: str | None = None
    api_key: str = "none"
    concurrency: int = CONCURRENCY
    timeout_seconds: float = 600.0
    retries: int = 6
    extra: Mapping[str, Any] | None = None
    record: bool = False


class _TransientError(Exception):
    """A failure worth another try, with the server's own word on when."""

    def __init__(self, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class OpenAIEngine:
    """Chat completions from one model behind one URL; `prepare` is awaited before each try at a call."""

    def __init__(self, model: Model, connection: Connection, prepare: Prepare | None = None) -> None:
        self.model = model
        self.connection = connection
        self._prepare = prepare
        self._client = openai.AsyncOpenAI(
            base_url=connection.base_url,
            api_key=connection.api_key,
            timeout=connection.timeout_seconds,
            max_retries=0,
        )
        self._slots = asyncio.Semaphore(connection.concurrency)
        self._limit_name = "max_tokens"
        self._refused: set[str] = set()

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, trying again with growing, jittered pauses while failures may pass.

        Raises `ContextOverflowError` for a prompt longer than the window, else `EngineError`.
        """
        async with self._slots:
            attempt = 0
            while True:
                if self._prepare:
                    await self._prepare(messages)
                try:
                    return _completion(await self._post(messages, sampling))
                except _TransientError as failure:
                    if attempt >= self.connection.retries:
                        raise EngineError(
                            f"{self._client.base_url} failed {attempt + 1} times, last: {failure}"
                        ) from failure
                    delay = backoff_seconds(attempt, failure.retry_after_seconds)
                    _log.info("call failed (%s), again in %.1f s", failure, delay)
                    await asyncio.sleep(delay)
                    attempt += 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _post(self, messages: tuple[Message, ...], sampling: Sampling) -> object:
        body = self._body(messages, sampling)
        try:
            async with asyncio.timeout(self.connection.timeout_seconds):  # the client bounds each read only
                return await self._client.post("/chat/completions", cast_to=object, body=body)
        except TimeoutError as error:
            raise _TransientError(f"no reply within {self.connection.timeout_seconds:g} s") from error
        except openai.BadRequestError as error:
            self._adapt(error)
            if self._body(messages, sampling) != body:  # changed here, or by a call beside this one
                return await self._post(messages, sampling)
            raise _as_ours(error) from error
        except openai.OpenAIError as error:
            raise _as_ours(error) from error
        except ValueError as error:
            raise _TransientError(f"the reply is not JSON ({error})") from error

    def _body(self, messages: tuple[Message, ...], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model.name,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            self._limit_name: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self.connection.record:
            body |= {"logprobs": True, "return_token_ids": True}
        body |= self.connection.extra or {}
        return {name: value for name, value in body.items() if name not in self._refused}

    def _adapt(self, error: openai.BadRequestError) -> None:
        """Put later requests in the words that this endpoint wants, if that is what it complains of.

        Newer hosted models take `max_completion_tokens`, and no temperature.
        """
        refused = error.param or ""
        if refused == "max_tokens" and "max_completion_tokens" in error.message and not _is_overflow(error):
            self._limit_name = "max_completion_tokens"
        unsupported = "unsupported" in f"{error.code} {error.message}".lower()
        if unsupported and refused in {"temperature", "top_p", "seed"} - self._refused:
            _log.warning("%s takes no %s: left out", self.model.name, refused)
            self._refused.add(refused)


async def open_endpoint(settings: EngineSettings) -> OpenAIEngine:
    """The model that the settings name, or the endpoint's only one. Raises `SettingsError`, `EngineError`."""
    adapter_of(settings, "openai")
    count: TokenCounter = estimate_tokens
    tokenizer = ESTIMATE
    if settings.tokenizer:
        count, tokenizer = load_tokenizer(settings.tokenizer), settings.tokenizer
    connection = Connection(
        base_url=settings.base_url,
        api_key=settings.api_key or "none",
        concurrency=settings.concurrency or CONCURRENCY,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
    )
    engine = await connect(settings.model, connection)
    window = settings.window_tokens or engine.model.window_tokens
    engine.model = replace(engine.model, count_tokens=count, tokenizer=tokenizer, window_tokens=window)
    return engine


async def connect(name: str | None, connection: Connection) -> OpenAIEngine:
    """An engine for the model called `name`, or for the endpoint's only model.

    Asks the endpoint for its models once, for the name and, where it tells, the window's size.
    Raises `EngineError` if it must choose a model and cannot.
    """
    model = Model(name or "", estimate_tokens, calls=connection.concurrency)
    engine = OpenAIEngine(model, connection)
    try:
        models = await served_models(engine)
    except EngineError:
        if name is None:
            await engine.aclose()
            raise
        return engine
    whole = [known for known, entry in models.items() if not entry.get("parent")]  # vLLM lists adapters too
    if name is None and len(whole) != 1:
        await engine.aclose()
        listed = ", ".join(sorted(models)) or f"{engine._client.base_url} lists none"
        raise EngineError(f"name a model with --model: {listed}")
    name = name or whole[0]
    engine.model = replace(engine.model, name=name, window_tokens=_window(models.get(name, {})))
    return engine


async def served_models(engine: OpenAIEngine) -> dict[str, Mapping[str, Any]]:
    """The models that the endpoint lists, by name; none if it has no such list.

    Raises `EngineError` if it cannot be asked.
    """
    client = engine._client.with_options(timeout=min(10.0, engine.connection.timeout_seconds), max_retries=2)
    try:
        listed = await client.get("/models", cast_to=object)
        return {entry["id"]: entry for entry in listed["data"]}  # type: ignore[index]
    except openai.NotFoundError:
        return {}
    except (openai.OpenAIError, ValueError, TypeError, KeyError) as error:
        raise EngineError(
            f"{client.base_url} did not list its models ({_brief(error)}): "
            "is the server running? name a model with --model"
        ) from error


def _window(entry: Mapping[str, Any]) -> int | None:
    """The window of a listed model: vLLM and SGLang say `max_model_len`, others other words."""
    meta = entry.get("meta") or {}
    found = entry.get("max_model_len") or entry.get("context_length") or meta.get("n_ctx")
    return found if isinstance(found, int) else None


def backoff_seconds(attempt: int, retry_after_seconds: float | None = None) -> float:
    """How long to wait after failure number `attempt + 1`: what the server asked for, else doubling.

    Part of it is random, so that callers who failed together do not come back together.
    """
    pause = min(_FIRST_DELAY_SECONDS * 2.0**attempt, _LONGEST_DELAY_SECONDS)
    jitter = pause / 2 * random.random()
    if retry_after_seconds is not None:
        return min(retry_after_seconds, _LONGEST_RETRY_AFTER_SECONDS) + jitter
    return pause / 2 + jitter


def _as_ours(error: openai.OpenAIError) -> Exception:
    """What an error of the client means: try again, cut the prompt, or give up."""
    if isinstance(error, openai.APIStatusError):
        status, text = error.status_code, _brief(error)
        if status == 429 and error.code == "insufficient_quota":
            return EngineError(f"the account's quota is used up: {text}")
        if status in _RETRIED_STATUS or (status >= 500 and not _is_overflow(error)):
            return _TransientError(f"HTTP {status}: {text}", _retry_after(error))
        if _is_overflow(error):
            return ContextOverflowError(text)
        hint = {401: ": check --api-key", 403: ": check --api-key", 404: ": check --base-url and --model"}
        return EngineError(f"the endpoint refused the call (HTTP {status}{hint.get(status, '')}): {text}")
    if isinstance(error, openai.APIConnectionError):
        return _TransientError(f"{_brief(error)} ({_brief(error.__cause__ or error)})")
    return _TransientError(_brief(error))


def _is_overflow(error: openai.APIStatusError) -> bool:
    words = f"{error.code} {error.message}"
    return error.status_code in (400, 413, 422, 500) and bool(_OVERFLOW.search(words.replace("_", " ")))


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date."""
    value = error.response.headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _completion(reply: Any) -> Completion:
    """The first choice of a reply; a reply without one is a failure, not an empty text."""
    try:
        choice = reply["choices"][0]
        usage = reply.get("usage") or {}
        tokens = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids") or [token["id"] for token in tokens if "id" in token]
        return Completion(
            text="" + (choice["message"]["content"] or ""),
            finish_reason=choice.get("finish_reason") or "stop",
            prompt_ids=tuple(reply.get("prompt_token_ids") or ()),
            completion_ids=tuple(ids),
            logprobs=tuple(token["logprob"] for token in tokens),
            usage=Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _TransientError(f"the reply is no completion: {str(reply)[:200]!r}") from error


def _brief(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
