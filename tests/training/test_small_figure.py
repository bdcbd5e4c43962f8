"""presets/small/figure.py: what it trains and reads, in which order, and what it makes of the rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from memagent.training.data import load_function

SCRIPT = Path(__file__).parents[2] / "presets" / "small" / "figure.py"
LENGTHS = ("2048", "4096")
SCORES = {"reinforcement": 1.0, "warm-start": 0.5, "overwrite": 0.25}


class Commands:
    """In place of Python: makes the folder of a reader, or rows with a reader's score."""

    def __init__(self) -> None:
        self.called: list[tuple[str, ...]] = []
        self.fails_at = ""

    def __call__(self, *words: object, cores: int = 1) -> None:
        given = tuple(map(str, words[2:] if words[0] == "-m" else words))
        self.called.append(given)
        out = Path(given[given.index("--out") + 1])
        if self.fails_at and self.fails_at in str(out):
            raise SystemExit(1)
        out.mkdir(parents=True, exist_ok=True)
        if given[0] == "eval":
            examples = Path(given[given.index("--examples") + 1]).read_text().splitlines()
            model = Path(given[given.index("--model") + 1]).name.rpartition("-seed")[0]
            score = SCORES.get(model, 0.0)
            read = map(json.loads, examples)
            rows = [{"task": it["task"], "score": score, "haystack": it["haystack"]} for it in read]
            (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Commands]:
    module, commands = sys.modules[load_function(f"{SCRIPT}:main").__module__], Commands()
    monkeypatch.setattr(module, "python", commands)
    return module, commands


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    words = ("--out", str(out), "--seeds", "2", "--count", "1", "--lengths", *LENGTHS)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    module.main()


def trained(commands: Commands) -> list[str]:
    """The readers that were made, in order."""
    return [Path(it[it.index("--out") + 1]).name for it in commands.called if it[:2] == ("train", "export")]


def test_every_reader_is_trained_from_its_seeds_warm_start_and_reads_every_length(
    commands: tuple[ModuleType, Commands],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, called = commands
    run(module, monkeypatch, tmp_path)
    assert "essays: using the small sample" in capsys.readouterr().err
    names = ("warm-start", "reinforcement", "credit-to-the-answer-alone", "overwrite")
    made = trained(called)
    assert sorted(made) == sorted(f"{name}-seed{seed}" for name in names for seed in range(2))
    for seed in range(2):
        of_seed = [it for it in made if it.endswith(f"seed{seed}")]
        assert of_seed[0] == f"warm-start-seed{seed}"
        copied, start = (tmp_path / "readers" / f"{name}-seed{seed}" for name in ("copied", "warm-start"))
        copies = [it for it in called.called if it[0].endswith("copying.py") and str(copied) in it]
        assert [it[it.index("--seed") + 1] for it in copies] == [str(seed)]
        runs = [it for it in called.called if it[0] == "train" and f"seed={seed}" in it]
        assert [f"policy.model={copied}" in it for it in runs] == [True, False, False, False]
        assert [f"policy.model={start}" in it for it in runs] == [False, True, True, True]
    told = json.loads((tmp_path / "figure.json").read_text())
    expected = {
        "reinforcement": 100.0,
        "credit to the answer alone": 0.0,
        "warm start": 50.0,
        "overwrite": 25.0,
        "four passages by BM25, read as gated": 100.0,
        "the document's ends, read as gated": 100.0,
    }
    for name, score in expected.items():
        assert {size: of["score"] for size, of in told[name].items()} == dict.fromkeys(LENGTHS, score)
        assert {of["examples"] for of in told[name].values()} == {8}
    assert told["overwrite, vt"]["2048"]["examples"] == 2
    table = (tmp_path / "figure.md").read_text()
    assert "| warm start | 50 [" in table and f"Haystack: {told['haystacks'][0]}" in table
    assert len(told["haystacks"]) == 1 and told["haystacks"][0].startswith("sample of essays, sha256 ")


def test_a_second_start_trains_nothing_again(
    commands: tuple[ModuleType, Commands], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, called = commands
    called.fails_at = "overwrite-seed1"
    with pytest.raises(SystemExit):
        run(module, monkeypatch, tmp_path)
    assert not (tmp_path / "figure.json").exists()
    first = set(trained(called))
    called.called.clear()
    called.fails_at = ""
    run(module, monkeypatch, tmp_path)
    assert "overwrite-seed1" in trained(called) and not first & set(trained(called))
