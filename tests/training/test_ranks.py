"""Two processes on a CPU, each with its share of the sequences, have the gradient of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from memagent.errors import SettingsError  # noqa: E402
from memagent.training.ranks import Ranks  # noqa: E402
from training.one_rank import SEQUENCES, gradient  # noqa: E402

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
SCRIPT = Path(__file__).with_name("one_rank.py")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run(
        [sys.executable, *LAUNCH, SCRIPT, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=500,
    )
    return [torch.load(folder / f"rank-{number}.pt") for number in range(2)]


def test_both_took_part(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert record["count"] == 2
        assert record["gathered"] == ["rank 0", "rank 1"]
        assert record["total"] == 3


def test_half_the_sequences_each_give_the_gradient_of_one_process(records: list[dict[str, Any]]) -> None:
    wanted = gradient(Ranks(), SEQUENCES)
    for record in records:
        assert torch.allclose(record["halves"], wanted, atol=1e-6, rtol=0)


def test_a_process_without_sequences_has_the_gradient_of_the_others(records: list[dict[str, Any]]) -> None:
    wanted = gradient(Ranks(), SEQUENCES)
    for record in records:
        assert torch.allclose(record["lopsided"], wanted, atol=1e-6, rtol=0)


def test_half_the_sequences_alone_have_another_gradient() -> None:
    half = gradient(Ranks(), SEQUENCES[::2])
    assert not torch.allclose(half, gradient(Ranks(), SEQUENCES), atol=1e-3, rtol=0)


def test_alone_nothing_is_shared() -> None:
    ranks = Ranks()
    assert (ranks.number, ranks.count, ranks.main) == (0, 1, True)
    assert ranks.share([1, 2, 3]) == ranks.gather([1, 2, 3]) == [1, 2, 3]


def test_processes_that_are_not_there_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(SettingsError, match="WORLD_SIZE is 2, but the training processes found are 1"):
        Ranks()
