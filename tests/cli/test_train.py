"""`memagent train`: its ways end to end on the tiny preset, what it prints, and which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.cli.train import overrides
from memagent.errors import SettingsError
from memagent.training.data import read_trajectories
from server import Server, lasting_fault, refusal

PRESET = str(Path(__file__).parents[2] / "presets" / "tiny.toml")
SMALL = [
    "steps=1", "policy.dtype=float32", "warm_start.count=16", "warm_start.steps=2", "warm_start.sequences=8",
    "rollout.groups=2", "rollout.attempts=2", "evaluation.count=4",
]  # fmt: skip
NOWHERE = ("engine.engine=openai", "engine.base_url=http://127.0.0.1:9/v1", "engine.model=m")


def flags(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


def stages(run: str) -> list[str]:
    rows = Path(run, "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(row)["stage"] for row in rows]


def test_a_run_from_the_warm_start_to_an_export(capsys: Capture) -> None:
    pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    assert main(["train", "sft", PRESET, *flags(*SMALL)]) == 0
    out, err = capsys.readouterr()
    assert out == "runs/tiny\n" and "warm start, step 2 of 2" in err
    assert stages("runs/tiny") == ["warm_start"] * 2
    assert main(["train", PRESET, *flags(*SMALL)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "holds a training run" in err and "Traceback" not in err
    assert main(["train", PRESET, "--resume", *flags(*SMALL)]) == 0
    out, err = capsys.readouterr()
    assert out == "runs/tiny\n" and "training, step 1 of 1" in err and "held-out score after step 1" in err
    assert stages("runs/tiny") == ["warm_start", "warm_start", "evaluation", "training", "evaluation"]

    assert main(["train", "export", "runs/tiny", "--out", "policy"]) == 0
    assert "the policy after step 1: policy" in capsys.readouterr().err
    assert AutoModelForCausalLM.from_pretrained("policy").config.hidden_size == 64
    assert main(["train", "export", "runs/tiny", "--out", "policy"]) == 2
    assert "policy exists already" in capsys.readouterr().err
    assert main(["train", "export", "runs/tiny", "--to", "adapter", "--out", "lora"]) == 2
    assert "the policy has no LoRA" in capsys.readouterr().err


def test_quiet_is_quiet(capsys: Capture) -> None:
    pytest.importorskip("torch")
    assert main(["train", "sft", PRESET, "--quiet", "--out", "here", *flags(*SMALL)]) == 0
    assert capsys.readouterr() == ("here\n", "")


@pytest.fixture
def endpoint(serve: Serve) -> Server:
    """It answers with the digit that its prompt has, if it is below 3."""
    return serve(
        lambda messages: next(
            (character for character in messages[-1]["content"] if character in "012"), "x"
        ),
        latency_seconds=0.01,
    )


def collect(endpoint: Server, *more: str) -> list[str]:
    engine = flags("engine.engine=openai", f"engine.base_url={endpoint.base_url}", "engine.model=test-model")
    return ["train", "collect", PRESET, *engine, "--out", "found.jsonl", *more]


def test_trajectories_are_collected_and_imitated(endpoint: Server, capsys: Capture) -> None:
    assert main(collect(endpoint, "--count", "20")) == 0
    trajectories = list(read_trajectories("found.jsonl"))
    err = capsys.readouterr().err
    assert 0 < len(trajectories) < 20 and err.endswith(f"\n{len(trajectories)} of 20 attempts kept\n")
    assert err.count(", reward ") == 20 and "\n20 of 20: " in err
    assert len({trajectory.example_id for trajectory in trajectories}) == len(trajectories)
    assert {(trajectory.reward, trajectory.answer in ("0", "1", "2")) for trajectory in trajectories} == {
        (1.0, True)
    }
    assert endpoint.most_in_flight > 1, "as many at once as the engine takes"

    pytest.importorskip("torch")
    more = flags(*SMALL, "warm_start.trajectories=found.jsonl")
    assert main(["train", "sft", PRESET, "--quiet", *more]) == 0
    assert stages("runs/tiny") == ["warm_start"] * 2


def test_what_is_kept_is_decided_by_the_least_reward(endpoint: Server, capsys: Capture) -> None:
    more = ("--least-reward", "0", "--samples", "2", "--count", "5", *flags("read.temperature=1"))
    assert main(collect(endpoint, *more)) == 0
    assert "10 of 10 attempts kept" in capsys.readouterr().err
    assert main(collect(endpoint, *more, "--quiet")) == 0
    assert capsys.readouterr().err == ""
    assert main(collect(endpoint, "--samples", "2")) == 2
    assert "set a temperature" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--count", "0"), "--count"),
        (("--count", "-2"), "--count"),
        (("--samples", "0"), "--samples"),
        (("--count", "2", "--least-reward", "nan"), "least_reward is nan"),
        (
            ("--count", "2", "--least-reward", "2"),
            "so found.jsonl is not written",
        ),
    ],
)
def test_no_collection_replaces_a_file_by_nothing(
    more: tuple[str, ...], message: str, endpoint: Server, capsys: Capture
) -> None:
    Path("found.jsonl").write_text("what an hour of attempts has cost")
    assert main(collect(endpoint, *more)) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert Path("found.jsonl").read_text() == "what an hour of attempts has cost"


def test_each_example_of_a_file_is_asked_once(endpoint: Server, capsys: Capture) -> None:
    row = {"problem": "?", "document": "abc1de", "answers": ["1"], "task": "mine"}
    Path("mine.jsonl").write_text("".join(json.dumps(row | {"id": f"e{n}"}) + "\n" for n in range(3)))
    more = flags("data.examples=['mine.jsonl']", "read.workflow=overwrite")
    assert main(collect(endpoint, *more)) == 0
    assert "3 of 3 attempts kept" in capsys.readouterr().err
    assert [trajectory.example_id for trajectory in read_trajectories("found.jsonl")] == ["e0", "e1", "e2"]


def test_an_endpoint_that_fails_ends_with_3(serve: Serve, capsys: Capture) -> None:
    broken = serve(faults=lasting_fault(refusal(503, "on fire")))
    assert main(collect(broken, *flags("engine.retries=0"))) == 3
    err = capsys.readouterr().err
    assert "on fire" in err and "Traceback" not in err and not Path("found.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.toml"], "no.toml cannot be read: No such file"),
        (["sft", "no.toml"], "no.toml cannot be read"),
        (
            [PRESET, "--set", "loss.kl_wight=1"],
            f"{PRESET}, as changed: loss: unknown setting 'kl_wight', did you mean 'kl_weight'?",
        ),
        ([PRESET, "--set", "steps=many"], "steps is 'many': it must be a whole number"),
        ([PRESET, "--set", "steps"], "--set steps: write NAME=VALUE"),
        ([PRESET, "--set", "loss=3", "--set", "loss.kl_weight=0"], "loss was set to 3 before"),
        ([PRESET, "--set", "rollout.groups=0"], "rollout.groups is 0: it must be above 0"),
        ([PRESET, "--set", "policy=tiny"], "policy is 'tiny': it must be a table"),
        (["collect", PRESET, "--out", "x", *flags("data.examples=[]", *NOWHERE)], "which examples?"),
    ],
)
def test_impossible_requests_exit_with_2(arguments: list[str], words: str, capsys: Capture) -> None:
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err.partition("error: ")[2] and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([PRESET, "--set", "data.examples=[]"], "set data.examples"),
        ([PRESET, "--set", "policy.model=nowhere.gguf"], "the model nowhere.gguf cannot be loaded"),
        ([PRESET, "--set", "data.reward=a:b"], "a cannot be loaded"),
        ([PRESET, "--set", "evaluation.examples=['no.jsonl']"], "no.jsonl"),
        ([PRESET, "--set", "warm_start.trajectories=no.jsonl"], "no.jsonl cannot be read"),
        (["export", "nowhere", "--out", "x"], "nowhere has no checkpoint"),
    ],
)
def test_training_exits_with_2_for_impossible_requests(
    arguments: list[str], words: str, capsys: Capture
) -> None:
    pytest.importorskip("torch")
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err.partition("error: ")[2] and "Traceback" not in err


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that cannot import torch."""
    forbid = (
        "import sys; sys.modules['torch'] = None; from memagent.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run([sys.executable, "-c", forbid, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "way", [["sft", PRESET], pytest.param(["export", "runs/tiny", "--out", "x"], marks=pytest.mark.slow)]
)
def test_without_torch_it_says_how_to_get_it(way: list[str]) -> None:
    done = without_torch("train", *way)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "pip install -e '.[train]'" in done.stderr


@pytest.mark.slow
def test_collecting_needs_no_torch(endpoint: Server) -> None:
    done = without_torch(*collect(endpoint, "--count", "9"))
    assert done.returncode == 0 and "attempts kept" in done.stderr, done.stderr


def test_the_help_names_every_way(capsys: Capture) -> None:
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("run", "sft", "collect", "export", "accelerate launch"))


def test_values_are_toml_or_text() -> None:
    pairs = ["steps=3", "loss.kl_weight=0", "policy.model=a/b", "data.examples=['x', 'y']", "read.seed = 7"]
    assert overrides(pairs) == {
        "steps": 3,
        "loss": {"kl_weight": 0},
        "policy": {"model": "a/b"},
        "data": {"examples": ["x", "y"]},
        "read": {"seed": 7},
    }
    with pytest.raises(SettingsError, match="write NAME=VALUE"):
        overrides(["steps"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "runs/tiny", "--out", "x", "--least-reward", "1"], "No such option '--least-reward'"),
        (["export", "runs/tiny", "--out", "x", "--resume"], "No such option '--resume'"),
        (["run", PRESET, "--to", "gguf"], "No such option '--to'"),
    ],
)
def test_each_verb_has_its_own_flags(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
