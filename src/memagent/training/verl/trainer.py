"""verl's synchronous trainer, with optimizer steps and metrics counted in attempts, not in conversations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import transfer_queue
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from memagent.training.verl.settings import TRAINER


@register_trainer(TRAINER)
class TrajectoryTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Takes `data.train_batch_size / actor.ppo_mini_batch_size` optimizer steps per batch, however long.

    verl takes `ppo_mini_batch_size * rollout.n` rows per step. With a row for each conversation, longer
    documents would mean more steps, and verl would fill the last step with empty rows: under a mean over
    tokens, its few real rows would weigh as much as a full step. Here every step has the same share of rows.
    """

    def __init__(self, config: DictConfig) -> None:
        mini_batch: int = config.actor_rollout_ref.actor.ppo_mini_batch_size
        self._updates: int = config.data.train_batch_size // mini_batch
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # the mode that verl itself checks for
        super().__init__(config)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The number of rows in a batch is padded to a multiple of this."""
        return math.lcm(dp_size, self.config.actor_rollout_ref.rollout.n) * self._updates

    def _balance_batch(self, batch: Any, *args: Any, **options: Any) -> Any:
        """Pad and order the batch, and set the mini-batch size that `_update_actor` splits it by."""
        batch = super()._balance_batch(batch, *args, **options)
        rollouts = self.config.actor_rollout_ref.rollout.n
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(batch) // (self._updates * rollouts)
        return batch

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **options: Any) -> None:
        """Add means over attempts, `memagent/...`, to verl's metrics, in which long attempts count more."""
        super()._compute_metrics(batch, metrics, *args, **options)
        keys = last_rows(
            key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")
        )
        data = transfer_queue.kv_batch_get(
            keys=keys, partition_id=batch.partition_id, select_fields=["rm_scores", "extra_fields"]
        )
        rewards = [float(row.sum()) for row in data["rm_scores"].unbind()]
        infos = [fields["reward_extra_info"] for fields in data["extra_fields"]]
        metrics.update(attempt_means(rewards, infos))


def last_rows(keys: Iterable[str]) -> list[str]:
    """The last of each session's keys (`uid_session_index`): the conversation with the answer."""
    last: dict[str, int] = {}
    for key in keys:
        session, _, index = key.rpartition("_")
        last[session] = max(last.get(session, 0), int(index))
    return [f"{session}_{index}" for session, index in last.items()]


def attempt_means(rewards: list[float], infos: list[Mapping[str, float]]) -> dict[str, float]:
    """The means over attempts, as metrics."""
    columns = {"reward": rewards} | {name: [float(info[name]) for info in infos] for name in infos[0]}
    return {f"memagent/{name}": math.fsum(values) / len(values) for name, values in columns.items()}
