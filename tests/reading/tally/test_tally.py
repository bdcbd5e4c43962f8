"""The workflow tally: a plan, rows that the text states, and an answer that code has counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark
from memagent.concurrency import drain
from memagent.documents.opening import Document, open_document, text_document
from memagent.engines import ScriptedEngine
from memagent.engines.wrappers import Wrapper
from memagent.errors import EngineError, SettingsError
from memagent.reading.api import forecast
from memagent.reading.read import Read
from memagent.reading.tally.plan import Plan, parse_plan, read_plan
from memagent.settings import ReadSettings
from memagent.types import Completion, Conversation, Message, Sampling

QUESTION = "How much was paid to each supplier?"
FIELDS = [{"name": "supplier", "type": "text"}, {"name": "amount", "type": "money"}]
PLAN = {
    "row": "one payment",
    "fields": FIELDS,
    "sql": "SELECT supplier, SUM(amount) FROM rows GROUP BY supplier ORDER BY supplier",
}
LETTERS = """\
# Letter 1

We have sent 1,240.50 EUR to Nordholz GmbH today.

# Letter 2

The invoice of Baker & Sons came to £980, and it was paid.

# Letter 3

The parking lot will be closed next week.

# Letter 4

NORDHOLZ GMBH billed us 310 euros for two doors. We paid at once.
"""
STATED = {
    "1,240.50": {"supplier": "Nordholz GmbH", "amount": "1240.5"},
    "£980": {"supplier": "Baker & Sons", "amount": "£980"},
    "310 euros": {"supplier": "Nordholz GmbH", "amount": "310 euros"},
}

Reply = Callable[[str], str]


def replies(rows: Reply | None = None, plan: Any = PLAN) -> Callable[[tuple[Message, ...]], str]:
    """What a model replies: the plan, that a passage states a row, or the rows of a chunk."""

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if prompt.rstrip().endswith("The JSON object:"):
            return plan if isinstance(plan, str) else json.dumps(plan)
        if prompt.rstrip().endswith("Yes or No."):
            return "Yes"
        if rows:
            return rows(prompt)
        return json.dumps([row for sign, row in STATED.items() if sign in prompt])

    return reply


def tally(reply: Any, document: str | Document = LETTERS, **values: Any) -> tuple[Read, list[Conversation]]:
    """A read that has ended, and its conversations."""
    engine = reply if hasattr(reply, "complete") else ScriptedEngine(reply, calls=3)
    document = text_document(document) if isinstance(document, str) else document
    trace = {name: values.pop(name) for name in ("trace", "resume") if name in values}
    settings = ReadSettings(workflow="tally", **{"chunk_tokens": 40} | values)
    read = Read(QUESTION, document, engine, settings, **trace)

    async def run() -> list[Conversation]:
        return [conversation async for conversation in read]

    return read, asyncio.run(run())


def table(read: Read) -> Mapping[str, Any]:
    assert read.result.table is not None
    return read.result.table


def results(read: Read) -> dict[str, Any]:
    return {result["currency"]: [tuple(row) for row in result["rows"]] for result in table(read)["results"]}


def test_code_counts_what_a_model_has_found_and_never_adds_currencies() -> None:
    read, _ = tally(replies())
    assert results(read) == {"EUR": [("Nordholz GmbH", 1550.5)], "GBP": [("Baker & Sons", 980.0)]}
    assert read.answer.startswith(
        "In EUR: Nordholz GmbH: 1550.5\nIn GBP: Baker & Sons: 980\n\nCounted from 3 rows"
    )
    assert read.has_answer and read.progress.spent.calls == len(read.engine.prompts), "the answer is no call"


def test_every_row_has_its_place_and_the_words_of_the_text() -> None:
    read, _ = tally(replies())
    for row in table(read)["rows"]:
        source = row["source"]
        assert LETTERS[source["start"] : source["end"]] == source["excerpt"]
        assert row["values"]["supplier"].casefold() in source["excerpt"].casefold()


def test_an_answer_that_was_counted_has_its_places_in_the_table_alone() -> None:
    read, _ = tally(replies(), cite=True)
    assert read.result.statements == () and table(read)["rows"][0]["source"]["file"]


def test_rows_that_the_text_does_not_state_are_refused() -> None:
    forged = [
        {"supplier": "Nordholz GmbH", "amount": "999,999 EUR"},
        {"supplier": "Evil Corp", "amount": "310 euros"},
        {"supplier": "Baker & Sons", "amount": "310 euros"},  # of another letter
        {"supplier": "Nordholz GmbH", "amount": "1,240.50 USD"},
        {"supplier": "null", "amount": None},
        {"other": "field"},
    ]
    read, _ = tally(replies(lambda prompt: json.dumps(forged)), chunk_tokens=400)
    assert not read.has_answer and table(read)["coverage"]["refused"] == 4
    assert "No row was found" in read.answer and "4 rows refused" in read.answer


def test_half_of_the_fields_is_too_little_for_a_row() -> None:
    more = [{"name": "day", "type": "date"}, {"name": "item", "type": "text"}]
    half = {"supplier": "Bo", "amount": "5 EUR"}
    reply = json.dumps([half, {"supplier": "Ann", "amount": "6 EUR", "day": "3 May 2024"}])
    text = "# 1\n\nBo got 5 EUR.\n\n# 2\n\nOn 3 May 2024 Ann got 6 EUR. Nobody knows for what."
    read, _ = tally(replies(lambda prompt: reply, PLAN | {"fields": FIELDS + more}), text)
    assert table(read)["refused"] == [half | {"file": table(read)["refused"][0]["file"]}]
    assert [row["values"]["day"] for row in table(read)["rows"]] == ["2024-05-03"]


def test_equal_rows_stand_at_different_places_and_a_repeated_one_counts_once() -> None:
    text = "# One\n\nAnn paid 5 EUR to Bo.\n\n# Two\n\nLater Bo got 5 EUR again.\n"
    row = {"supplier": "Bo", "amount": "5 EUR"}
    read, _ = tally(replies(lambda prompt: json.dumps([row] * 4)), text, chunk_tokens=400)
    assert table(read)["coverage"]["rows"] == 2 and results(read) == {"EUR": [("Bo", 10.0)]}


def test_a_reply_that_is_no_use_is_a_failed_chunk_and_the_answer_says_so() -> None:
    def rows(prompt: str) -> str:
        return (
            "I am sorry." if "parking" in prompt else json.dumps([STATED["£980"]] if "£980" in prompt else [])
        )

    read, _ = tally(replies(rows), chunk_tokens=30)
    assert table(read)["coverage"]["failed"] == 1
    assert "1 chunk could not be read, so rows may be missing" in read.answer


def test_a_plan_that_cannot_be_used_is_mended_once_then_shown() -> None:
    plans = iter(["no JSON", json.dumps(PLAN)])

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        return next(plans) if "<plan" in prompt or "The JSON object:" in prompt else "[]"

    tally(reply)
    wrong = {**PLAN, "sql": "SELECT price FROM rows"}
    with pytest.raises(SettingsError, match=r"no such column: price.*It wrote:\n\{"):
        tally(lambda _: json.dumps(wrong))


def test_equal_lines_of_an_answer_are_told_once_with_their_number() -> None:
    read, _ = tally(replies(plan={**PLAN, "sql": "SELECT supplier FROM rows"}))
    assert read.answer.startswith("Nordholz GmbH (2 times)\nBaker & Sons\n\n")


def test_a_document_has_no_say_in_the_plan() -> None:
    read, _ = tally(replies())
    [plan] = [prompt for (prompt,) in read.engine.prompts if "SQL" in prompt.content]
    assert QUESTION in plan.content and "Nordholz" not in plan.content


def test_a_field_for_the_row_itself_or_its_id_is_left_out_unless_it_is_asked_for() -> None:
    fields = [{"name": name} for name in ("invoice", "invoice_id", "supplier")]

    def names(sql: str, row: str = "one invoice") -> list[str]:
        plan = parse_plan(json.dumps({"row": row, "fields": fields, "sql": sql}))
        return [field.name for field in plan.fields]

    assert names("SELECT COUNT(*) FROM rows") == ["supplier"]
    assert names("SELECT COUNT(DISTINCT invoice_id) FROM rows") == ["invoice_id", "supplier"]
    assert names("SELECT COUNT(*) FROM rows", "one payment of an invoice") == ["invoice", "supplier"]
    del fields[2:]
    assert names("SELECT COUNT(*) FROM rows") == ["invoice", "invoice_id"], "a table needs a field"


def test_a_day_that_only_the_select_names_becomes_a_field() -> None:
    proposed = {
        "row": "one sale",
        "fields": [{"name": "item"}],
        "sql": "SELECT item FROM rows WHERE day > '2025'",
    }
    assert [(field.name, field.type) for field in parse_plan(json.dumps(proposed)).fields] == [
        ("item", "text"),
        ("day", "date"),
    ]


def test_a_plan_of_ones_own_is_not_asked_for() -> None:
    plan = Plan(**PLAN).to_toml()
    assert read_plan(plan) == Plan(**PLAN)
    read, conversations = tally(replies(plan="none"), plan=plan)
    assert results(read)["GBP"] == [("Baker & Sons", 980.0)] and conversations[0].chunk_index == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("row =", "not valid TOML"),
        ('row = "a"\nsql = "SELECT 1 FROM rows"\nfields = []', "fields"),
        ('row = "a"\nsql = "DROP TABLE rows"\nfields = [{name = "a"}]', "SELECT"),
        ('row = "a"\nsql = "SELECT a FROM rows"\nfields = [{name = "a b"}]', "must be a word"),
        ('row = "a"\nsql = "SELECT a FROM rows"\nfields = [{name = "a", type = "colour"}]', "type"),
        ('row = "a"\nsql = "SELECT a FROM rows"\nfields = [{name = "a"}, {name = "a"}]', "twice"),
    ],
)
def test_a_bad_plan_is_an_error_that_says_what_is_wrong(text: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        read_plan(text)


def test_values_that_do_not_parse_are_kept_and_left_out_of_sums() -> None:
    text = "Bo got about a hundred euros.\n\nBo got 7 EUR.\n"
    rows = [{"supplier": "Bo", "amount": "a hundred euros"}, {"supplier": "Bo", "amount": "7 EUR"}]
    read, _ = tally(replies(lambda prompt: json.dumps(rows)), text, chunk_tokens=400)
    assert "1 value not understood, so left out" in read.answer
    assert [row["values"]["amount"] for row in table(read)["rows"]] == ["a hundred euros", 7]
    assert [row["unparsed"] for row in table(read)["rows"]] == [["amount"], []]


def test_names_written_differently_are_one_and_told_unless_they_are_to_be_exact() -> None:
    rows = [{"supplier": "Müller GmbH", "amount": "5 EUR"}, {"supplier": "Mueller GmbH", "amount": "6 EUR"}]
    text = "We paid 5 EUR to Müller GmbH.\n\nWe paid 6 EUR to Mueller GmbH.\n"
    read, _ = tally(replies(lambda prompt: json.dumps(rows)), text, chunk_tokens=400)
    assert len(results(read)["EUR"]) == 1 and "Taken for the same: " in read.answer
    exact, _ = tally(replies(lambda prompt: json.dumps(rows)), text, chunk_tokens=400, exact_names=True)
    assert len(results(exact)["EUR"]) == 2 and "Taken for the same" not in exact.answer


def test_a_record_is_not_cut_in_two(tmp_path: Path) -> None:
    parts = [
        f"# Letter {n}\n\nDear all,\n\nthank you.\n\n{'Well. ' * (n % 9)}\n\nBo got {n + 100} EUR."
        for n in range(40)
    ]
    counts = Counter[str]()

    def rows(prompt: str) -> str:
        whole = [n for n in range(40) if parts[n] in prompt]
        counts.update(map(str, whole))
        return json.dumps([{"supplier": "Bo", "amount": f"{n + 100} EUR"} for n in whole])

    read, _ = tally(replies(rows), "\n\n".join(parts), chunk_tokens=50)
    assert results(read) == {"EUR": [("Bo", float(sum(range(100, 140))))]} and set(counts.values()) == {1}


def test_sentences_without_a_border_are_read_twice_and_counted_once() -> None:
    parts = [f"Bo got {n + 100} EUR for work that took {n} days." for n in range(60)]

    def rows(prompt: str) -> str:
        return json.dumps(
            [{"supplier": "Bo", "amount": f"{n + 100} EUR"} for n in range(60) if parts[n] in prompt]
        )

    read, _ = tally(replies(rows), " ".join(parts), chunk_tokens=60)
    assert results(read) == {"EUR": [("Bo", float(sum(range(100, 160))))]}
    assert table(read)["coverage"]["merged"] > 0


CSV = "Company,Sum,Note\n" + "".join(f"Firm {n % 3},{n}.50 EUR,x\n" for n in range(200)) + "Total,9999 EUR,\n"
MARKDOWN = "| Company | Sum |\n| --- | --- |\n" + "".join(
    f"| Firm {n % 3} | {n}.50 EUR |\n" for n in range(200)
)
HTML = f"<p>Report.</p><table><tr><th>Company</th><th>Sum</th></tr>{''.join(f'<tr><td>Firm {n % 3}</td><td>{n}.50 EUR</td></tr>' for n in range(200))}</table>"  # noqa: E501


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.md", MARKDOWN), ("a.html", HTML)])
def test_tables_are_read_by_code_and_their_columns_asked_for_once(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    prompts = list[str]()

    def rows(prompt: str) -> str:
        prompts.append(prompt)
        return (
            json.dumps({"supplier": "Company", "amount": "Sum"})
            if "first line of the table" in prompt
            else "[]"
        )

    read, _ = tally(replies(rows), open_document(tmp_path / name), chunk_tokens=60)
    assert sum("first line of the table" in prompt for prompt in prompts) == 1 and len(prompts) <= 2
    assert {row[0]: row[1] for row in results(read)["EUR"]} == {
        f"Firm {firm}": sum(n + 0.5 for n in range(200) if n % 3 == firm) for firm in range(3)
    }
    assert table(read)["coverage"]["from_tables"] == 200


@pytest.mark.parametrize(("name", "odd"), [('"Firm\n\n{}"', "pipe"), ("Firm {}", '5" pipe')])
def test_a_row_with_a_line_break_or_a_lone_quote_is_counted_once(name: str, odd: str, tmp_path: Path) -> None:
    notes = {n: odd if n == 30 else "Red. Blue. Green. Yes. No." for n in range(60)}
    rows = "".join(f"{name.format(n)},{n} EUR,{note}\n" for n, note in notes.items())
    (tmp_path / "a.csv").write_text(f"Supplier,Amount,Note\n{rows}", "utf-8")
    read, _ = tally(replies(), open_document(tmp_path / "a.csv"))
    assert table(read)["coverage"]["rows"] == 60
    assert results(read) == {"EUR": [(f"Firm {n}", float(n)) for n in sorted(notes, key=str)]}


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        ('{"supplier": "nonsense"}', True), ("I am sorry.", True),
        ('{"supplier": null, "amount": "None"}', False), ('{"amount": "sum"}', False),
    ],
)  # fmt: skip
def test_a_table_whose_columns_nobody_knows_is_not_dropped_silently(
    reply: str, failed: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("company;sum\n" + "Bo;5 EUR\n" * 60, "utf-8")
    read, _ = tally(replies(lambda _prompt: reply), open_document(tmp_path / "a.csv"))
    coverage = table(read)["coverage"]
    assert coverage["failed"] == (coverage["chunks"] if failed else 0)
    assert ("could not be read" in read.answer) == failed


def test_columns_with_the_names_of_the_fields_need_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Supplier;Amount\nBo;5,50 €\nAnn;7 €\n", "utf-8")
    read, conversations = tally(
        replies(rows=lambda prompt: pytest.fail(prompt)), open_document(tmp_path / "a.csv")
    )
    assert results(read) == {"EUR": [("Ann", 7.0), ("Bo", 5.5)]} and len(conversations) == 2


@pytest.mark.parametrize("corpus", ["invoices", "minutes", "log"])
def test_a_perfect_model_has_all_questions_right(corpus: str) -> None:
    bench = load_benchmark("tally_corpora")
    text, records = bench.make(bench.CORPORA[corpus], 6000, 40)
    questions = bench.questions(bench.CORPORA[corpus], records)
    judge = load_benchmark("tally").is_exact
    for question in questions:
        engine = ScriptedEngine(bench.PerfectReplies(bench.CORPORA[corpus], records, questions), calls=4)
        read = Read(
            question.text, text_document(text), engine, ReadSettings(workflow="tally", chunk_tokens=400)
        )
        asyncio.run(drain(aiter(read)))
        assert judge(read.answer, question.expected), (question, read.answer)
        assert table(read)["coverage"] | {"chunks": 0, "merged": 0} == {
            "chunks": 0, "passed_over": 0, "failed": 0, "rows": 40, "refused": 0, "merged": 0, "unparsed": 0,
            "from_tables": 0,
        }  # fmt: skip


class Failing(Wrapper):
    """An engine that stops working after some calls; `paid` counts the prompts that it has answered."""

    def __init__(self, calls: int, paid: Counter[str]) -> None:
        super().__init__(ScriptedEngine(replies(), calls=3))
        self._left, self._paid = calls, paid

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        if not self._left:
            raise EngineError("killed")
        self._left -= 1
        self._paid[messages[-1].content] += 1
        return await super().complete(messages, sampling)


def test_stopped_twenty_times_it_has_the_same_table_and_pays_nothing_twice(tmp_path: Path) -> None:
    document, prompt_counts = "\n".join(LETTERS for _ in range(16)), Counter[str]()
    whole, _ = tally(replies(), document)
    for _ in range(20):
        with pytest.raises(EngineError):
            tally(Failing(1, prompt_counts), document, trace=tmp_path / "a.jsonl", resume=True)
    read, _ = tally(Failing(1000, prompt_counts), document, trace=tmp_path / "a.jsonl", resume=True)
    assert read.result.table == whole.result.table and read.answer == whole.answer
    assert sum(prompt_counts.values()) == whole.progress.spent.calls and read.progress.recalled >= 20
    again, _ = tally(Failing(0, prompt_counts), document, trace=tmp_path / "a.jsonl", resume=True)
    assert again.result.table == whole.result.table


def test_more_calls_side_by_side_continue_the_same_journal(tmp_path: Path) -> None:
    trace = {"trace": tmp_path / "a.jsonl", "resume": True}
    read, _ = tally(ScriptedEngine(replies(), calls=1), **trace)
    again, _ = tally(ScriptedEngine(replies(), calls=3), **trace)
    assert again.answer == read.answer and again.progress.spent.calls == again.progress.recalled


def test_a_screened_read_says_how_much_it_passed_over() -> None:
    text = LETTERS + "\n".join(f"# Letter {n}\n\nNothing to see, {'really ' * 20}" for n in range(5, 15))
    read, _ = tally(replies(), text, screen=True)
    assert table(read)["coverage"]["passed_over"] > 0 and "passed over" in read.answer


def test_a_forecast_needs_no_plan() -> None:
    engine = ScriptedEngine([])
    progress = asyncio.run(
        forecast(
            QUESTION, text_document(LETTERS), engine.model, ReadSettings(workflow="tally", chunk_tokens=40)
        )
    )
    read, _ = tally(replies())
    assert progress.spent.calls >= read.progress.spent.calls and not engine.prompts
