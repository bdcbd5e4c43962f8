"""What `compare.py` measures of a reader, and the tables that show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from model_server import Call

from memagent.evaluation.statistics import growth

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
    def load(cls, record: dict[str, Any]) -> Result:
        """A result as `told` wrote it."""
        values = {key: value for key, value in record.items() if key != "exponent"}
        for name in ("clean", "failing", "scaling"):
            values[name] = [Outcome(**item) for item in values[name]]
        for name in ("killed", "at_once"):
            values[name] = Outcome(**values[name]) if values[name] else None
        return cls(**values)

    def told(self) -> dict[str, Any]:
        """The result for JSON."""
        return asdict(self) | {"exponent": self.exponent}

    @property
    def exponent(self) -> float | None:
        """How seconds grow with chunks; None for lengths that are too much alike."""
        return growth((outcome.chunks, outcome.seconds) for outcome in self.scaling)

    @property
    def silently_wrong(self) -> int:
        """Reads with failing calls that ended without an error but scored lower than without failures."""
        pairs = zip(self.clean, self.failing, strict=True)
        return sum(bool(after.silent) and after.score < before.score for before, after in pairs)

    def score(self, kind: str) -> float:
        """The mean score of the reads without failures, of one kind of problem."""
        return fmean(outcome.score for outcome in self.clean if outcome.kind == kind)

    @property
    def kinds(self) -> list[str]:
        """The kinds of problems that were read."""
        return list(dict.fromkeys(outcome.kind for outcome in self.clean))

    def mean(self, name: str) -> float:
        """The mean of a field over the reads without failures."""
        return fmean(getattr(outcome, name) for outcome in self.clean)


def longest_chain(calls: Iterable[Call]) -> int:
    """The largest number of calls that do not overlap: the critical path, if no call waits needlessly."""
    length, last = 0, -math.inf
    for call in sorted(calls, key=lambda item: item.ended):
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
    for result in results:
        scores = (f"{result.score(kind):.2f}" for kind in result.kinds)
        seconds = (f"{result.mean(name):.1f}" for name in ("seconds", "busy_seconds"))
        yield (
            result.name,
            *scores,
            *seconds,
            *(f"{result.mean(name):,.0f}" for name in _COUNTED),
            *_in_trouble(result),
        )
    for name in NOT_COMPARABLE:
        yield name, *["n/a"] * (len(head(results)) - 1)


def _in_trouble(result: Result) -> Sequence[str]:
    """What failing calls and a kill cost."""
    if not (result.failing and result.killed):
        return ["-"] * len(_TROUBLE)
    failed = sum(bool(outcome.errors) for outcome in result.failing)
    return (
        f"{fmean(outcome.score for outcome in result.failing):.2f}",
        f"{fmean(outcome.seconds for outcome in result.failing):.1f}",
        f"{result.silently_wrong} / {failed} of {len(result.failing)}",
        f"{result.paid_again} of {result.clean[0].calls}",
    )


def scaling_rows(results: Sequence[Result]) -> Iterable[Sequence[object]]:
    """Our workflows: seconds by chunks, the exponent, and how busy sixteen reads keep a GPU."""
    for result in results:
        if result.exponent is not None and result.at_once:
            seconds = (f"{outcome.seconds:.1f}" for outcome in result.scaling)
            used = result.at_once.busy_seconds / result.at_once.seconds
            yield result.name, *seconds, f"{result.exponent:.3f}", f"{used:.3f}"


def goals(results: Sequence[Result]) -> Iterable[Sequence[object]]:
    """For each peer, our fastest reader of long documents that scores no lower on any kind."""
    short = [f"memagent {name}" for name in FOR_SHORT_DOCUMENTS]
    ours = [result for result in results if result.ours and result.name not in short]
    for peer in (result for result in results if not result.ours):
        as_good = [our for our in ours if all(our.score(kind) >= peer.score(kind) for kind in peer.kinds)]
        if best := min(as_good, key=lambda item: item.mean("seconds"), default=None):
            share = best.mean("seconds") / peer.mean("seconds")
            yield peer.name, best.name, f"{share:.2f}", "yes" if share <= 1 / 3 else "no"
        else:
            yield peer.name, "-", "", "no"
