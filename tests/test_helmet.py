"""`benchmarks/helmet.py`: HELMET's `eval.py` with a way of reading as its model.

Its place is taken by one that calls a model as HELMET's does, without its data and requirements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark_modules import BENCHMARKS
from files import write_files
from server import Server

pytestmark = pytest.mark.slow

EVAL = """
import argparse, json, os

def load_LLM(args):
    raise AssertionError("HELMET's own model")

def main():
    parser = argparse.ArgumentParser()
    for name in ("--model_name_or_path", "--num_workers", "--test_files"):
        parser.add_argument(name)
    parser.add_argument("--no_cuda", action="store_true")
    args = parser.parse_args()
    args.output_dir = f"output/{args.model_name_or_path}"
    os.makedirs(args.output_dir, exist_ok=True)
    model = load_LLM(args)
    model.max_length, model.generation_max_length = 8192, 20
    data = {"user_template": "Answer in a word.\\n\\n{demos}{context}\\n\\nQuestion: {question}"}
    items = [json.loads(line) for line in open(args.test_files)]
    inputs = [model.prepare_inputs(item, data) for item in items]
    assert all("input_ids" not in item for item in inputs)
    with open(f"{args.output_dir}/{args.test_files}", "w") as file:
        json.dump(model.generate_batch(inputs), file)
"""
ITEMS = [
    {"context": f"The {name} was built in {year}.", "question": f"When was the {name} built?", "demos": ""}
    for name, year in (("ferry", 1950), ("pier", 1961))
]


@pytest.fixture
def helmet(tmp_path: Path) -> Path:
    """A checkout of HELMET."""
    rows = "".join(f"{json.dumps(item)}\n" for item in ITEMS)
    write_files(tmp_path / "HELMET", {"eval.py": EVAL, "rows.jsonl": rows})
    return tmp_path / "HELMET"


def evaluate(helmet: Path, server: Server) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"{BENCHMARKS}/helmet.py", str(helmet), "--base-url", server.base_url]
    command += ["--model", "makers/test-2.5", "--workflow", "full", "--test_files", "rows.jsonl"]
    environment = {"XDG_CONFIG_HOME": str(helmet), "MEMAGENT_RETRIES": "0"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_helmet_gets_the_replies_in_its_order_and_a_second_run_asks_nothing(helmet: Path) -> None:
    with Server(lambda messages: "1961" if "pier" in messages[-1]["content"] else "1950") as server:
        for _ in range(2):
            done = evaluate(helmet, server)
            assert done.returncode == 0, done.stderr
        assert len(server.asked) == 2
    outputs = json.loads((helmet / "output/test-2.5-full/rows.jsonl").read_text("utf-8"))
    assert [output["output"] for output in outputs] == ["1950", "1961"]
    assert outputs[0]["input_text"] == "Answer in a word.\n\nQuestion: When was the ferry built?"
    assert all(output["input_len"] and output["output_len"] for output in outputs)
    for body in server.asked:
        assert body["max_tokens"] == 20
        assert "was built in 19" in body["messages"][-1]["content"]


def test_a_failed_read_leaves_no_score(helmet: Path) -> None:
    with Server(lambda messages: "", listed=None) as server:
        failed = evaluate(helmet, server)
    assert failed.returncode != 0
    assert "EngineError" in failed.stderr
    with Server(lambda messages: "1950") as server:
        assert evaluate(helmet, server).returncode == 0
