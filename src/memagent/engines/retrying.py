"""Try a call to an endpoint again after a failure that may pass, with growing, jittered pauses."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from memagent.engines.endpoint import UnreachableError
from memagent.engines.refusals import TransientError
from memagent.engines.wrappers import Again
from memagent.errors import EngineError

_log = logging.getLogger("memagent")

_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
_LONGEST_RETRY_AFTER_SECONDS = 300.0
_BETWEEN_WARNINGS_SECONDS = 30.0

_T = TypeVar("_T")


class Tries:
    """Tries calls to the endpoint at `url`, and logs why they fail."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._next_warning = 0.0

    async def result(
        self, once: Callable[[], Awaitable[_T]], tries: int, again: Again = lambda _usage: True
    ) -> _T:
        """The result of `once`, tried at most `tries` times, and while `again` allows it.

        Raises `EngineError` for the last failure, `UnreachableError` if nothing answered.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await once()
            except TransientError as failure:
                if attempt >= tries or not again(failure.usage):
                    raise self._given_up(failure, attempt) from failure
                await self._pause(failure, attempt, tries)

    def _given_up(self, failure: TransientError, attempts: int) -> EngineError:
        times = f"{attempts} time{'s' if attempts > 1 else ''}"
        if failure.unreachable:
            return UnreachableError(f"{failure} (tried {times})")
        error = EngineError(f"{self._url} failed {times}, last: {failure}")
        error.usage = failure.usage
        return error

    async def _pause(self, failure: TransientError, attempt: int, tries: int) -> None:
        """Wait before the next try, and log it: as a warning unless there was one recently."""
        seconds = backoff_seconds(attempt - 1, failure.retry_after_seconds)
        loud = time.monotonic() >= self._next_warning
        if loud:
            self._next_warning = time.monotonic() + _BETWEEN_WARNINGS_SECONDS
        where = "" if self._url in str(failure) else f", at {self._url}"
        _log.log(
            logging.WARNING if loud else logging.INFO,
            "a call failed, trying again in %.1f s (try %d of %d%s): %s",
            *(seconds, attempt + 1, tries, where, failure),
        )
        await asyncio.sleep(seconds)


def backoff_seconds(attempt: int, retry_after_seconds: float | None = None) -> float:
    """How long to wait after failure number `attempt + 1`: what the server asked for, else doubling.

    Part of it is random, so that callers who failed together do not retry together.
    """
    pause = min(_FIRST_DELAY_SECONDS * 2.0**attempt, _LONGEST_DELAY_SECONDS)
    jitter = pause / 2 * random.random()
    if retry_after_seconds is not None:
        return min(retry_after_seconds, _LONGEST_RETRY_AFTER_SECONDS) + jitter
    return pause / 2 + jitter
