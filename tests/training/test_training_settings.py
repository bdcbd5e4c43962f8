"""The settings of a training run: one file, and errors that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memagent.errors import SettingsError
from memagent.strict import build
from memagent.training.settings import TrainingSettings, load_training

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "presets").glob("*.toml"))


def load(folder: Path, text: str, overrides: dict[str, Any] | None = None) -> TrainingSettings:
    (folder / "run.toml").write_text(text)
    return load_training(folder / "run.toml", overrides)


def test_the_defaults_are_the_papers() -> None:
    settings = TrainingSettings()
    assert settings.rollout.attempts == 16
    assert settings.rollout.temperature == 1.0
    assert settings.loss.kl_weight == 1e-3
    assert (settings.loss.clip_low, settings.loss.clip_high) == (0.2, 0.28)
    assert not settings.loss.divide_by_std
    assert settings.loss.credit == "trajectory"
    assert (settings.optimizer.learning_rate, settings.optimizer.warmup_steps) == (1e-6, 20)


def test_tables_are_parts_and_whole_numbers_are_numbers(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        'steps = 7\n[rollout]\ntemperature = 1\n[optimizer]\nbetas = [0.8, 0.95]\n[data]\nexamples = ["a:b"]',
    )
    assert settings.steps == 7
    assert isinstance(settings.rollout.temperature, float)
    assert settings.optimizer.betas == (0.8, 0.95)
    assert settings.data.examples == ("a:b",)


def test_overrides_go_over_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "steps = 7\n[loss]\nclip_low = 0.1\nkl_weight = 0.5", {"loss": {"kl_weight": 0.0}}
    )
    assert (settings.steps, settings.loss.clip_low, settings.loss.kl_weight) == (7, 0.1, 0.0)


def test_files_are_found_from_where_the_settings_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "here", tmp_path / "there"
    for path in (folder / "policy", other):
        path.mkdir(parents=True)
    (folder / "own.py").write_text("")
    (folder / "rows.jsonl").write_text("")
    monkeypatch.chdir(other)
    settings = load(
        folder,
        '[policy]\nmodel = "policy"\n[data]\nexamples = ["rows.jsonl", "own.py:f", "json:loads", "no.jsonl"]'
        '\nreward = "own.py:reward"',
    )
    assert settings.policy.model == str(folder / "policy")
    assert settings.data.examples == (
        str(folder / "rows.jsonl"), f"{folder / 'own.py'}:f", "json:loads", "no.jsonl"
    )  # fmt: skip
    assert settings.data.reward == f"{folder / 'own.py'}:reward"


def test_a_run_can_be_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    path = tmp_path / "training.toml"
    path.write_text('[data]\nexamples = ["rows.jsonl"]\n')
    monkeypatch.chdir(tmp_path)
    assert load_training("training.toml") == load_training(path)


def test_the_files_that_a_run_depends_on_have_digests(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "own.py", "templates.toml", "adapter.gguf"):
        (tmp_path / name).write_text(name)
    text = (
        '[policy]\nadapter = "adapter.gguf"\n[read]\ntemplates = "templates.toml"\n[data]\n'
        'examples = ["rows.jsonl", "own.py:f", "json:loads"]\nreward = "own.py:g"\n'
        '[engine]\ntokenizer = "run.toml"'
    )
    first = load(tmp_path, text).digest_files()
    assert sorted(Path(path).name for path in first) == [
        "adapter.gguf",
        "own.py",
        "rows.jsonl",
        "templates.toml",
    ]
    (tmp_path / "own.py").write_text("edited")
    later = load(tmp_path, text).digest_files()
    assert [Path(path).name for path in first if first[path] != later[path]] == ["own.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", "unknown setting 'step', did you mean 'steps'"),
        ("[loss]\nclip_hihg = 0.3", "loss: unknown setting 'clip_hihg', did you mean 'clip_high'"),
        ("[losses]\nclip_low = 0.3", "unknown setting 'losses', did you mean 'loss'"),
        ("loss = 3", "loss is 3: it must be a table"),
        ("steps = 1.5", "steps is 1.5: it must be a whole number"),
        ("steps = true", "steps is True: it must be a whole number"),
        ("[loss]\nkl_weight = true", "kl_weight is True: it must be a number"),
        ("[loss]\ndivide_by_std = 1", "divide_by_std is 1: it must be true or false"),
        (
            '[loss]\ncredit = "last"',
            "credit is 'last': it must be 'trajectory', 'updates', 'verdicts', 'answer' or 'shuffled'",
        ),
        ('[data]\nexamples = "rows.jsonl"', "examples is 'rows.jsonl': it must be a list"),
        ("[data]\nexamples = [3]", "examples.0 is 3: it must be text"),
        ("steps = -1", "steps is -1: it must be at least 0"),
        ("[rollout]\nattempts = 1", "rollout.attempts is 1: it must be at least 2"),
        ("[rollout]\ntemperature = 0", "rollout.temperature is 0: it must be above 0"),
        ("seed = 9223372036854775808", "seed is 9223372036854775808: it must be below 9.2"),
        ("[optimizer]\nbetas = [0.9, 0.9, 0.9]", "it must have at most 2 items"),
        ("[optimizer]\nlearning_rate = nan", "optimizer.learning_rate is nan: it must be"),
        ("[optimizer]\nbatch_tokens = 0", "optimizer.batch_tokens is 0: it must be above 0"),
        ("[loss]\nclip_low = 1.0", "loss.clip_low is 1.0: it must be below 1"),
        ("[loss]\nkl_weight = -1e-3", "loss.kl_weight is -0.001: it must be at least 0"),
        ("[policy]\nonly_verdicts = true", "only_verdicts is for a LoRA: set lora_rank or adapter"),
        ("[policy]\nonly_verdicts = true\nlora_rank = 2", 'only_verdicts needs loss.credit = "verdicts"'),
        (
            "steps = 0\n[warm_start]\nsteps = 1\n[policy]\nonly_verdicts = true\nlora_rank = 2",
            "the oracle gives none",
        ),
        ("steps = ", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^.*run\.toml.*{message}"):
        load(tmp_path, text)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, "steps = 'x'\n[read]\nwindow_tokens = 9\n[loss]\nclip_low = 1.0\nclip_high = -1")
    assert [line.partition("run.toml: ")[2] for line in str(caught.value).splitlines()] == [
        "steps is 'x': it must be a whole number",
        "read: unknown setting 'window_tokens', did you mean 'answer_tokens'?",
        "loss.clip_low is 1.0: it must be below 1",
        "loss.clip_high is -1: it must be at least 0",
    ]


def test_no_file_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"no-such\.toml cannot be read: No such file"):
        load_training("no-such.toml")


def test_a_recorded_run_has_the_same_settings_again(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[policy]\nlora_targets = ["q_proj"]\n[optimizer]\nbetas = [0.8, 0.95]\n[engine]\napi_key = "s"',
    )
    record = json.loads(json.dumps(settings.record()))
    assert "api_key" not in record["engine"]
    again = build(TrainingSettings, record, "checkpoint")
    assert again.record() == settings.record()
    assert again.optimizer == settings.optimizer
    assert again.policy == settings.policy


def test_a_record_with_a_setting_of_another_version_is_named() -> None:
    record = TrainingSettings().record()
    record["loss"]["entropy_bonus"] = 0.1
    with pytest.raises(SettingsError, match=r"step-000001.*loss: unknown setting 'entropy_bonus'"):
        build(TrainingSettings, record, "step-000001")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_can_be_used(preset: Path) -> None:
    settings = load_training(preset)
    if settings.policy.model is not None:
        assert settings.policy.model.startswith(str(preset.parent)) or "/" in settings.policy.model
