"""What values mean, and where a text has them."""

from __future__ import annotations

import sys

import pytest

from memagent.errors import SettingsError
from memagent.reading.tally import values
from memagent.reading.tally.names import same_names, whole_names
from memagent.reading.tally.plan import Kind
from memagent.reading.tally.values import Meaning, date_order, find_all, parse


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("1,240.50 EUR", 1240.5, "EUR"), ("£980", 980, "GBP"), ("2.450,00 EUR", 2450, "EUR"),
        ("310 euros", 310, "EUR"), ("-5.20 $", -5.2, "USD"), ("€1.2 million", 1_200_000, "EUR"),
        ("(1,200)", -1200, None), ("($1,200)", -1200, "USD"), ("(310 euros)", 310, "EUR"),
        ("- 310 euros", 310, "EUR"), ("-310 euros", -310, "EUR"),
        ("12,000 dollars", 12000, "USD"), ("CHF 3", 3, "CHF"), ("THB 3", 3, "THB"), ("A$3", 3, "A$"),
        ("DHL 3", 3, None), ("VAT 3 EUR", 3, "EUR"), ("3k", 3000, None),
        ("forty", None, None), ("between 3 and 5", None, None), ("", None, None),
    ],
)  # fmt: skip
def test_money(text: str, value: float | None, currency: str | None) -> None:
    assert parse("money", text) == Meaning(value, currency)


@pytest.mark.parametrize(
    ("text", "value"), [("12 m", 12), ("5k", 5), ("12 million", 12_000_000), ("3 Mio", 3_000_000)]
)
def test_a_letter_after_a_number_is_its_unit(text: str, value: int) -> None:
    assert parse("number", text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("14 January 2025", "2025-01-14"), ("2025-01-14", "2025-01-14"), ("14.01.2025", "2025-01-14"),
        ("2. März 2025", "2025-03-02"), ("March 2025", "2025-03"), ("3/4/2025", None),
        ("13/4/2025", "2025-04-13"), ("03-04-2025", None), ("13-04-2025", "2025-04-13"), ("3-4-25", None),
        ("2025", None), ("12", None), ("yesterday", None), ("Q1 2025", None), ("3 February", None),
        ("2025-0113", None),
    ],
)  # fmt: skip
def test_dates_that_do_not_say_which_day_are_not_guessed(text: str, value: str | None) -> None:
    assert parse("date", text).value == value


def test_dates_in_figures_follow_the_others_of_their_column() -> None:
    assert parse("date", "3/4/2025", date_order(["13/4/2025", "1/2/2025"])).value == "2025-04-03"
    assert parse("date", "3/4/2025", date_order(["4/13/2025"])).value == "2025-03-04"
    assert parse("date", "03-04-2025", date_order(["13-04-2025"])).value == "2025-04-03"
    assert date_order(["13/4/2025", "4/13/2025"]) == date_order(["1/2/2025"]) == ""


@pytest.mark.parametrize("text", ["On February 6, 2025", "On 2 June 2025"])
def test_a_date_that_could_be_two_is_the_one_that_the_text_has(text: str) -> None:
    assert find_all("date", "02-06-2025", text) == [(3, len(text))]


@pytest.mark.parametrize(("text", "value"), [("yes", 1), ("No", 0), ("TRUE", 1), ("perhaps", None)])
def test_yes_or_no(text: str, value: int | None) -> None:
    assert parse("yes/no", text).value == value


TEXT = (
    "Hamburg, 14 January 2025: 1,240.50 EUR to Nordholz  GmbH, invoice 2025-0113; "
    "EUR 5, 5 apples, Ann's 12.5 kg"
)


@pytest.mark.parametrize(
    ("kind", "value", "matches"),
    [
        ("money", "1240.5 EUR", ["1,240.50 EUR"]), ("money", "1240.50", ["1,240.50 EUR"]),
        ("money", "1240.50 USD", []), ("money", "240.50", []), ("number", "5", ["EUR 5", "5"]),
        ("date", "2025-01-14", ["14 January 2025"]), ("date", "14 january 2025", ["14 January 2025"]),
        ("text", "nordholz gmbh", ["Nordholz  GmbH"]), ("text", "Nordholz", ["Nordholz"]),
        ("text", "Nord", []),
        ("text", "...", []), ("number", "12.5", ["12.5"]), ("number", "2", []),
    ],
)  # fmt: skip
def test_values_are_found_as_values(kind: Kind, value: str, matches: list[str]) -> None:
    assert [TEXT[start:end] for start, end in find_all(kind, value, TEXT)] == matches


@pytest.mark.parametrize(
    ("value", "text", "match"),
    [
        ("310 euros", "We paid the invoice of Bo GmbH (310 euros) at once.", "310 euros"),
        ("310", "Letter 2 (310) is short.", "310"),
        ("310 euros", "- 310 euros to Bo GmbH", "310 euros"),
        ("-310 euros", "Balance: -310 euros", "-310 euros"),
        ("(1,200)", "Result: (1,200)", "(1,200)"),
    ],
)
def test_brackets_and_the_dashes_of_lists_are_no_signs(value: str, text: str, match: str) -> None:
    assert [text[start:end] for start, end in find_all("money", value, text)] == [match]


@pytest.mark.parametrize("text", ["Paid to DHL 45 EUR.", "incl. VAT 45 EUR", "45 EUR for the ISO 9001"])
def test_capitals_beside_an_amount_are_no_currency(text: str) -> None:
    assert [text[start:end] for start, end in find_all("money", "45 EUR", text)] == ["45 EUR"]


def test_a_number_is_found_before_its_unit() -> None:
    assert find_all("number", "12", "a rope of 12 m was sold") == [(10, 12)]
    assert find_all("money", "12 m EUR", "a house of 12 m EUR was sold") == [(11, 19)]


def test_the_same_name_written_differently_is_one() -> None:
    names = [
        "Müller GmbH",
        "Müller GmbH",
        "MUELLER GMBH",
        "Muller GmbH",
        "Plant 11",
        "Plant 12",
        "Miller GmbH",
    ]
    assert same_names(names) == {"MUELLER GMBH": "Müller GmbH", "Muller GmbH": "Müller GmbH"}


def test_a_name_is_whole_where_another_row_has_it_whole_and_the_quote_says_so() -> None:
    rows = [
        *[("Saw 6", "Saw 6 stood still.")] * 4,
        ("Saw", "On 3 March saw 6 was cleaned."),
        ("6", "Saw 6 ran out of steel."),
        ("Saw", "The saw was sold, and Saw 6 stayed."),  # one of them is another saw
        ("Saw", "Saw 7 stood still."),  # nobody else has that name
        *[("doors", "They sent doors.")] * 2,
        ("doors", "They sent the doors of last week."),
        ("the doors of last week", "They sent the doors of last week."),  # a phrase, as one row has it
        (None, "Saw 6"),
    ]
    names, quotes = zip(*rows, strict=True)
    assert whole_names(names, quotes)[4:] == [
        "Saw 6", "Saw 6", "Saw", "Saw", "doors", "doors", "doors", "the doors of last week", None,
    ]  # fmt: skip


def test_what_is_not_installed_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dateparser", None)
    values.load.cache_clear()
    with pytest.raises(
        SettingsError, match=r"tally needs dateparser: run python -m pip install -e '\.\[tally\]'"
    ):
        values.check_installed()
