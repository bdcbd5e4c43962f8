"""Passages that look like rows are judged, and asked about again where a small model overlooked one."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memagent.documents.opening import text_document
from memagent.engines import ScriptedEngine
from memagent.engines.wrappers import Wrapper
from memagent.reading.api import forecast
from memagent.reading.read import Read
from memagent.reading.tally.plan import Plan
from memagent.reading.tally.values import figures_in
from memagent.settings import ReadSettings
from memagent.types import Completion, Engine, Message, Sampling

PLAN = Plan.model_validate(
    {
        "row": "one payment",
        "fields": [
            {"name": "supplier"},
            {"name": "amount", "type": "money"},
            {"name": "day", "type": "date"},
        ],
        "sql": "SELECT SUM(amount) FROM rows",
    }
)
TEXT = """\
# Letter 1

Nordholz GmbH got 1240.50 EUR from us on 3 May 2025.

# Letter 2

Nobody knows whose goose it was.

# Letter 3

On 4 May 2025 it rained.

# Letter 4

Baker & Sons offer us a roof for 900 EUR, until 5 May 2025.
"""
NORDHOLZ = {"supplier": "Nordholz GmbH", "amount": "1240.50 EUR", "day": "3 May 2025"}
BAKER = {"supplier": "Baker & Sons", "amount": "900 EUR", "day": "5 May 2025"}

Rows = Sequence[Mapping[str, Any]]


class Reader:
    """Replies to the prompts of a tally, and keeps those that ask about a passage."""

    def __init__(self, chunk: Rows, verdicts: Mapping[str, str], passages: Mapping[str, Rows]) -> None:
        self.judged, self.asked = list[str](), list[str]()
        self._chunk, self._verdicts, self._passages = chunk, verdicts, passages

    def __call__(self, messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if prompt.rstrip().endswith("Yes or No."):
            self.judged.append(prompt)
            return next((word for sign, word in self._verdicts.items() if sign in prompt), "Yes")
        if "The passage states" in prompt:
            self.asked.append(prompt)
            return json.dumps(next((rows for sign, rows in self._passages.items() if sign in prompt), []))
        return json.dumps(self._chunk)


class Likely(Wrapper):
    """An engine that tells how likely a Yes is."""

    def __init__(self, engine: Engine, yes: float) -> None:
        super().__init__(engine)
        self._alternatives = {"Yes": math.log(yes), "No": math.log(1 - yes)}

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        completion = await super().complete(messages, sampling)
        return replace(completion, alternatives=self._alternatives) if sampling.verdict else completion


def tally(reader: Reader | Engine, text: str = TEXT, plan: Plan = PLAN, **values: Any) -> Mapping[str, Any]:
    """The table of a read in one chunk."""
    settings = ReadSettings(workflow="tally", plan=plan.to_toml(), chunk_tokens=1000, **values)
    engine = ScriptedEngine(reader) if isinstance(reader, Reader) else reader
    read = Read("How much was paid?", text_document(text), engine, settings)

    async def run() -> Mapping[str, Any]:
        async for _ in read:
            pass
        assert read.result.table is not None
        return read.result.table

    return asyncio.run(run())


def values(table: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["values"]["supplier"], row["values"]["amount"]) for row in table["rows"]]


def test_what_looks_like_a_row_and_is_in_none_is_asked_about_again() -> None:
    reader = Reader([], {"roof": "No"}, {"1240.50": [NORDHOLZ], "roof": [BAKER]})
    table = tally(reader)
    assert values(table) == [("Nordholz GmbH", 1240.5)]
    assert not any(word in prompt for word in ("goose", "rained") for prompt in reader.judged)
    [prompt] = reader.asked
    assert "goose" not in prompt and "The passage states 1240.50 EUR and 3 May 2025." in prompt


def test_a_row_with_all_fields_is_judged_and_not_asked_about_again() -> None:
    reader = Reader([NORDHOLZ, BAKER], {}, {})
    assert len(tally(reader)["rows"]) == 2 and len(reader.judged) == 2 and not reader.asked


def test_a_row_whose_passage_states_something_else_is_refused() -> None:
    table = tally(Reader([NORDHOLZ, BAKER], {"roof": "No"}, {}))
    assert values(table) == [("Nordholz GmbH", 1240.5)]
    assert [row["supplier"] for row in table["refused"]] == ["Baker & Sons"]


def test_yes_has_to_be_twice_as_likely_as_no_where_probabilities_are_told() -> None:
    for yes, count in ((0.6, 0), (0.7, 1)):
        engine = Likely(ScriptedEngine(Reader([NORDHOLZ], {}, {})), yes)
        assert len(tally(engine)["rows"]) == count


def test_a_row_of_two_passages_is_asked_about_again_in_each() -> None:
    text = (
        "Nordholz GmbH got 1240.50 EUR on 3 May 2025.\nBaker & Sons offer a roof for 900 EUR, 5 May 2025.\n"
    )
    joined = {**BAKER, "amount": "1240.50 EUR"}
    reader = Reader([joined], {"roof": "No"}, {"1240.50": [NORDHOLZ]})
    assert values(tally(reader, text)) == [("Nordholz GmbH", 1240.5)]
    reader = Reader([joined], {}, {"1240.50": [NORDHOLZ], "roof": [BAKER]})
    assert values(tally(reader, text)) == [("Nordholz GmbH", 1240.5), ("Baker & Sons", 900)]


def test_a_passage_may_have_two_rows_that_were_overlooked() -> None:
    text = "Nordholz GmbH got 10 EUR on 3 May 2025, and 20 EUR on 4 May 2025."
    rows = [{**NORDHOLZ, "amount": "10 EUR"}, {**NORDHOLZ, "amount": "20 EUR", "day": "4 May 2025"}]
    table = tally(Reader([], {}, {"Nordholz": rows}), text)
    assert values(table) == [("Nordholz GmbH", 10), ("Nordholz GmbH", 20)]


def test_values_are_taken_from_one_line_where_it_has_them_all() -> None:
    text = "On 3 May 2025 we paid 900 EUR to Nordholz.\nBaker & Sons got 900 EUR from us on 3 May 2025.\n"
    [row] = tally(Reader([{**BAKER, "day": "3 May 2025"}], {}, {}), text)["rows"]
    assert row["source"]["excerpt"] == "Baker & Sons got 900 EUR from us on 3 May 2025."


def test_a_row_that_lacks_a_field_is_replaced_by_a_whole_one() -> None:
    reader = Reader([{**NORDHOLZ, "supplier": None}, BAKER], {}, {"1240.50": [NORDHOLZ]})
    table = tally(reader)
    assert values(table) == [("Nordholz GmbH", 1240.5), ("Baker & Sons", 900)]


def test_a_row_that_goes_beyond_its_passage_stays_if_the_passage_alone_says_less() -> None:
    text = "Nordholz GmbH has sent us lamps.\n\nIt got 1240.50 EUR for them on 3 May 2025."
    reader = Reader([NORDHOLZ], {}, {"1240.50": [{**NORDHOLZ, "supplier": None}]})
    assert values(tally(reader, text)) == [("Nordholz GmbH", 1240.5)] and len(reader.asked) == 1


def test_what_was_refused_is_not_told_if_a_row_has_its_values() -> None:
    forged = {**NORDHOLZ, "supplier": "Sherlock Holmes"}
    assert tally(Reader([forged, BAKER], {}, {"1240.50": [NORDHOLZ]}))["refused"] == []
    [refused] = tally(Reader([forged, BAKER], {}, {"1240.50": [forged]}))["refused"]
    assert refused["supplier"] == "Sherlock Holmes", "told once"


def test_a_plan_of_words_alone_has_no_passages_that_look_like_rows() -> None:
    plan = PLAN.model_copy(update={"fields": PLAN.fields[:1], "sql": "SELECT COUNT(*) FROM rows"})
    reader = Reader([], {}, {})
    assert tally(reader, plan=plan)["rows"] == [] and not reader.judged


def test_a_second_look_can_be_left_out() -> None:
    reader = Reader([], {}, {"1240.50": [NORDHOLZ]})
    assert tally(reader, second_look=False)["rows"] == [] and not reader.judged


def test_a_forecast_counts_what_may_be_overlooked() -> None:
    engine = ScriptedEngine(Reader([], {}, {}))
    document, settings = text_document(TEXT), ReadSettings(workflow="tally", chunk_tokens=1000)
    for plan, calls in ((PLAN.to_toml(), 1 + 2 * 2), ("", 1 + 1 + 2 * 3)):
        own = settings.replace(plan=plan)
        progress = asyncio.run(forecast("How much was paid?", document, engine.model, own))
        assert progress.spent.calls >= calls


def test_figures_are_told_from_each_other() -> None:
    text = "On 3 May 2025 and until 2025-06-04 Oven 2 took EUR 1205.00 and 40 minutes (no. 2025-0187)."

    def words(kind: Any) -> list[str]:
        return [text[start:end] for start, end in figures_in(kind, text)]

    assert words("date") == ["3 May 2025", "2025-06-04"]
    assert words("money") == ["EUR 1205.00"]
    assert words("number") == ["2", "EUR 1205.00", "40", "2025", "0187"]
