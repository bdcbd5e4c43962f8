"""The training loop: attempts, advantages, optimizer steps; then metrics, an evaluation, a checkpoint.

A run is decided by its settings. What is drawn depends on the seed and the position in the data alone, so a
run that was killed and resumed has the metrics of one that was not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from memagent.engines.torch.engine import TransformersEngine
from memagent.errors import SettingsError
from memagent.training import checkpoint
from memagent.training.data import load_data
from memagent.training.held_out import HeldOut
from memagent.training.imitation.warm_start import draw, is_file, load_imitations
from memagent.training.metrics import Metrics, open_metrics
from memagent.training.optimization.advantage import group_advantages
from memagent.training.optimization.learner import Learner, Sums
from memagent.training.optimization.policy import Policy, load_policy
from memagent.training.optimization.sequences import sequences_of
from memagent.training.ranks import Ranks
from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.training.serving import Server, open_server
from memagent.training.settings import LossSettings, TrainingSettings, restored
from memagent.training.step_statistics import Tally, kept, tally, totals, used_mib
from memagent.types import Engine, Group, TrainingSequence, model_of


class Watch(Protocol):
    """What is told how a run goes on."""

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        """A stage of `steps` steps begins, or goes on, at `first_step`."""

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """A line of metrics was written."""


async def train(
    settings: TrainingSettings, run: Path, watch: Watch, resume: bool = False, only_warm_start: bool = False
) -> None:
    """Train as the settings say, into the folder `run`; with `resume` go on from its newest checkpoint.

    Raises `SettingsError` for settings that cannot be used or are not those of the run that is resumed,
    `EngineError` if a server fails for good, `TrainingError` if training cannot go on.
    """
    if only_warm_start and not settings.warm_start.steps:
        raise SettingsError("there is no warm start: set warm_start.steps")
    path = checkpoint.newest(run) if resume else None
    state = checkpoint.load(path) if path else None
    if state and (changed := _changed(settings.recorded(), state["settings"])):
        raise SettingsError(
            f"{run} was run with another {changed}: put it back, or train into another folder"
        )
    ranks = Ranks()
    offset = state["metrics"] if state else 0 if resume else None
    opened = open_metrics(run, settings.recorded(), offset) if ranks.main else nullcontext()
    with opened as metrics:
        policy = load_policy(settings.policy, settings.rollout.temperature, settings.seed, ranks.device)
        server = await open_server(settings, policy, run) if settings.rollout.server else None
        engine = server.engine if server else local_engine(settings, policy)
        try:
            trainer = Trainer(settings, run, watch, policy, engine, server, ranks, metrics)
            await trainer.train(state, only_warm_start)
        finally:
            await (server or engine).aclose()


def local_engine(settings: TrainingSettings, policy: Policy) -> TransformersEngine:
    """An engine that decodes with the policy's own weights.

    It remembers how many tokens texts have: all attempts of a group cut the same document.
    """
    engine = TransformersEngine(
        policy.network,
        policy.tokenizer,
        name=settings.policy.model or "embedded",
        window_tokens=settings.read.window_tokens,
        most_rows=settings.rollout.rows,
        half_precision=policy.autocast,
    )
    count_tokens = lru_cache(maxsize=4096)(engine.model.count_tokens or len)
    engine.model = replace(engine.model, count_tokens=count_tokens)
    return engine


def trained_policy(run: Path) -> tuple[Policy, TrainingSettings, int]:
    """The policy of a run's newest checkpoint, what it was trained with, and the steps it has taken.

    Raises `SettingsError` if the run has no checkpoint.
    """
    path = checkpoint.newest(run)
    if path is None:
        raise SettingsError(f"{run} has no checkpoint: is it a folder of memagent train?")
    state = checkpoint.load(path)
    settings = restored(state["settings"], str(path))
    # A LoRA would be rounded away in part if it were added to bfloat16 weights.
    whole = replace(settings.policy, dtype="float32")
    policy = load_policy(whole, settings.rollout.temperature, settings.seed, device="cpu")
    Learner(policy, settings.optimizer, Ranks()).load_weights(state["learner"])
    return policy, settings, state["progress"]["step"]


@dataclass(slots=True)
class Progress:
    """How far a run has come: the steps of its two stages, and the position in the data."""

    warm_steps: int = 0
    step: int = 0
    position: int = 0


@dataclass
class Trainer:
    """Everything that a run holds, and its two stages; used through `train`."""

    settings: TrainingSettings
    run: Path
    watch: Watch
    policy: Policy
    engine: Engine
    server: Server | None
    ranks: Ranks
    metrics: Metrics | None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        settings, rollout = self.settings, self.settings.rollout
        self.count_tokens = model_of(self.engine).count_tokens or len
        self.data = load_data(settings.data.examples, settings.seed, self.count_tokens)
        self.rollout = Rollout(
            engine=self.engine,
            settings=replace(settings.read, temperature=rollout.temperature, top_p=rollout.top_p),
            reward=load_reward(settings.data.reward, settings.data.scorer),
            attempts=rollout.attempts,
            overlong_tokens=settings.loss.overlong_tokens,
        )
        self.held_out = HeldOut(settings, self.run, self.engine) if self.ranks.main else None
        self.learner = Learner(self.policy, settings.optimizer, self.ranks)

    async def train(self, state: dict[str, Any] | None, only_warm_start: bool) -> None:
        """Both stages, or the first, from the state of a checkpoint or from the beginning."""
        self._begin(state)
        await self._warm_start()
        if not only_warm_start:
            await self._reinforce()

    async def _warm_start(self) -> None:
        wanted, progress = self.settings.warm_start, self.progress
        if progress.step or progress.warm_steps == wanted.steps:
            return
        pool = await load_imitations(self.settings, self.data, self.policy.tokenizer, self.count_tokens)
        self.watch.begin(progress.warm_steps + 1, wanted.steps, "warm_start")
        while progress.warm_steps < wanted.steps:
            await asyncio.sleep(0)  # an interrupt takes effect between steps
            source = random.Random(f"{self.settings.seed}/warm start/{progress.warm_steps}")
            falling = min(1.0, (wanted.steps - progress.warm_steps) / max(wanted.decay_steps, 1))
            sums = self.learner.imitate(self.ranks.share(draw(pool, wanted, source)), falling)
            progress.warm_steps += 1
            self._write("warm_start", progress.warm_steps, self._measures(sums))
            due = progress.warm_steps % self.settings.checkpoint_every == 0
            if due and progress.warm_steps < wanted.steps:
                self._save()
        # Reinforcement begins with an optimizer of its own: no checkpoint has the other one with all steps.
        # And with examples behind those that were imitated.
        self.learner = Learner(self.policy, self.settings.optimizer, self.ranks)
        progress.position = 0 if is_file(wanted.trajectories) else wanted.count
        self._save()

    async def _reinforce(self) -> None:
        progress, steps = self.progress, self.settings.steps
        self._keep_reference()
        self.watch.begin(progress.step + 1, steps)
        if progress.step == 0 or progress.step < steps:
            await self._push()
        if progress.step == 0:
            await self._evaluate()
        while progress.step < steps:
            started = time.perf_counter()
            groups, tallies, rounds = await self._attempt()
            rolled = time.perf_counter()
            sums = self._update(groups, kept(tallies, self._drops))
            progress.step += 1
            values = totals(tallies, rounds, self._drops) | self._measures(sums)
            seconds = rolled - started
            values |= {
                "rollout_seconds": seconds,
                "rollout_tokens_per_second": values["completion_tokens"] / seconds,
                "memory_mib": used_mib(),
            }
            self._write("training", progress.step, values)
            await self._push()
            await self._evaluate()
            if progress.step % self.settings.checkpoint_every == 0 or progress.step == steps:
                self._save()

    async def _push(self) -> None:
        """Have the server generate with the policy as it is now, for the next attempts and an evaluation."""
        if self.server:
            await self.server.push(self.policy, self.progress.step, self.ranks.main)
            self.ranks.wait()

    @property
    def _drops(self) -> bool:
        return self.settings.rollout.refills > 0

    async def _attempt(self) -> tuple[dict[int, Group], list[Tally], int]:
        """The groups made here by position, the tallies of all groups, how often groups were drawn."""
        wanted, seed = self.settings.rollout, self.settings.seed
        groups: dict[int, Group] = {}
        tallies: list[Tally] = []
        for rounds in range(1 + wanted.refills):
            first = self.progress.position
            missing = wanted.groups - len(kept(tallies, self._drops))
            if not missing:
                return groups, tallies, rounds
            self.progress.position += missing
            mine = self.ranks.share(range(first, first + missing))
            found = await self.rollout.groups(
                [self.data.at(position) for position in mine], [f"{seed}/{position}" for position in mine]
            )
            groups |= zip(mine, found, strict=True)
            tallies += self.ranks.gather(
                [tally(group, position) for position, group in zip(mine, found, strict=True)]
            )
        return groups, tallies, 1 + wanted.refills

    def _update(self, groups: Mapping[int, Group], order: Sequence[int]) -> Sums:
        """The step's optimizer steps: so many as the settings say, however long the documents were."""
        sums, parts = Sums(float), self.settings.optimizer.updates
        for part in range(parts):
            chosen = order[part * len(order) // parts : (part + 1) * len(order) // parts]
            if chosen:
                mine = [groups[position] for position in chosen if position in groups]
                sequences = [it for group in mine for it in group_sequences(group, self.settings.loss)]
                for name, value in self.learner.reinforce(sequences, self.settings.loss).items():
                    sums[name] += value
        return sums

    def _measures(self, sums: Sums) -> dict[str, float]:
        """Sums over the tokens and steps of all processes, as means."""
        everywhere = self.ranks.gather([dict(sums)])
        tokens = sum(it.get("tokens", 0.0) for it in everywhere)
        computed = sum(it.get("sequence_tokens", 0.0) for it in everywhere)
        steps, seconds = max(sums["steps"], 1.0), sums["seconds"]
        means = {
            name: sum(it.get(name, 0.0) for it in everywhere) / max(tokens, 1.0)
            for name in ("loss", "kl", "entropy", "clip_low", "clip_high", "mismatch")
            if any(name in it for it in everywhere)
        }
        return means | {
            "tokens": tokens,
            "sequence_tokens": computed,
            "gradient_norm": sums["gradient_norm"] / steps,
            "learning_rate": sums["learning_rate"] / steps,
            "update_seconds": seconds,
            "update_tokens_per_second": computed / seconds if seconds else 0.0,
        }

    async def _evaluate(self) -> None:
        step = self.progress.step
        if self.held_out and self.held_out.due(step):
            self._write("evaluation", step, await self.held_out.score(step))
        self.ranks.wait()

    def _write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        if self.metrics:
            self.metrics.write(stage, step, values)
            self.watch.row(stage, step, values)

    def _keep_reference(self) -> None:
        """The policy before reinforcement is the reference; it is written once, for runs that are resumed."""
        path = self.run / checkpoint.FOLDER / "reference.pt"
        if not self.settings.loss.kl_weight:
            return
        if self.progress.step:
            self.policy.load_reference(checkpoint.load(path))
            return
        self.policy.keep_reference()
        if self.ranks.main:
            checkpoint.write(path, self.policy.reference_state())

    def _begin(self, state: dict[str, Any] | None) -> None:
        """Take up a checkpoint, or begin."""
        wanted = self.settings.warm_start
        if state:
            self.progress = Progress(**state["progress"])
        if not self.progress.step and self.progress.warm_steps < wanted.steps:
            imitating = replace(
                self.settings.optimizer, learning_rate=wanted.learning_rate, warmup_steps=wanted.warmup_steps
            )
            self.learner = Learner(self.policy, imitating, self.ranks)
        if state:
            self.learner.load_state(state["learner"])

    def _save(self) -> None:
        if self.metrics:
            state = {
                "settings": self.settings.recorded(),
                "progress": asdict(self.progress),
                "learner": self.learner.state(),
                "metrics": self.metrics.position(),
            }
            step = self.progress.warm_steps + self.progress.step
            checkpoint.save(self.run, step, state, self.settings.keep)
        self.ranks.wait()


def group_sequences(group: Group, loss: LossSettings) -> list[TrainingSequence]:
    """Every conversation of every attempt, with its attempt's advantage in the group."""
    rewards = torch.tensor([[attempt.reward or 0.0 for attempt in group.trajectories]])
    advantages = group_advantages(rewards, loss.divide_by_std)[0].tolist()
    return [
        sequence
        for attempt, advantage in zip(group.trajectories, advantages, strict=True)
        for sequence in sequences_of(attempt, advantage, loss.credit)
    ]


def _changed(now: Mapping[str, Any], then: Mapping[str, Any], within: str = "") -> str | None:
    """The first setting that differs from a checkpoint's; how long to train may change."""
    for name in sorted(now.keys() | then.keys()):
        if f"{within}{name}" not in ("steps", "warm_start.steps", "checkpoint_every", "keep"):
            new, old = now.get(name), then.get(name)
            if isinstance(new, dict) and isinstance(old, dict):
                if found := _changed(new, old, f"{within}{name}."):
                    return found
            elif new != old:
                return f"{within}{name} ({old!r}, now {new!r})"
    return None
