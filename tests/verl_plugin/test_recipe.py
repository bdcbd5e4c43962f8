"""The recipe: what its launch script starts, what verl makes of it, and what the plug-in refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.dataset.rl_dataset import get_dataset_class

from memagent.errors import SettingsError
from memagent.reading.budgets import Budgets
from memagent.reading.workflows import workflows
from memagent.training.verl.agent_loop import plugin_settings
from memagent.training.verl.trainer import check, prepare
from verl_plugin.material import RECIPE


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The configuration that launch.sh leads to, printed by the entry point; `ray` is a stand-in."""
    folder = tmp_path_factory.mktemp("bin")
    ray = folder / "ray"
    ray.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\nexec "$@" --cfg job\n')
    ray.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [str(RECIPE / "launch.sh"), "trainer.nnodes=2", "memagent.read.chunk_tokens=4000"],
        env={
            **os.environ,
            "PATH": path,
            "MODEL": "/m",
            "TRAIN": "/t.jsonl",
            "HELD_OUT": "/h.jsonl",
            "OUT": "/o",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return OmegaConf.create(done.stdout[done.stdout.index("actor_rollout_ref:") :])


def test_the_script_starts_the_recipe(launched: Any) -> None:
    assert launched.actor_rollout_ref.model.path == "/m"
    assert (launched.data.train_files, launched.data.val_files) == ("/t.jsonl", "/h.jsonl")
    assert launched.trainer.default_local_dir == "/o"
    assert (launched.trainer.nnodes, launched.memagent.read.chunk_tokens) == (2, 4000)
    check(launched)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memagent.read.problem_tokens", 1024),
        ("memagent.read.memory_tokens", 1024),
        ("memagent.read.answer_tokens", 1024),
        ("data.train_batch_size", 128),
        ("actor_rollout_ref.rollout.n", 16),
        ("actor_rollout_ref.rollout.temperature", 1.0),
        ("actor_rollout_ref.rollout.response_length", 1024),
        ("actor_rollout_ref.actor.clip_ratio_low", 0.2),
        ("actor_rollout_ref.actor.clip_ratio_high", 0.28),
        ("actor_rollout_ref.actor.kl_loss_coef", 1e-3),
        ("actor_rollout_ref.actor.use_kl_loss", True),
        ("actor_rollout_ref.actor.entropy_coeff", 0),
        ("actor_rollout_ref.actor.optim.optimizer", "AdamW"),
        ("actor_rollout_ref.actor.optim.lr", 1e-6),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps", 20),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type", "constant"),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
        ("algorithm.norm_adv_by_std_in_grpo", False),
    ],
)
def test_the_papers_setting(launched: Any, name: str, value: object) -> None:
    assert OmegaConf.select(launched, name) == value


@pytest.mark.parametrize("workflow", ["overwrite", "gated"])
def test_the_papers_budgets_fit_the_prompt_and_the_window(launched: Any, model: Path, workflow: str) -> None:
    words = len(AutoTokenizer.from_pretrained(model)(workflows()[workflow].prompts.bare_text)["input_ids"])
    budgets, data = Budgets(1024, 5000, 1024, 1024), launched.data
    names = frozenset(Budgets.__dataclass_fields__)
    assert budgets.fit(data.max_prompt_length + data.max_response_length, words, names) == budgets
    assert 1024 + 5000 + 1024 + words + 64 <= data.max_prompt_length


def test_verl_accepts_the_recipe(compose: Callable[..., Any]) -> None:
    config = prepare(
        compose("actor_rollout_ref.actor.use_kl_loss=true", "algorithm.filter_groups.enable=true")
    )
    agent = config.actor_rollout_ref.rollout.agent
    assert agent.agent_loop_config_path is None, "a path on this machine is no path on another"
    assert get_dataset_class(config.data).__name__ == "ExampleDataset"  # what every worker does first
    assert _agent_loop_registry[agent.default_agent_loop] == {
        "_target_": "memagent.training.verl.agent_loop.MemoryAgentLoop"
    }
    assert get_trainer_cls(config.trainer.v1.trainer_mode).__name__ == "TrajectoryTrainer"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("trainer.use_v1=false", "use_v1"),
        ("trainer.v1.trainer_mode=sync", "needs 'memagent'"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent", "default_agent_loop"),
        ("algorithm.adv_estimator=rloo", "needs 'grpo'"),
        ("algorithm.use_kl_in_reward=true", "use_kl_in_reward"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "token-mean"),
        ("actor_rollout_ref.rollout.calculate_log_probs=false", "calculate_log_probs"),
        ("actor_rollout_ref.rollout.top_p=0.9", "top_p is 0.9, this plug-in needs 1.0"),
        ("memagent.read.memory_tokens=49", "raise data.max_response_length"),
        ("memagent.read.answer_tokens=null", "answer_tokens is 1024"),
        ("data.train_batch_size=3", "multiple"),
        ("data.custom_cls.path=pkg://memagent.training.verl.trainer", "needs 'pkg://.*agent_loop'"),
        ("+memagent.scorers=f1", "unknown setting 'scorers', did you mean 'scorer'"),
        ("memagent.scorer=boxed_match", r"presets/prompts/boxed\.toml"),
        ("+memagent.read.temperature=0.5", "set it in actor_rollout_ref.rollout"),
        ("+memagent.read.chunks=3", "unknown setting 'chunks'"),
    ],
)
def test_what_would_train_on_something_else_is_refused(
    compose: Callable[..., Any], override: str, complaint: str
) -> None:
    multiple = ["actor_rollout_ref.actor.ppo_mini_batch_size=2"] if "train_batch_size" in override else []
    with pytest.raises(SettingsError, match=complaint):
        check(compose(override, *multiple))


def test_a_machines_own_settings_do_not_count(
    compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMAGENT_CHUNK_TOKENS", "7")
    assert plugin_settings(compose()).read.chunk_tokens == 80
    assert plugin_settings(compose("memagent.read.chunk_tokens=null")).read.chunk_tokens is None


def test_an_adapter_to_start_from_is_not_a_reference(compose: Callable[..., Any]) -> None:
    adapter = "actor_rollout_ref.model.lora_adapter_path=/adapter"
    check(compose(adapter))
    with pytest.raises(SettingsError, match=r"lora_adapter_path is '/adapter': .*use_kl_loss to false"):
        check(compose(adapter, "actor_rollout_ref.actor.use_kl_loss=true"))
