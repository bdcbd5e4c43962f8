"""The documented installation: what pip makes of it, and whether the recipe can run on that."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM

from verl_plugin.material import RECIPE

ROOT = Path(__file__).parents[2]
ATTENTION = OmegaConf.load(RECIPE / "qwen7b.yaml").actor_rollout_ref.model.override_config.attn_implementation
# Without these, whole wheels or their sources would be downloaded: these two have no wheel.
METADATA_ALONE = (
    "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--only-binary=:all:",
    "--no-binary=antlr4-python3-runtime,memagent",
)  # fmt: skip


@pytest.fixture
def pip(tmp_path: Path) -> list[str]:
    """A pip of today, since older ones download what they would install."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    pip = [str(tmp_path / "env" / "bin" / "python"), "-m", "pip", "--quiet"]
    if subprocess.run([*pip, "install", "--upgrade", "--retries=0", "pip"], capture_output=True).returncode:
        pytest.skip("there is no network")
    return pip


def test_the_documented_command_installs_what_verl_pins_and_the_recipe_needs(
    pip: list[str], tmp_path: Path
) -> None:
    wanted = re.search(r"`pip install (.+?)`", (ROOT / "docs" / "verl.md").read_text("utf-8"))
    assert wanted
    report = tmp_path / "report.json"
    command = [*pip, "install", *METADATA_ALONE, f"--report={report}", *shlex.split(wanted[1])]
    subprocess.run(command, cwd=ROOT, check=True)
    installed = [package["metadata"] for package in json.loads(report.read_text("utf-8"))["install"]]
    versions = {metadata["name"]: metadata["version"] for metadata in installed}
    pinned = {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"}
    assert {name: versions.get(name) for name in pinned} == pinned
    assert "flash-attn" not in versions and ATTENTION == "sdpa"


def test_the_recipes_attention_keeps_rows_apart_that_verl_packs_into_one() -> None:
    config = AutoConfig.from_pretrained(ROOT / "presets" / "small" / "policy")
    policy = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)
    rows = [torch.randint(0, config.vocab_size, (1, tokens)) for tokens in (9, 14)]
    places = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    packed = policy(torch.cat(rows, 1), attention_mask=None, position_ids=places, use_cache=False).logits
    apart = torch.cat([policy(row, use_cache=False).logits for row in rows], 1)
    torch.testing.assert_close(packed, apart, atol=1e-4, rtol=1e-4)
