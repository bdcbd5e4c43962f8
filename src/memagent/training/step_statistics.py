"""Statistics of a step's attempts, for its line of metrics."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch

from memagent.types import Group


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What the attempts of one group came to; `position` is its example's position in the data.

    `sums` are counts over its attempts and their conversations.
    """

    position: int
    rewards: tuple[float, ...]
    longest_reply_tokens: int
    sums: Counter[str]

    @property
    def equal(self) -> bool:
        """Whether all rewards are the same, so that there is nothing to learn from them."""
        return len(set(self.rewards)) == 1


def count_group(group: Group, position: int) -> GroupCounts:
    """Count one group."""
    attempts = group.trajectories
    conversations = [it for attempt in attempts for it in attempt.conversations]
    updates = [it for it in conversations if it.kind == "update"]
    replies = [len(it.completion.completion_ids) for it in conversations]
    memory_tokens = sum(len(it.completion.completion_ids) for it in updates)
    unchanged = 0
    for attempt in attempts:
        before = ""
        for it in attempt.conversations:
            unchanged += it.kind == "update" and it.memory == before
            before = it.memory
    failed = [attempt for attempt in attempts if attempt.error is not None]
    ends = [attempt.conversations[-1].completion for attempt in failed if attempt.conversations]
    sums = Counter(
        failed=len(failed),
        failed_cut=sum(it.finish_reason == "length" for it in ends),
        conversations=len(conversations),
        updates=len(updates),
        memory_tokens=memory_tokens,
        answer_tokens=sum(replies) - memory_tokens,
        cut=sum(it.completion.finish_reason == "length" for it in updates),
        unchanged=unchanged,
        completion_tokens=sum(replies),
    )
    rewards = tuple(attempt.reward or 0.0 for attempt in attempts)
    return GroupCounts(position, rewards, max(replies, default=0), sums)


def totals(counts: Sequence[GroupCounts], rounds: int, skipped: int, drop_equal: bool) -> dict[str, float]:
    """The metrics of a step, over all its groups, including those that were dropped."""
    rewards = [reward for it in counts for reward in it.rewards]
    sums = sum((it.sums for it in counts), Counter[str]())
    updates, answers = max(sums["updates"], 1), max(sums["conversations"] - sums["updates"], 1)
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "groups": len(counts),
        "groups_dropped": len(counts) - len(select_groups(counts, drop_equal)),
        "rounds": rounds,
        "examples_skipped": skipped,
        **{name: sums[name] for name in ("failed", "failed_cut", "conversations", "completion_tokens")},
        "memory_tokens": sums["memory_tokens"] / updates,
        "answer_tokens": sums["answer_tokens"] / answers,
        "longest_reply_tokens": max(it.longest_reply_tokens for it in counts),
        "cut": sums["cut"] / updates,
        "unchanged": sums["unchanged"] / updates,
    }


def update_means(everywhere: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means over all tokens and updates of a step, from the learner's sums in each process."""
    tokens, computed = (sum(it.get(name, 0.0) for it in everywhere) for name in ("tokens", "sequence_tokens"))
    first = everywhere[0]
    updates, seconds = max(first.get("steps", 0.0), 1.0), first.get("seconds", 0.0)
    means = {
        name: sum(it.get(name, 0.0) for it in everywhere) / max(tokens, 1.0)
        for name in ("loss", "kl", "entropy", "clip_low", "clip_high", "clip_dual", "mismatch")
        if any(name in it for it in everywhere)
    }
    return means | {
        "tokens": tokens,
        "sequence_tokens": computed,
        "gradient_norm": first.get("gradient_norm", 0.0) / updates,
        "learning_rate": first.get("learning_rate", 0.0) / updates,
        "updates_skipped": first.get("skipped", 0.0),
        "update_seconds": seconds,
        "update_tokens_per_second": computed / seconds if seconds else 0.0,
    }


def select_groups(counts: Iterable[GroupCounts], drop_equal: bool) -> list[int]:
    """The positions of the groups that are trained on, in the data's order."""
    return sorted(it.position for it in counts if not (drop_equal and it.equal))


def measure_mib() -> float:
    """The peak memory so far, in MiB: the GPU's if there is one, else this process's."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
