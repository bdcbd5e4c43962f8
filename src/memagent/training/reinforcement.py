"""Reinforcement: attempts, rewards, optimizer steps; then metrics, an evaluation, a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from memagent.engines.torch.engine import TransformersEngine
from memagent.errors import TrainingError
from memagent.training import checkpoint
from memagent.training.held_out import HeldOut
from memagent.training.optimization.learner import Learner, Sums, learning_rate
from memagent.training.optimization.sequences import group_sequences
from memagent.training.rewards import check_prompts, load_reward
from memagent.training.rollout import Rollout
from memagent.training.run import RunState, TrainingPosition
from memagent.training.serving import Server
from memagent.training.settings import TrainingSettings
from memagent.training.step_statistics import GroupCounts, count_group, measure_mib, select_groups, totals
from memagent.types import Group

_IDLE_STEPS = 5  # before a warning
_IDLE = (
    "in %d steps in a row, all attempts at each example earned the same, so nothing is learned: the examples "
    "are too hard or too easy, or the reward does not tell attempts apart"
)
_log = logging.getLogger(__name__)


async def reinforce(run: RunState, server: Server | None = None) -> None:
    """Train with Multi-Conv DAPO from where the run stands. A `server` gets the weights before each step."""
    settings, position = run.settings, run.position
    learner, rollout = run.learner(position.step), _build_rollout(run)
    held_out = HeldOut(settings, run.folder, run.engine) if run.ranks.main else None
    _keep_reference(run)

    async def renew() -> None:
        """Make the server generate with the current policy."""
        if server:
            await server.push(run.policy, position.step, run.ranks.main)
            run.ranks.wait()

    async def evaluate() -> None:
        if held_out and held_out.due(position.step):
            scored = await held_out.score(position.step)
            run.report("evaluation", position.step, scored, held_out.haystack)
        run.ranks.wait()

    run.observer.begin(position.step + 1, settings.steps)
    if position.step == 0 or position.step < settings.steps:
        await renew()
    if position.step == 0:
        await evaluate()
    idle = 0
    while position.step < settings.steps:
        started = time.perf_counter()
        made = await _make_attempts(run, rollout)
        seconds = time.perf_counter() - started
        order = select_groups(made.counts, _drops(settings))
        sums = update(learner, made.groups, order, settings, position.step)
        position.step += 1
        idle = idle + 1 if all(it.equal for it in made.counts) else 0
        if idle == _IDLE_STEPS and run.ranks.main:
            _log.warning(_IDLE, idle)
        values = totals(made.counts, made.rounds, made.skipped, _drops(settings)) | run.means(sums)
        values |= {
            "rollout_seconds": seconds,
            "rollout_tokens_per_second": values["completion_tokens"] / seconds,
            "memory_mib": measure_mib(),
        }
        run.report("training", position.step, values)
        await renew()
        await evaluate()
        if position.step == settings.steps or run.saves(learner, position.step):
            run.save(learner)


def check_reinforcement(run: RunState) -> None:
    """Raise `SettingsError` for an unusable reward, evaluation or example, before the warm start begins."""
    _build_rollout(run)
    if run.ranks.main:
        held_out = HeldOut(run.settings, run.folder, run.engine)
        if run.position == TrainingPosition():  # once, since it takes a while to read large files
            held_out.compare()


def update(
    learner: Learner,
    groups: Mapping[int, Group],
    order: Sequence[int],
    settings: TrainingSettings,
    step: int,
) -> Sums:
    """Take the number of optimizer steps that the settings ask for, however long the documents were.

    `groups` are this process's, by their positions in the data; `order` has the positions of all groups.
    `step` rollout steps have been taken before.
    """
    wanted, sums = settings.optimizer, Sums(float)
    rate = learning_rate(wanted, step, settings.steps)
    for part in range(wanted.updates):
        chosen = order[part * len(order) // wanted.updates : (part + 1) * len(order) // wanted.updates]
        if chosen:
            mine = [groups[position] for position in chosen if position in groups]
            sequences = [it for group in mine for it in group_sequences(group, settings.loss)]
            for name, value in learner.reinforce(sequences, settings.loss, rate).items():
                sums[name] += value
    return sums


@dataclass(slots=True)
class _Attempts:
    """A step's attempts: this process's groups by position, and the counts of all processes' groups.

    `rounds` counts the draws of examples, `skipped` the examples that could not be read.
    """

    groups: dict[int, Group] = field(default_factory=dict)
    counts: list[GroupCounts] = field(default_factory=list)
    rounds: int = 0
    skipped: int = 0


async def _make_attempts(run: RunState, rollout: Rollout) -> _Attempts:
    """Make the attempts of the next step. Raises `TrainingError` if none of its examples could be read."""
    settings, made = run.settings, _Attempts()
    drops = _drops(settings)
    while made.rounds < 1 + settings.rollout.refills:
        missing = settings.rollout.groups - len(select_groups(made.counts, drops))
        if not missing:
            break
        first = run.position.example
        run.position.example += missing
        mine = run.ranks.share(range(first, first + missing))
        seeds = [f"{settings.seed}/{position}" for position in mine]
        found = await rollout.groups([run.data.at(position) for position in mine], seeds)
        new = {place: group for place, group in zip(mine, found, strict=True) if group}
        made.groups |= new
        counts = run.ranks.gather([count_group(group, place) for place, group in new.items()])
        made.counts += counts
        made.skipped += missing - len(counts)
        made.rounds += 1
    if not made.counts:
        raise TrainingError(
            f"none of the {made.skipped} examples of this step has a problem that fits: "
            "raise read.problem_tokens, or look at data.examples"
        )
    return made


def _drops(settings: TrainingSettings) -> bool:
    return settings.rollout.refills > 0


def _build_rollout(run: RunState) -> Rollout:
    settings, rollout = run.settings, run.settings.rollout
    check_prompts(settings.data.scorer, settings.read, run.engine.model.trained)
    return Rollout(
        engine=run.engine,
        settings=settings.read.changed(temperature=rollout.temperature, top_p=rollout.top_p),
        reward=load_reward(settings.data.reward, settings.data.scorer),
        attempts=rollout.attempts,
        overlong_tokens=settings.loss.overlong_tokens,
        traces=Path(rollout.traces) if rollout.traces else None,
        caller=run.engine.caller if isinstance(run.engine, TransformersEngine) else nullcontext,
    )


def _keep_reference(run: RunState) -> None:
    """Keep the policy before reinforcement as the reference; it is written once, for resumed runs."""
    path = run.folder / checkpoint.FOLDER / "reference.pt"
    if not run.settings.loss.kl_weight:
        return
    if run.position.step:
        run.policy.load_reference(checkpoint.load(path))
        return
    run.policy.keep_reference()
    if run.ranks.main:
        checkpoint.write(path, run.policy.reference_state())
