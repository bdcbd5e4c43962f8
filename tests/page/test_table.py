"""The rows that an answer was counted from, in a browser: a table that sorts, and leads into the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import memagent
from memagent.reading.tally.plan import Plan

playwright = pytest.importorskip("playwright.sync_api")
expect = getattr(playwright, "expect", None)
Page = getattr(playwright, "Page", None)

LETTERS = """\
# Letter 1

\U0001fabf We have sent 1,240.50 EUR to Nordholz GmbH today.

# Letter 2

The invoice of Baker & Sons came to £980, and it was paid.

# Letter 3

The parking lot will be closed next week.

# Letter 4

Atelier Lumière billed us 310 euros for two doors, and some euros for <b>lamps</b>. We paid at once.
"""
PLAN = Plan(
    row="one payment",
    fields=({"name": "supplier", "type": "text"}, {"name": "amount_paid", "type": "money"}),
    sql="SELECT supplier, SUM(amount_paid) FROM rows GROUP BY supplier",
)
ROWS = (
    {"supplier": "Nordholz GmbH", "amount_paid": "1240.5"},
    {"supplier": "Baker & Sons", "amount_paid": "£980"},
    {"supplier": "Atelier Lumière", "amount_paid": "310 euros"},
    {"supplier": "Atelier Lumière", "amount_paid": "some euros"},
    {"supplier": "<img src=x onerror=alert(1)>", "amount_paid": "310 euros"},
)


@pytest.fixture
def counted(tmp_path: Path, viewed: Callable[..., Page]) -> Callable[..., Page]:
    """Have rows counted of a file, by a model that proposes them all; gives the page of it."""

    def opened(
        text: str = LETTERS,
        name: str = "letters.md",
        rows: Sequence[Mapping[str, str]] = ROWS,
        plan: Plan = PLAN,
    ) -> Page:
        file, trace = tmp_path / name, tmp_path / "counted.jsonl"
        file.write_text(text, "utf-8")
        settings = memagent.ReadSettings(workflow="tally", plan=plan.to_toml(), chunk_tokens=400)
        memagent.read(
            "How much was paid to each supplier?",
            file,
            engine=memagent.ScriptedEngine(lambda messages: json.dumps(rows)),
            trace=trace,
            settings=memagent.Settings(read=settings),
        )
        return viewed(trace)

    return opened


def column(page: Page, number: int) -> list[str]:
    return [str(text).strip() for text in page.locator(f"#rows td:nth-child({number})").all_inner_texts()]


def order(page: Page) -> list[str | None]:
    return [head.get_attribute("aria-sort") for head in page.locator("#rows-head th").all()]


def test_the_rows_are_shown_with_how_much_was_read_and_what_was_refused(counted: Callable[..., Page]) -> None:
    page = counted()
    expect(page.locator("#table-facts")).to_have_text(
        "4 rows in 1 of 1 chunk · 1 row refused · 1 value not understood"
    )
    assert column(page, 1) == ["Nordholz GmbH", "Baker & Sons", "Atelier Lumière", "Atelier Lumière"]
    assert column(page, 2) == ["1,240.5 EUR", "980 GBP", "310 EUR", "some euros not understood"]
    assert column(page, 3)[0] == "line 3, under “Letter 1”"
    expect(page.locator("#refused li")).to_be_hidden()
    page.get_by_text("1 row refused").last.click()
    expect(page.locator("#refused li")).to_have_text(
        "supplier: <img src=x onerror=alert(1)>, amount_paid: 310 euros"
    )
    page.get_by_text("How it was counted").click()
    expect(page.locator("#sql")).to_have_text(PLAN.sql)
    expect(page.locator("#answer .sources")).to_have_count(0)


def test_columns_sort_by_click_and_by_keyboard(counted: Callable[..., Page]) -> None:
    page = counted()
    assert order(page) == [None, None, "ascending"]
    page.get_by_role("button", name="Supplier").click()
    assert order(page) == ["ascending", None, None]
    assert column(page, 1) == ["Atelier Lumière", "Atelier Lumière", "Baker & Sons", "Nordholz GmbH"]
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Amount paid")).to_be_focused()
    page.keyboard.press("Enter")
    assert order(page) == [None, "ascending", None]
    euros_then_pounds = ["310 EUR", "1,240.5 EUR", "980 GBP"]
    assert column(page, 2) == [*euros_then_pounds, "some euros not understood"]
    page.keyboard.press("Space")
    assert order(page) == [None, "descending", None]
    assert column(page, 2) == [*reversed(euros_then_pounds), "some euros not understood"]
    page.get_by_role("button", name="Place").click()
    assert order(page) == [None, None, "ascending"] and column(page, 1)[0] == "Nordholz GmbH"


def test_a_row_leads_to_its_place_in_the_text(counted: Callable[..., Page]) -> None:
    page = counted()
    page.get_by_role("button", name="line 7, under “Letter 2”").click()
    expect(page.locator("#text mark")).to_have_text(
        "The invoice of Baker & Sons came to £980, and it was paid."
    )
    expect(page.locator("#text")).to_be_focused()


def test_a_row_that_code_has_read_from_a_table_leads_there_too(counted: Callable[..., Page]) -> None:
    lines = "".join(f"Firm {number},{number}.50 EUR\n" for number in range(1500))
    field = PLAN.fields[0].model_copy(update={"name": "company"})
    plan = PLAN.model_copy(update={"fields": (field, PLAN.fields[1]), "sql": "SELECT COUNT(*) FROM rows"})
    columns: Any = {"company": "Firm", "amount_paid": "Sum"}
    page = counted(f"Firm,Sum\n{lines}", "sums.csv", columns, plan)
    expect(page.locator("#table-facts")).to_contain_text("1,500 rows from tables, without a model")
    expect(page.locator("#rows tr")).to_have_count(1000)
    expect(page.locator("#rows-left")).to_contain_text("The first 1,000 of 1,500 rows")
    page.get_by_role("button", name="Amount paid").click()
    page.get_by_role("button", name="Amount paid").click()
    page.get_by_role("button", name="line 1,500", exact=True).click()
    expect(page.locator("#text mark")).to_have_text("Firm 1498,1498.50 EUR")


def test_without_rows_it_says_so(counted: Callable[..., Page]) -> None:
    page = counted(rows=())
    expect(page.locator("#answer")).to_contain_text("No row was found.")
    expect(page.locator("#table-facts")).to_have_text("0 rows in 1 of 1 chunk")
    expect(page.locator("#rows-scroll")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_table_is_accessible_and_fits_a_phone(counted: Callable[..., Page], scheme: str) -> None:
    from axe_playwright_python import sync_playwright as axe

    page = counted()
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.get_by_text("1 row refused").last.click()
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text("utf-8") + "\n;0")
    violations = page.evaluate("async () => (await axe.run()).violations")
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
