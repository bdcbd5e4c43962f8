"""A step of verl's trainer without GPUs: Ray, TransferQueue, replay buffer, advantages, mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import transfer_queue
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils

from memagent.training.optimization.objective import group_advantages
from memagent.training.verl.trainer import TrajectoryTaskRunner, TrajectoryTrainer, last_rows, prepare
from verl_plugin.material import FILLER
from verl_plugin.servers import Embedded, Script, Server, client_of

RANKS = 3


class Workers:
    """The part of the GPU workers that a step asks for: it notes what the actor is told to train on."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": list(range(RANKS))}
        self.told: dict[str, Any] = {}

    def update_actor(self, batch: Any) -> Any:
        self.told = dict(batch.extra_info)
        return tensordict_utils.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": 0.0}})


@pytest.fixture
def trainer(cluster: None, compose: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """The plug-in's trainer, set up by verl's own methods where these need no GPU, and the server's log."""
    make_reply, attempts = request.param
    config = prepare(compose(f"actor_rollout_ref.rollout.n={attempts}"))
    transfer_queue.init(config.transfer_queue)
    try:
        trainer = TrajectoryTrainer(config)
        trainer._init_tokenizer()
        trainer._init_dataloader()
        trainer.global_steps = 1
        trainer.use_critic = trainer.use_reference_policy = False
        trainer.curr_step_profile = False
        trainer.actor_rollout_wg = Workers()
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        trainer.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        server = Server.remote(partial(make_reply, config.actor_rollout_ref.model.path))
        trainer.agent_loop_manager = AgentLoopManagerTQ.create(config, client_of(config, server))
        yield trainer, lambda: ray.get(server.log.remote())
    finally:
        transfer_queue.close()


def rows_of(batch: Any) -> dict[str, dict[str, Any]]:
    """Everything that verl has stored of a batch, by key."""
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train")
    return {
        key: {name: data[name][at] for name in data.keys()}  # noqa: SIM118 - iterating it gives rows
        for at, key in enumerate(batch.keys)
    }


def step(trainer: Any) -> tuple[Any, dict[str, dict[str, Any]], dict[str, Any]]:
    """A step of the trainer: its batch, the rows of attempts, the metrics."""
    metrics: dict[str, Any] = {}
    timing: dict[str, float] = {}
    batch = trainer.step(metrics, timing)
    trainer._compute_metrics(batch, metrics, {**timing, "step": 1.0}, global_steps=1, epoch=0)
    padding = {key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding")}
    return batch, {key: row for key, row in rows_of(batch).items() if key not in padding}, metrics


def advantages_of(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What this package gives each session: the reward of its last row against its group's."""
    rewards: dict[str, dict[str, float]] = {}
    for key in last_rows(rows):
        session = key.rpartition("_")[0]
        rewards.setdefault(session.partition("_")[0], {})[session] = float(rows[key]["rm_scores"].sum())
    return {
        session: advantage
        for group in rewards.values()
        for session, advantage in zip(
            group, group_advantages(torch.tensor([[*group.values()]]))[0].tolist(), strict=True
        )
    }


@pytest.mark.parametrize("trainer", [(Script.for_model, 4)], indirect=True, ids=["4 attempts"])
def test_a_step_with_a_scripted_policy(trainer: Any) -> None:
    trajectory_trainer, log = trainer
    batch, rows, metrics = step(trajectory_trainer)
    check_what_was_sampled_is_what_is_trained_on(rows, log())
    check_every_row_has_its_attempts_advantage(rows)
    check_steps_are_counted_in_examples(trajectory_trainer, batch, rows)
    check_rewards(rows, metrics, log())
    check_validation(trajectory_trainer._validate(), log()[-4:])


@pytest.mark.parametrize("trainer", [(Embedded.for_model, 2)], indirect=True, ids=["2 attempts"])
def test_a_step_with_a_real_model(trainer: Any) -> None:
    trajectory_trainer, log = trainer
    batch, rows, _ = step(trajectory_trainer)
    check_what_was_sampled_is_what_is_trained_on(rows, log())
    check_every_row_has_its_attempts_advantage(rows)
    check_steps_are_counted_in_examples(trajectory_trainer, batch, rows)


def check_what_was_sampled_is_what_is_trained_on(
    rows: dict[str, dict[str, Any]], log: list[dict[str, Any]]
) -> None:
    # Two attempts may happen to get the same reply, with log-probabilities that were rounded differently.
    trained = sorted(
        (row["prompts"].tolist(), row["responses"].tolist(), row["old_log_probs"].tolist())
        for row in rows.values()
    )
    sampled = sorted((call["prompt"], call["ids"], call["logprobs"]) for call in log)
    for (*trained_ids, trained_logprobs), (*ids, logprobs) in zip(trained, sampled, strict=True):
        assert trained_ids == ids and trained_logprobs == pytest.approx(logprobs)
    for row in rows.values():
        assert row["response_mask"].all() and row["loss_mask"].all()
        assert FILLER not in str(row.get("example")) + str(row.get("raw_prompt"))
    assert {call["how"]["max_tokens"] for call in log} == {48, 24}, "an answer has a limit of its own"


def check_every_row_has_its_attempts_advantage(rows: dict[str, dict[str, Any]]) -> None:
    ours = advantages_of(rows)
    for key, row in rows.items():
        expected = [ours[key.rpartition("_")[0]]] * len(row["responses"])
        assert row["advantages"].tolist() == pytest.approx(expected, abs=1e-6)


def check_steps_are_counted_in_examples(trainer: Any, batch: Any, rows: dict[str, dict[str, Any]]) -> None:
    extra_info = trainer.actor_rollout_wg.told
    assert len(batch) == 2 * extra_info["mini_batch_size"], (
        "two optimizer steps, for two examples with one in a step"
    )
    assert extra_info["mini_batch_size"] % RANKS == 0
    assert len(batch) - len(rows) < 2 * 12, "fewer empty rows than would fill the ranks and the attempts"
    for key, row in rows_of(batch).items():
        assert key in rows or not row["loss_mask"].any()


def check_rewards(
    rows: dict[str, dict[str, Any]], metrics: dict[str, Any], log: list[dict[str, Any]]
) -> None:
    last = [rows[key] for key in last_rows(rows)]
    assert len(last) == 8
    assert len({key.rpartition("_")[2] for key in last_rows(rows)}) == 2, "one document is longer"
    rewards = [float(row["rm_scores"].sum()) for row in last]
    infos = [row["extra_fields"]["reward_extra_info"] for row in last]
    assert set(rewards) == {0.0, 1.0}
    assert sum(info["no_answer"] for info in infos) == 2, "the empty answers"
    assert sum(len(call["ids"]) == 1 for call in log) == 2, "which are rows too"
    assert metrics["memagent/reward"] == pytest.approx(sum(rewards) / 8)
    assert metrics["memagent/conversations"] == pytest.approx(len(rows) / 8)


def check_validation(values: dict[str, float], log: list[dict[str, Any]]) -> None:
    assert values["val-core/codes/acc/mean@1"] == 0.5, "one right, one wrong"
    assert {call["how"]["temperature"] for call in log} == {0}


def test_rays_workers_know_the_trainer(cluster: None, compose: Callable[..., Any]) -> None:
    """The run gets to the trainer, which was found by its name, and ends at examples that are not there."""
    runner = TrajectoryTaskRunner.remote()
    with pytest.raises(ray.exceptions.RayTaskError, match=r"nowhere.jsonl cannot be read"):
        ray.get(runner.run.remote(prepare(compose("data.train_files=nowhere.jsonl"))))
