"""The labels and units of the metrics, shared by the live table, the report and its pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Measure:
    """A label that fits into a table, and a unit; a share is stored as 0 to 1 and shown in percent."""

    label: str
    unit: Literal["", "share", "points", "count", "tokens", "tokens/s", "s", "MiB"] = ""

    @property
    def suffix(self) -> str:
        """The unit to write after a number; empty if the label says it."""
        return {"share": "%", "points": "", "count": ""}.get(self.unit, self.unit)

    def number(self, value: float) -> str:
        """A value without its unit, to as many digits as are meaningful."""
        if not math.isfinite(value):
            return "not a number"
        if self.unit == "points":
            return f"{value:.1f}"
        if self.unit == "share":
            return f"{100 * value:.3g}"
        return f"{value:,.0f}" if abs(value) >= 100 or self.unit == "count" else f"{value:.3g}"

    def shown(self, value: float) -> str:
        """A value with its unit."""
        gap = " " if self.suffix not in ("", "%") else ""
        return f"{self.number(value)}{gap}{self.suffix}"


TRAINING: Mapping[str, Measure] = {
    "reward": Measure("reward"),
    "reward_std": Measure("reward spread"),
    "groups": Measure("groups", "count"),
    "groups_dropped": Measure("groups dropped", "count"),
    "rounds": Measure("rounds", "count"),
    "examples_skipped": Measure("examples skipped", "count"),
    "failed": Measure("failed attempts", "count"),
    "failed_cut": Measure("failed at the limit", "count"),
    "conversations": Measure("conversations", "count"),
    "memory_tokens": Measure("memory", "tokens"),
    "answer_tokens": Measure("answer", "tokens"),
    "longest_reply_tokens": Measure("longest reply", "tokens"),
    "cut": Measure("updates cut", "share"),
    "unchanged": Measure("unchanged", "share"),
    "completion_tokens": Measure("sampled", "tokens"),
    "tokens": Measure("trained on", "tokens"),
    "sequence_tokens": Measure("with prompts", "tokens"),
    "loss": Measure("loss"),
    "kl": Measure("KL"),
    "entropy": Measure("entropy"),
    "clip_low": Measure("clipped low", "share"),
    "clip_high": Measure("clipped high", "share"),
    "clip_dual": Measure("clipped twice", "share"),
    "mismatch": Measure("mismatch"),
    "gradient_norm": Measure("gradient norm"),
    "learning_rate": Measure("learning rate"),
    "updates_skipped": Measure("updates skipped", "count"),
    "rollout_seconds": Measure("rollout time", "s"),
    "update_seconds": Measure("update time", "s"),
    "rollout_tokens_per_second": Measure("rollout", "tokens/s"),
    "update_tokens_per_second": Measure("update", "tokens/s"),
    "memory_mib": Measure("peak memory", "MiB"),
}
IMITATION: Mapping[str, Measure] = {
    name: TRAINING[name]
    for name in (
        "tokens", "sequence_tokens", "loss", "gradient_norm", "learning_rate", "updates_skipped",
        "update_seconds",
        "update_tokens_per_second",
    )
}  # fmt: skip
EVALUATION: Mapping[str, Measure] = {
    "score": Measure("score", "points"),
    "half_width": Measure("reach of its interval", "points"),
    "failed": Measure("failed attempts", "count"),
    "count": Measure("examples", "count"),
}
STAGES: Mapping[str, Mapping[str, Measure]] = {
    "warm_start": IMITATION,
    "training": TRAINING,
    "evaluation": EVALUATION,
}


def measure(stage: str, name: str) -> Measure:
    """The label and unit of a metric; an unknown one is labelled with its name."""
    return STAGES.get(stage, {}).get(name) or Measure(name.replace("_", " "))
