"""The `memagent` section of a verl configuration, and what this plug-in requires of the other sections.

With other settings verl would run, but train on something other than the attempts' rewards.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from memagent.errors import SettingsError
from memagent.reading.budgets import Budgets
from memagent.settings import ReadSettings
from memagent.strict import StrictModel, build
from memagent.training.rewards import check_prompts
from memagent.types import Trained

TRAINER = "memagent"
"""The required value of `trainer.v1.trainer_mode`."""

AGENT_LOOP = "memagent"
"""The required value of `actor_rollout_ref.rollout.agent.default_agent_loop`."""

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
_ELSEWHERE = {"temperature", "top_p", "seed"}


class PluginSettings(StrictModel):
    """The `memagent` section. `reward`, `scorer` and `overlong_tokens` are as in `memagent train`."""

    read: ReadSettings = ReadSettings()
    reward: str | None = None
    scorer: str | None = None
    overlong_tokens: int = 0


def plugin_settings(config: DictConfig) -> PluginSettings:
    """The `memagent` section of a verl configuration. Raises `SettingsError` for an unknown key.

    Settings files and the environment, which differ between machines, are ignored.
    """
    section: Any = OmegaConf.to_container(OmegaConf.select(config, "memagent", default={}), resolve=True)
    if sampling := sorted(_ELSEWHERE & section.get("read", {}).keys()):
        raise SettingsError(f"memagent.read.{sampling[0]} is verl's: set it in actor_rollout_ref.rollout")
    return build(PluginSettings, section, "memagent")


def check(config: DictConfig) -> None:
    """Raise `SettingsError` for a configuration that would not train on the attempts' rewards."""
    for name, needed in _NEEDED.items():
        if (found := OmegaConf.select(config, name)) != needed:
            raise SettingsError(f"{name} is {found!r}, this plug-in needs {needed!r}")
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
