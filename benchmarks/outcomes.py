"""What `compare.py` measures of a reader, and the tables that show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, linear_regression
from typing import Any

from model_server import Call

NOT_COMPARABLE = {
    "RLM (`rlms`)": "it needs a model that writes code",
    "PageIndex (`pageindex`)": "it needs a model that writes outlines as JSON and calls tools",
}
"""Peers that do not work with a model that only finds statements."""

FOR_SHORT_DOCUMENTS = ("full", "truncate")
"""Our workflows that put the text into one prompt: a baseline, not a way to read a long document."""


@dataclass(frozen=True)
class Outcome:
    """One read (or several at once): what the reader reports, and what the server counted.

    `score` is the mean share of answers found; `silent` counts reads that ended without an error.
    `critical_path` is the longest chain of calls in which each began after the previous one had ended.
    """

    kind: str
    chunks: int
    score: float
    silent: int
    errors: list[str]
    seconds: float
    calls: int
    failed_calls: int
    critical_path: int
    computed_tokens: int
    cached_tokens: int
    completion_tokens: int
    busy_seconds: float
    late_seconds: float


@dataclass
class Result:
    """Everything measured for one contestant."""

    name: str
    ours: bool
    versions: dict[str, str]
    clean: list[Outcome] = field(default_factory=list)
    failing: list[Outcome] = field(default_factory=list)
    killed: Outcome | None = None
    paid_again: int = 0
    scaling: list[Outcome] = field(default_factory=list)
    at_once: Outcome | None = None

    @classmethod
    def load(cls, told: dict[str, Any]) -> Result:
        """A result as `told` wrote it."""
        kept = {key: it for key, it in told.items() if key != "exponent"}
        for name in ("clean", "failing", "scaling"):
            kept[name] = [Outcome(**it) for it in kept[name]]
        for name in ("killed", "at_once"):
            kept[name] = Outcome(**kept[name]) if kept[name] else None
        return cls(**kept)

    def told(self) -> dict[str, Any]:
        """The result for JSON."""
        return asdict(self) | {"exponent": self.exponent}

    @property
    def exponent(self) -> float | None:
        """How seconds grow with chunks: the slope of log seconds against log chunks."""
        if len(self.scaling) < 2:
            return None
        chunks = [math.log(it.chunks) for it in self.scaling]
        return linear_regression(chunks, [math.log(it.seconds) for it in self.scaling]).slope

    @property
    def silently_wrong(self) -> int:
        """Reads with failing calls that ended without an error but scored lower than without failures."""
        pairs = zip(self.clean, self.failing, strict=True)
        return sum(bool(after.silent) and after.score < before.score for before, after in pairs)

    def score(self, kind: str) -> float:
        """The mean score of the reads without failures, of one kind of problem."""
        return fmean(it.score for it in self.clean if it.kind == kind)

    @property
    def kinds(self) -> list[str]:
        """The kinds of problems that were read."""
        return list(dict.fromkeys(it.kind for it in self.clean))

    def mean(self, name: str) -> float:
        """The mean of a field over the reads without failures."""
        return fmean(getattr(it, name) for it in self.clean)


def longest_chain(calls: Iterable[Call]) -> int:
    """The largest number of calls that do not overlap: the critical path, if no call waits needlessly."""
    length, last = 0, -math.inf
    for call in sorted(calls, key=lambda it: it.ended):
        if call.began >= last:
            length, last = length + 1, call.ended
    return length


_COUNTED = ("calls", "critical_path", "computed_tokens", "cached_tokens", "completion_tokens")
_COSTS = ("seconds", "of the GPU", "calls", "critical path", "prompt tokens computed", "cached", "written")
_TROUBLE = ("10% fail: score", "seconds", "silently wrong / failed", "kill -9: paid again")


def head(results: Sequence[Result]) -> list[str]:
    """The head of the table of `rows`."""
    return ["reader", *results[0].kinds, *_COSTS, *_TROUBLE]


def rows(results: Sequence[Result]) -> Iterable[Sequence[object]]:
    """A row for each contestant, with means over its reads, then a row for each left out."""
    for it in results:
        scores = (f"{it.score(kind):.2f}" for kind in it.kinds)
        seconds = (f"{it.mean(name):.1f}" for name in ("seconds", "busy_seconds"))
        yield it.name, *scores, *seconds, *(f"{it.mean(name):,.0f}" for name in _COUNTED), *_in_trouble(it)
    for name in NOT_COMPARABLE:
        yield name, *["n/a"] * (len(head(results)) - 1)


def _in_trouble(it: Result) -> Sequence[str]:
    """What failing calls and a kill cost."""
    if not (it.failing and it.killed):
        return ["-"] * len(_TROUBLE)
    failed = sum(bool(outcome.errors) for outcome in it.failing)
    return (
        f"{fmean(outcome.score for outcome in it.failing):.2f}",
        f"{fmean(outcome.seconds for outcome in it.failing):.1f}",
        f"{it.silently_wrong} / {failed} of {len(it.failing)}",
        f"{it.paid_again} of {it.clean[0].calls}",
    )


def scaling_rows(results: Sequence[Result]) -> Iterable[Sequence[object]]:
    """Our workflows: seconds by chunks, the exponent, and how busy sixteen reads keep a GPU."""
    for it in results:
        if it.exponent is not None and it.at_once:
            seconds = (f"{outcome.seconds:.1f}" for outcome in it.scaling)
            used = it.at_once.busy_seconds / it.at_once.seconds
            yield it.name, *seconds, f"{it.exponent:.3f}", f"{used:.3f}"


def goals(results: Sequence[Result]) -> Iterable[Sequence[object]]:
    """For each peer, our fastest reader of long documents that scores no lower on any kind."""
    short = [f"memagent {name}" for name in FOR_SHORT_DOCUMENTS]
    ours = [it for it in results if it.ours and it.name not in short]
    for peer in (it for it in results if not it.ours):
        as_good = [it for it in ours if all(it.score(kind) >= peer.score(kind) for kind in peer.kinds)]
        if best := min(as_good, key=lambda it: it.mean("seconds"), default=None):
            share = best.mean("seconds") / peer.mean("seconds")
            yield peer.name, best.name, f"{share:.2f}", "yes" if share <= 1 / 3 else "no"
        else:
            yield peer.name, "-", "", "no"
