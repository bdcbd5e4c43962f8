"""Reinforcement, step by step: rollouts, rewards, an update; then metrics, an evaluation, a checkpoint.

From a trajectory's reward to the gradient: `objective` has the maths, `learner` what is done with it.
"""

from __future__ import annotations

import logging
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from memagent.engines.torch.engine import TransformersEngine
from memagent.errors import TrainingError
from memagent.evaluation.plan import EvaluationPlan
from memagent.evaluation.rows import EvaluationRow
from memagent.evaluation.run import Evaluation, evaluate
from memagent.evaluation.statistics import confidence_interval
from memagent.settings import Settings
from memagent.tasks import load_examples, write_examples
from memagent.training.data import load_data
from memagent.training.metrics import GroupCounts, compute_means, count_group, select_groups
from memagent.training.optimization.learner import Learner, Sums, group_sequences, learning_rate
from memagent.training.rewards import check_prompts, load_reward
from memagent.training.rollout import Rollout
from memagent.training.run import CHECKPOINTS, RunState, TrainingPosition, load_checkpoint, write_tensors
from memagent.training.settings import TrainingSettings
from memagent.types import Engine, Group

_IDLE_STEPS = 5  # before a warning
_IDLE = (
    "in %d steps in a row, all attempts at each example earned the same, so nothing is learned: the examples "
    "are too hard or too easy, or the reward does not tell attempts apart"
)
_SHARED = (
    "%d of the %d held-out examples are trained on too, so the held-out score does not tell how well others "
    "are read: keep evaluation.examples out of data.examples and warm_start.examples"
)
_log = logging.getLogger(__name__)


async def reinforce(run: RunState) -> None:
    """Train with Multi-Conv DAPO from where the run stands."""
    settings, position = run.settings, run.position
    learner, rollout = run.learner(position.step), _build_rollout(run)
    held_out = HeldOut(settings, run.folder, run.engine) if run.ranks.main else None
    _keep_reference(run)

    async def show(evaluates: bool) -> None:
        """Have the current policy generate, in another process too, and evaluate it if that is due."""
        if run.push:
            await run.push(run.policy, position.step, run.ranks.main)
            run.ranks.wait()
        if evaluates and held_out and held_out.due(position.step):
            scored = await held_out.score(position.step)
            run.report("evaluation", position.step, scored, held_out.haystack)
        run.ranks.wait()

    run.observer.begin(position.step + 1, settings.steps)
    if position.step == 0 or position.step < settings.steps:
        await show(evaluates=position.step == 0)
    idle, drops = 0, settings.rollout.drops_equal
    while position.step < settings.steps:
        started = time.perf_counter()
        rollouts = await _roll_out(run, rollout)
        seconds = time.perf_counter() - started
        sums = update(
            learner, rollouts.groups, select_groups(rollouts.counts, drops), settings, position.step
        )
        position.step += 1
        idle = idle + 1 if all(group.equal for group in rollouts.counts) else 0
        if idle == _IDLE_STEPS and run.ranks.main:
            _log.warning(_IDLE, idle)
        values = compute_means(rollouts.counts, rollouts.rounds, rollouts.skipped, drops) | run.means(sums)
        values |= {
            "rollout_seconds": seconds,
            "rollout_tokens_per_second": values["completion_tokens"] / seconds,
            "memory_mib": measure_mib(),
        }
        run.report("training", position.step, values)
        await show(evaluates=True)
        if position.step == settings.steps or run.saves(learner, position.step):
            run.save(learner)


@dataclass(slots=True)
class _Rollouts:
    """A step's rollouts: this process's groups by position, and the counts of all processes' groups.

    `rounds` counts the draws of examples, `skipped` the examples that could not be read.
    """

    groups: dict[int, Group] = field(default_factory=dict)
    counts: list[GroupCounts] = field(default_factory=list)
    rounds: int = 0
    skipped: int = 0


async def _roll_out(run: RunState, rollout: Rollout) -> _Rollouts:
    """Roll out the next step. Raises `TrainingError` if none of its examples could be read."""
    settings, rollouts = run.settings.rollout, _Rollouts()
    while rollouts.rounds < 1 + settings.refills:
        missing = settings.groups - len(select_groups(rollouts.counts, settings.drops_equal))
        if not missing:
            break
        first = run.position.example
        run.position.example += missing
        mine = run.ranks.share(range(first, first + missing))
        seeds = [f"{run.settings.seed}/{position}" for position in mine]
        groups = await rollout.groups([run.data.at(position) for position in mine], seeds)
        new = {position: group for position, group in zip(mine, groups, strict=True) if group}
        rollouts.groups |= new
        counts = run.ranks.gather([count_group(group, position) for position, group in new.items()])
        rollouts.counts += counts
        rollouts.skipped += missing - len(counts)
        rollouts.rounds += 1
    if not rollouts.counts:
        raise TrainingError(
            f"none of the {rollouts.skipped} examples of this step has a problem that fits: "
            "raise read.problem_tokens, or look at data.examples"
        )
    return rollouts


