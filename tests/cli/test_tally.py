"""`memagent tally`: the plan on stderr, the answer on stdout, the table in a file."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from memagent.cli import main
from server import Server

LETTERS = "# Letter 1\n\nWe paid 12.50 EUR to Bo.\n\n# Letter 2\n\n=Ann got 7 EUR from us.\n"
PLAN = {
    "row": "one payment",
    "fields": [{"name": "who", "type": "text"}, {"name": "amount", "type": "money"}],
    "sql": "SELECT SUM(amount) FROM rows",
}


def reply(messages: list[dict[str, Any]]) -> str:
    prompt = messages[-1]["content"]
    if prompt.rstrip().endswith("The JSON object:"):
        return json.dumps(PLAN)
    rows = [
        {"who": "Bo", "amount": "12.50"},
        {"who": "Ann", "amount": "7 EUR"},
        {"who": "Bo", "amount": "99"},
    ]
    return json.dumps(rows if "Bo" in prompt else [])


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.md").write_text(LETTERS, "utf-8")
    with Server(reply) as server:
        yield ["How much was paid in all?", "letters.md", "--base-url", server.base_url]


def test_the_answer_its_plan_and_its_table(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tally", *arguments, "--out", "rows.csv"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("In EUR: 19.5\n\nCounted from 2 rows") and "1 row refused" in out
    assert 'sql = "SELECT SUM(amount) FROM rows"' in err and "rows.csv: 2 rows" in err
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [(row["who"], row["amount"], row["amount_currency"]) for row in rows] == [
        ("Bo", "12.5", "EUR"), ("Ann", "7", "EUR")
    ]  # fmt: skip
    assert rows[0]["quote"] == "We paid 12.50 EUR to Bo." and rows[1]["quote"].startswith("'="), "no formula"


def test_a_dry_run_prints_a_plan_that_schema_takes(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tally", *arguments, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "at most" in err
    (tmp_path / "plan.toml").write_text(out.replace("SUM(amount)", "COUNT(*)"), "utf-8")
    assert main(["tally", *arguments, "--schema", "plan.toml", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["answer"].startswith("2\n") and len(result["table"]["rows"]) == 2


def test_its_journal_is_shown_and_resumed(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tally", *arguments, "--trace", "a.jsonl"]) == 0
    answer = capsys.readouterr().out
    assert main(["show", "a.jsonl"]) == 0
    assert "SUM(amount)" in (output := capsys.readouterr().out) and "In EUR: 19.5" in output
    assert main(["view", "a.jsonl", "--out", "page.html"]) == 0
    assert (tmp_path / "page.html").exists()
    capsys.readouterr()
    assert main(["tally", *arguments, "--trace", "a.jsonl", "--resume", "--max-calls", "1"]) == 0
    assert capsys.readouterr().out == answer, "and no call is made"


def test_no_row_ends_with_3(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters.md").write_text("Nothing was paid, to nobody.\n", "utf-8")
    assert main(["tally", *arguments]) == 3
    assert capsys.readouterr().out.startswith("No row was found.\n\nCounted from 0 rows, in 1 of 1 chunk")


def test_a_table_of_another_kind_is_refused_before_anything_is_read(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tally", *arguments, "--out", "rows.xlsx"]) == 2
    assert "must end in .csv or .jsonl" in capsys.readouterr().err


def test_ask_says_when_a_question_asks_for_a_count(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    question, *others = arguments
    main(["ask", "How many letters are there?", *others, "--workflow", "full"])
    assert "memagent tally has code count it" in capsys.readouterr().err
    main(["ask", "Who wrote letter 2?", *others, "--workflow", "full"])
    assert "memagent tally" not in capsys.readouterr().err
    main(["ask", question, *others, "--workflow", "tally"])
    assert "memagent tally has" not in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from memagent.reading.tally import values

    monkeypatch.setitem(sys.modules, "price_parser", None)
    values.load.cache_clear()
    assert main(["tally", *arguments]) == 2
    assert "tally needs price_parser: run python -m pip install" in capsys.readouterr().err
