"""verl's entry point and synchronous trainer, with optimizer steps and metrics counted in attempts.

A configuration is checked first: with other settings verl would run, but train on something other than the
attempts' rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import hydra
import ray
import transfer_queue
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from memagent.errors import SettingsError
from memagent.reading.budgets import Budgets
from memagent.training.rewards import check_prompts
from memagent.training.verl.agent_loop import AGENT_LOOP, plugin_settings
from memagent.types import Trained

TRAINER = "memagent"
"""The required value of `trainer.v1.trainer_mode`."""

_NEEDED = {
    "data.custom_cls.path": "pkg://memagent.training.verl.agent_loop",
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": TRAINER,
    "actor_rollout_ref.rollout.agent.default_agent_loop": AGENT_LOOP,
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.top_p": 1.0,
}


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
    return {f"memagent/{name}": fmean(values) for name, values in columns.items()}


def check(config: DictConfig) -> None:
    """Raise `SettingsError` for a configuration that would not train on the attempts' rewards."""
    for name, needed in _NEEDED.items():
        if (value := OmegaConf.select(config, name)) != needed:
            raise SettingsError(f"{name} is {value!r}, this plug-in needs {needed!r}")
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    if actor.use_kl_loss and model.get("lora_adapter_path"):
        raise SettingsError(
            f"actor_rollout_ref.model.lora_adapter_path is {model.lora_adapter_path!r}: verl's reference "
            "would be the model without it, and the KL term would undo it; merge it into the model, or set "
            "actor_rollout_ref.actor.use_kl_loss to false"
        )
    plugin = plugin_settings(config)
    check_prompts(plugin.scorer, plugin.read, Trained())
    read, longest = plugin.read, config.data.max_response_length
    for name in ("memory_tokens", "answer_tokens"):
        if (tokens := getattr(read, name) or getattr(Budgets(), name)) > longest:
            raise SettingsError(
                f"memagent.read.{name} is {tokens}: raise data.max_response_length ({longest})"
            )
    batch, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if batch % mini_batch:
        raise SettingsError(
            f"data.train_batch_size is {batch}: make it a multiple of ppo_mini_batch_size, {mini_batch}, "
            "so that each of its optimizer steps gets the same share"
        )


@ray.remote(num_cpus=1)
class TrajectoryTaskRunner:
    """verl's task runner, in a process in which this plug-in's trainer is registered."""

    def run(self, config: DictConfig) -> Any:
        """Train as the configuration says."""
        from memagent.training.verl import trainer  # noqa: F401 - Ray sends this class without its module

        return TaskRunnerV1.__ray_metadata__.modified_class().run(config)


def prepare(config: DictConfig) -> DictConfig:
    """The configuration, checked here and by verl. Raises `SettingsError`."""
    check(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    return config


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)  # type: ignore[untyped-decorator]
def main(config: DictConfig) -> None:
    """Train on the current Ray cluster, with verl's configuration from the command line."""
    auto_set_device(config)
    run_ppo(prepare(config), task_runner_class=TrajectoryTaskRunner)
