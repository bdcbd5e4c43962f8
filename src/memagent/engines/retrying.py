"""Wait before a failed call to an endpoint is tried again: growing, jittered pauses, and when to give up."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from memagent.engines.endpoint import UnreachableError
from memagent.engines.refusals import TransientError
from memagent.engines.wrappers import Again
from memagent.errors import EngineError

_log = logging.getLogger("memagent")

_FIRST_DELAY_SECONDS = 0.5
_MAX_DELAY_SECONDS = 30.0
_MAX_RETRY_AFTER_SECONDS = 300.0
_BETWEEN_WARNINGS_SECONDS = 30.0


class Tries:
    """Decides for the endpoint at `url` which calls are tried again, and logs why they failed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._next_warning = 0.0

    async def wait(self, failure: TransientError, attempt: int, tries: int, again: Again | None) -> None:
        """Wait before the next try, after attempt number `attempt` of `tries`; `again` may forbid it.

        Raises `EngineError` if this failure is the last, `UnreachableError` if nothing answered.
        """
        if attempt >= tries or (again and not again(failure.usage)):
            times = f"{attempt} time{'s' if attempt > 1 else ''}"
            if failure.unreachable:
                raise UnreachableError(f"{failure} (tried {times})") from failure
            error = EngineError(f"{self._url} failed {times}, last: {failure}")
            error.usage = failure.usage
            raise error from failure
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
    pause = min(_FIRST_DELAY_SECONDS * 2.0**attempt, _MAX_DELAY_SECONDS)
    jitter = pause / 2 * random.random()
    if retry_after_seconds is not None:
        return min(retry_after_seconds, _MAX_RETRY_AFTER_SECONDS) + jitter
    return pause / 2 + jitter
