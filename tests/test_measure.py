"""`benchmarks/measure.py`: rows in files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark

measure = load_benchmark("measure")
ROWS: list[dict[str, Any]] = [{"answer": "one\u2028line, \x85 another"}, {"answer": "näher", "score": 0.5}]


def test_rows_are_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert measure.load_rows(path, missing_ok=True) == []
    for count, row in enumerate(ROWS, 1):
        measure.append_row(path, row)
        assert measure.load_rows(path, missing_ok=True) == ROWS[:count]
    assert "näher" in path.read_text("utf-8")
    with pytest.raises(FileNotFoundError):
        measure.load_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_may_be_a_json_list_and_compressed(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(json.dumps(ROWS, indent=indent).encode()))
    assert measure.load_rows(path) == ROWS
    path.write_bytes(gzip.compress(b""))
    assert measure.load_rows(path) == []
