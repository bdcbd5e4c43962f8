"""`benchmarks/real_models_report.py`: its tables of the shipped records."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_modules import load_benchmark

report = load_benchmark("real_models_report")
RESULTS = Path(__file__).parent.parent / "docs" / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("real_models*.jsonl")), ids=lambda file: file.stem)
def test_each_reader_of_a_record_has_a_line(file: Path) -> None:
    rows = report.load_rows(file)
    readers = {row["reader"] for row in rows}
    assert set(report.by_reader(rows)) == readers
    assert len(report.scores_table(rows).splitlines()) == 2 + len(readers)
