"""lm-eval and inspect_ai with three small examples each, through their own command lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HARNESSES = Path(__file__).parents[2] / "integrations" / "harnesses"
TOKENIZER = Path(__file__).parents[2] / "presets" / "small" / "policy"
QUESTION = re.compile(r"What (?:is|are all) the special magic numbers? for ([\w-]+)")


def reply(messages: Any) -> str:
    """Keeps the needle that is asked for, if it is shown together with the question, and answers with it."""
    text = messages[-1]["content"]
    question = QUESTION.search(text)
    needle = question and re.search(rf"special magic numbers? for {question[1]} is: \d{{7}}\.", text)
    return needle[0] if needle else "UNCHANGED"


@pytest.fixture
def address(serving: Callable[..., str]) -> str:
    return serving(reply, "--workflow", "gated", "--chunk-tokens", "1000")


def run(module: str, *words: str, **environment: str) -> None:
    """Run a harness without a network."""
    apart = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", **environment}
    command = [str(Path(sys.executable).parent / module), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | apart, cwd=HARNESSES
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not find_spec("lm_eval"), reason="lm-eval is not installed")
def test_lm_eval(address: str, tmp_path: Path) -> None:
    model = f"base_url={address}/chat/completions,model=memagent,num_concurrent=3,timeout=3600"
    metadata = json.dumps({"tokenizer": str(TOKENIZER), "max_seq_lengths": [4096]})  # RULER makes its texts
    command = ["run", "--model", "local-chat-completions", "--model_args", model, "--apply_chat_template"]
    command += ["--include_path", str(HARNESSES), "--tasks", "niah_single_1,stories", "--limit", "3"]
    arguments = json.dumps({"memagent": {"problem_at": "end", "problem_tokens": 60}})
    run(
        "lm_eval", *command, "--metadata", metadata, "--gen_kwargs", arguments, "--output_path", str(tmp_path)
    )
    (file,) = tmp_path.rglob("results_*.json")
    report = json.loads(file.read_text("utf-8"))
    assert report["results"]["niah_single_1"]["4096,none"] == 1.0
    assert report["results"]["stories"]["exact_match,number"] == 1.0
    assert {name: counts["effective"] for name, counts in report["n-samples"].items()} == {
        "niah_single_1": 3,
        "stories": 3,
    }


@pytest.mark.skipif(not find_spec("inspect_ai"), reason="inspect_ai is not installed")
def test_inspect(address: str, tmp_path: Path) -> None:
    command = ["eval", "inspect_needles.py", "--model", "openai-api/memagent/memagent"]
    command += ["--model-base-url", address, "--log-dir", str(tmp_path), "--log-format", "json"]
    run("inspect", *command, "--display", "plain", MEMAGENT_API_KEY="none")
    (log,) = tmp_path.glob("*.json")
    report = json.loads(log.read_text("utf-8"))
    assert report["status"] == "success"
    assert report["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0
    assert report["stats"]["model_usage"]["openai-api/memagent/memagent"]["input_tokens"] > 3 * 2000
