"""What the tests of the verl plug-in share. They run in verl's own environment: `make test-verl`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from smollm2 import MODEL
from verl_plugin.material import RECIPE, example

collect_ignore_glob = [] if find_spec("verl") and find_spec("transfer_queue") else ["*.py"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer and the configuration of SmolLM2, and no weights."""
    from transformers import AutoConfig, AutoTokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = AutoTokenizer.from_pretrained(str(MODEL.parent), gguf_file=MODEL.name)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    config = AutoConfig.from_pretrained(str(MODEL.parent), gguf_file=MODEL.name)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two examples, one with a long document and one with a short one."""
    path = tmp_path_factory.mktemp("data") / "codes.jsonl"
    rows = [example(1, "4711", 14), example(2, "0815", 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="session")
def compose(model: Path, examples: Path) -> Callable[..., Any]:
    """The recipe, composed as verl composes its own configuration, for a small machine; then overrides."""
    from hydra import compose as composed
    from hydra import initialize_config_dir

    small = [
        "hydra.searchpath=[pkg://verl.trainer.config]",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files={examples}",
        f"data.val_files={examples}",
        "data.train_batch_size=2",
        "data.dataloader_num_workers=0",
        "data.shuffle=false",
        "data.max_prompt_length=512",
        "data.max_response_length=48",
        "memagent.read={workflow:overwrite,problem_tokens:32,chunk_tokens:80,memory_tokens:48,answer_tokens:24}",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "algorithm.filter_groups.enable=false",
        "algorithm.rollout_correction.bypass_mode=true",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]

    def make(*overrides: str) -> Any:
        with initialize_config_dir(str(RECIPE), version_base=None):
            return composed("qwen7b", [*small, *overrides])

    return make


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray, on this machine, for all tests that need it; what it and the model keep goes to nobody's home."""
    import ray

    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    workers = {"env_vars": {"PYTHONPATH": path}}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        environment.setenv("RAY_worker_niceness", "0")  # else whatever else is running goes first
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=workers)
        yield
        ray.shutdown()
