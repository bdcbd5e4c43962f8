"""The data set: rows that verl can carry, and the examples that they name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import collate_fn

from memagent.errors import SettingsError
from memagent.tasks import load_examples
from memagent.training.verl.agent_loop import ExampleDataset, read_example
from verl_plugin.material import FILLER, example


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def test_verl_makes_it_and_its_batches_name_the_examples(compose: Callable[..., Any], examples: Path) -> None:
    config = compose()
    rows = create_rl_dataset(config.data.train_files, config.data, None, None, max_samples=-1)
    assert isinstance(rows, ExampleDataset)
    batch = tensordict_utils.get_tensordict(next(iter(DataLoader(rows, batch_size=2, collate_fn=collate_fn))))
    references = [batch["example"][at] for at in range(2)]
    assert [read_example(reference) for reference in references] == list(load_examples(examples))
    assert FILLER not in str([batch[at].to_dict() for at in range(2)])
    assert list(batch["index"]) == [0, 1] and list(batch["data_source"]) == ["codes", "codes"]


def test_blank_lines_files_and_letters_of_several_bytes(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", example(1, "één", 1))
    (tmp_path / "b.jsonl").write_text(
        "\n" + Path(write(tmp_path / "c.jsonl", example(2, "二", 1), example(3, "x", 1))).read_text("utf-8"),
        "utf-8",
    )
    rows = ExampleDataset([first, str(tmp_path / "b.jsonl")])
    assert [read_example(rows[at]["example"]).answers[0] for at in range(3)] == ["één", "二", "x"]
    assert len(ExampleDataset([first, str(tmp_path / "b.jsonl")], max_samples=2)) == 2


def test_files_that_cannot_be_used_end_the_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="row 2: problem"):
        ExampleDataset(write(tmp_path / "bad.jsonl", example(1, "1", 1), {"document": "d", "answers": ["a"]}))
    with pytest.raises(SettingsError, match="no examples"):
        ExampleDataset(write(tmp_path / "empty.jsonl"))
    with pytest.raises(SettingsError, match="cannot be read"):
        ExampleDataset(str(tmp_path / "none.jsonl"))
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(SettingsError, match="unpack it"):
        ExampleDataset(str(packed))


def test_a_file_that_changes_under_the_run_is_noticed(tmp_path: Path) -> None:
    reference = ExampleDataset(write(tmp_path / "a.jsonl", example(1, "1", 1)))[0]["example"]
    write(tmp_path / "a.jsonl", example(2, "1", 1))
    with pytest.raises(SettingsError, match="changed"):
        read_example(reference)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SettingsError, match="on this machine"):
        read_example(reference)
