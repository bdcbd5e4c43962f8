"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from memagent.engines.wrappers import Wrapper
from memagent.types import Completion, Engine, Message, Sampling, Usage

_METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS"}
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200)


class Metrics:
    """The counters of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "memagent_requests", "Requests by method, route and status", ["method", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "memagent_request_seconds", "How long requests took", ["route"], buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge("memagent_requests_in_flight", "Requests in flight", registry=self.registry)
        self.reads = Counter("memagent_reads", "Reads by how they ended", ["state"], registry=self.registry)
        self.running = Gauge("memagent_reads_running", "Reads under way", registry=self.registry)
        self._tokens = Counter("memagent_tokens", "Tokens of reads", ["kind"], registry=self.registry)
        self.conversations = Counter(
            "memagent_conversations", "Conversations of reads", registry=self.registry
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        method = method if method in _METHODS else "other"  # clients may send any word
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def conversation(self, usage: Usage) -> None:
        """Count a conversation and its tokens."""
        self.conversations.inc()
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached").inc(usage.cached_tokens)
        self._tokens.labels("completion").inc(usage.completion_tokens)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class Counted(Wrapper):
    """Counts the calls of a read that reach the engine; a journal answers others itself."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        super().__init__(engine)
        self.metrics = metrics

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, and count it."""
        completion = await super().complete(messages, sampling)
        self.metrics.conversation(completion.usage)
        return completion