def update(
    learner: Learner, groups: Mapping[int, Group], order: Sequence[int], settings: TrainingSettings, step: int
) -> Sums:
    """Take the number of optimizer steps that the settings ask for, however long the documents were.

    `groups` are this process's, by their positions in the data; `order` has the positions of all groups,
    task by task. They are dealt out in turn, so that each optimizer step has its share of every task.
    `step` rollout steps have been taken before.
    """
    optimizer, sums = settings.optimizer, Sums(float)
    rate = learning_rate(optimizer, step, settings.steps)
    for part in range(optimizer.updates):
        if chosen := order[part :: optimizer.updates]:
            mine = [groups[position] for position in chosen if position in groups]
            sequences = [sequence for group in mine for sequence in group_sequences(group, settings.loss)]
            for name, value in learner.reinforce(sequences, settings.loss, rate).items():
                sums[name] += value
    return sums


def check_reinforcement(run: RunState) -> None:
    """Raise `SettingsError` for an unusable reward, evaluation or example, before the warm start begins."""
    _build_rollout(run)
    if run.ranks.main:
        held_out = HeldOut(run.settings, run.folder, run.engine)
        if run.position == TrainingPosition():  # once, since it takes a while to read large files
            held_out.compare()


def _build_rollout(run: RunState) -> Rollout:
    settings, rollout = run.settings, run.settings.rollout
    check_prompts(settings.data.scorer, settings.read, run.engine.model.trained)
    return Rollout(
        engine=run.engine,
        settings=settings.read.replace(temperature=rollout.temperature, top_p=1.0),
        reward=load_reward(settings.data.reward, settings.data.scorer),
        attempts=rollout.attempts,
        overlong_tokens=settings.loss.overlong_tokens,
        traces=Path(rollout.traces) if rollout.traces else None,
        only_verdicts=settings.policy.only_verdicts,
        caller=run.engine.caller if isinstance(run.engine, TransformersEngine) else nullcontext,
    )


def _keep_reference(run: RunState) -> None:
    """Keep the policy before reinforcement as the reference; it is written once, for resumed runs."""
    path = run.folder / CHECKPOINTS / "reference.pt"
    if run.settings.loss.kl_weight:
        run.policy.keep_reference(load_checkpoint(path) if run.position.step else None)
        if run.ranks.main and not run.position.step:
            write_tensors(path, run.policy.weights())


class HeldOut:
    """A fixed set of examples, read greedily with the run's own workflow. The run's folder keeps the rows.

    `haystack` names what their documents were made from, after the first `score`.
    """

    def __init__(self, settings: TrainingSettings, run: Path, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._folder = run / "evaluation"
        self._examples = run / "held_out.jsonl"
        self.haystack = ""
        evaluation = settings.evaluation
        if evaluation.every and not self._examples.is_file():
            data = load_data(evaluation.examples, settings.seed, engine.model.count_tokens)
            run.mkdir(parents=True, exist_ok=True)
            write_examples(self._examples, data.first(evaluation.count))

    def compare(self) -> None:
        """Warn if the run trains on examples that it holds out, too.

        Raises `SettingsError` for a row of its files that is not an example: it would end the run later.
        """
        settings = self._settings
        examples = load_examples(self._examples) if settings.evaluation.every else ()
        held_out = [(example.problem, example.document) for example in examples]
        fine_tuned = settings.warm_start.examples if settings.warm_start.steps else ()
        data = load_data((*settings.data.examples, *fine_tuned), settings.seed, len)  # no length is used
        trained = ((example.problem, example.document) for example in data.every(len(held_out)))
        shared = set(held_out).intersection(trained)
        if count := sum(pair in shared for pair in held_out):
            _log.warning(_SHARED, count, len(held_out))

    @staticmethod
    def forget(run: Path) -> None:
        """Delete the examples of a run that starts over: they may come from other settings."""
        (run / "held_out.jsonl").unlink(missing_ok=True)

    def due(self, step: int) -> bool:
        """Whether to evaluate the policy after this many steps."""
        evaluation, last = self._settings.evaluation, step == self._settings.steps
        return (
            bool(evaluation.every)
            and (step % evaluation.every == 0 or last)
            and (evaluation.before or step > 0)
        )

    async def score(self, step: int) -> dict[str, float]:
        """Evaluate the current policy. Rows that an interrupted run left are discarded."""
        folder = self._folder / f"step-{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        rows: list[EvaluationRow] = []
        read = self._settings.read
        plan = EvaluationPlan(
            examples=str(self._examples),
            scorer=self._settings.data.scorer,
            task_answer_tokens=False,  # answers get the same room as in training
        )
        greedy = Settings(read=read.replace(temperature=0.0, top_p=1.0))
        run = Evaluation(plan=plan, settings=greedy, folder=folder, on_row=rows.append)
        await evaluate(run, self._engine)
        self.haystack = "; ".join(sorted({row.haystack for row in rows} - {""}))
        scores = sorted(row.score for row in rows)  # in one order, so that the sum is rounded the same
        mean, (low, high) = sum(scores) / len(rows), confidence_interval(scores)
        return {
            "score": 100 * mean,
            "half_width": 100 * max(mean - low, high - mean),  # near 0 and 100 the interval lies to one side
            "failed": sum(row.error is not None for row in rows),
            "count": len(rows),
        }


def measure_mib() -> float:
    """The peak memory so far, in MiB: the GPU's if there is one, else this process's."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
