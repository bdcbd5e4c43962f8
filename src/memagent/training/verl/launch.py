"""verl's entry point with this plug-in's checks, agent loop and trainer."""

from __future__ import annotations

from typing import Any

import hydra
import ray
from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from memagent.training.verl import settings


@ray.remote(num_cpus=1)
class TrajectoryTaskRunner:
    """verl's task runner, in a process in which this plug-in's trainer is registered."""

    def run(self, config: DictConfig) -> Any:
        """Train as the configuration says."""
        from memagent.training.verl import trainer  # noqa: F401 - it registers itself with verl

        return TaskRunnerV1.__ray_metadata__.modified_class().run(config)


def prepare(config: DictConfig) -> DictConfig:
    """The configuration, checked here and by verl. Raises `SettingsError`."""
    settings.check(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    return config


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)  # type: ignore[untyped-decorator]
def main(config: DictConfig) -> None:
    """Train on the current Ray cluster, with verl's configuration from the command line."""
    auto_set_device(config)
    run_ppo(prepare(config), task_runner_class=TrajectoryTaskRunner)
