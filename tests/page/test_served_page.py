"""The page of a server: asking, watching a read as it goes on, stopping it and coming back to it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memagent.reading.read import NOT_FOUND
from memagent.server.limits import Keys

playwright = pytest.importorskip("playwright.sync_api")
expect = getattr(playwright, "expect", None)
Page = getattr(playwright, "Page", None)

FACTS = ("A hat was lost in the snow.", "Peterson found a goose.", "The goose held a blue stone.")
FILLER = "Nothing of note was said that evening by anybody in the house.\n"
STORY = "".join(f"{fact} \U0001fabf\n\n{FILLER * 12}" for fact in FACTS)


def test_a_file_is_asked_about_and_the_memory_watched(
    page: Page, serving: Callable[..., str], tmp_path: Path
) -> None:
    story, gate = tmp_path / "story.txt", threading.Semaphore(0)
    story.write_text(STORY, "utf-8")
    address = serving(gate)
    page.goto(address)
    page.get_by_label("Question").fill("What did the goose hold?")
    page.get_by_label("Files").set_input_files(story)
    page.get_by_role("button", name="Read it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("What did the goose hold?")
    expect(page.locator("#answer")).to_contain_text("the read goes on")
    expect(page.locator("#steps")).to_be_hidden()
    for number in (1, 2, 3):
        gate.release()
        expect(page.locator("#step")).to_contain_text(f"Step {number} of {number}")
    expect(page.locator("#text")).to_contain_text(FILLER.strip())
    expect(page.locator("#answer")).to_contain_text("the read goes on")
    page.keyboard.press("Home")  # whoever looks back is not carried away
    gate.release()
    expect(page.locator("#step")).to_contain_text("Step 1 of 4")
    gate.release(100)
    expect(page.locator("#answer .unsupported")).to_be_visible()
    page.get_by_role("button", name="Source 1").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("button", name="Another document").click()
    expect(page.locator(".reads li")).to_contain_text("done")
    assert httpx2.get(f"{address}v1/files", trust_env=False).json()["data"] == []  # only the read has it


def test_a_pasted_text_is_read_and_a_reload_comes_back_to_it(page: Page, serving: Callable[..., str]) -> None:
    page.goto(serving())
    page.get_by_label("Question").fill("What?")
    page.get_by_label("Or a text").fill(STORY)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")  # the read is done
    page.keyboard.press("Home")
    expect(page.locator("#step")).to_contain_text("Step 1 of")
    expect(page.locator("#text")).to_contain_text(FACTS[0])
    assert STORY.startswith(page.locator("#text").text_content() or "nothing")
    page.reload()
    expect(page.locator("#answer .said")).to_contain_text("Nobody was hanged.")
    expect(page.locator("#memory ins")).to_have_text("The goose held a blue stone.")
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")
    page.keyboard.press("Home")
    expect(page.locator("#text")).to_contain_text(FACTS[0])
    page.get_by_text("Where the memory comes from").click()
    expect(page.locator("#remembered li")).to_have_count(2)
    page.locator("#remembered li").last.get_by_role("button").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")


def test_a_read_that_noted_nothing_says_so_quietly(page: Page, serving: Callable[..., str]) -> None:
    page.goto(serving())
    page.get_by_label("Question").fill("What did the goose hold?")
    page.get_by_label("Or a text").fill(FILLER * 12)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#answer p.quiet")).to_have_text(NOT_FOUND)


def test_another_question_reads_the_same_document_in_the_same_way(
    page: Page, serving: Callable[..., str], tmp_path: Path
) -> None:
    story = tmp_path / "story.md"
    story.write_text(STORY, "utf-8")
    page.goto(serving())
    page.get_by_label("Question").fill("What did the goose hold?")
    page.get_by_label("Files").set_input_files(story)
    expect(page.get_by_label("How to read")).to_be_hidden()
    page.get_by_text("Options").click()
    page.get_by_label("How to read").select_option("full")
    page.get_by_label("Chunk").fill("300")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#facts")).to_have_text("story.md · scripted · workflow full")
    expect(page.locator("#text-facts")).to_contain_text("story.md")
    first = page.url
    page.reload()  # whatever the page knew of the files is gone
    page.get_by_label("Ask the same document").fill("Who lost a hat?")
    page.get_by_label("Ask the same document").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Who lost a hat?")
    expect(page.locator("#facts")).to_have_text("story.md · scripted · workflow full")
    read = httpx2.get(page.url.replace("#", "v1/reads/"), trust_env=False).json()
    assert read["options"] == {"workflow": "full", "chunk_tokens": 300, "cite": True}
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("What did the goose hold?")
    assert page.url == first
    page.wait_for_load_state("networkidle")  # or the server would stop while the page still asks it


def test_a_picture_is_refused_without_an_answer_and_a_chart(
    browser: playwright.Browser, serving: Callable[..., str], tmp_path: Path
) -> None:
    page, picture = browser.new_page(), tmp_path / "goose.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1")
    page.goto(serving())
    page.get_by_label("Question").fill("What is on it?")
    page.get_by_label("Files").set_input_files(picture)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#answer .alert")).to_contain_text("goose.png is a binary file")
    for hidden in ("#answer-title", "#steps", "#panes", "#totals-section", "#more"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.context.close()


def test_a_file_that_is_dropped_is_to_be_asked_about(page: Page, serving: Callable[..., str]) -> None:
    address = serving()
    for url in (address, f"{address}#{begin(address)}"):
        page.goto(url)
        expect(page.locator("#start, #read").filter(visible=True)).to_be_visible()
        dropped = "(data) => (data.items.add(new File(['A hat.'], 'hat.txt')), data)"
        page.dispatch_event(
            "main", "drop", {"dataTransfer": page.evaluate_handle(f"({dropped})(new DataTransfer())")}
        )
        expect(page.get_by_label("Question")).to_be_focused()
        assert page.get_by_label("Files").evaluate(
            "(input) => [...input.files].map((file) => file.name)"
        ) == ["hat.txt"]


def test_notes_that_have_nothing_in_common_are_not_compared(page: Page, serving: Callable[..., str]) -> None:
    page.goto(serving(workflow="map_reduce"))
    page.get_by_label("Question").fill("What?")
    page.get_by_label("Or a text").fill(STORY)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#answer .said")).to_contain_text("Nobody was hanged.")
    page.keyboard.press("Home")
    for fact in FACTS:
        expect(page.locator("#memory ins")).to_contain_text(fact)
        expect(page.locator("#memory del")).to_have_count(0)
        page.keyboard.press("n")


def test_a_read_is_stopped_and_continued(page: Page, serving: Callable[..., str]) -> None:
    gate = threading.Semaphore(2)
    page.goto(serving(gate))
    page.get_by_label("Question").fill("What?")
    page.get_by_label("Or a text").fill(STORY)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#step")).to_contain_text("Step 2 of 2")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#answer")).to_contain_text("the read was stopped")
    gate.release(100)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#answer .said")).to_contain_text("Nobody was hanged.")
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()


def test_a_server_with_keys_asks_for_one(browser: playwright.Browser, serving: Callable[..., str]) -> None:
    page = browser.new_page()
    page.goto(serving(keys=Keys((hashlib.sha256(b"a key of sixteen").digest(),))))
    expect(page.locator("#problem-told")).to_contain_text("a key is needed")
    page.get_by_label("API key").fill("a key of sixteen")
    page.get_by_label("API key").press("Tab")
    expect(page.locator("#problem-told")).to_be_hidden()
    page.get_by_label("Question").fill("What?")
    page.get_by_label("Or a text").fill(STORY)
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#answer .said")).to_contain_text("Nobody was hanged.")
    page.context.close()


def begin(address: str, problem: str = "What?", **options: Any) -> str:
    """Have the server read the story; gives the id of the read."""
    body = {"problem": problem, "document": STORY}
    with httpx2.Client(trust_env=False) as client:
        return str(client.post(f"{address}v1/reads", json=body, **options).json()["id"])


def test_the_address_of_a_read_leads_to_it_once_the_key_is_given(
    browser: playwright.Browser, serving: Callable[..., str]
) -> None:
    key = "a key of sixteen"
    address = serving(keys=Keys((hashlib.sha256(key.encode()).digest(),)))
    read = begin(address, headers={"Authorization": f"Bearer {key}"})
    page = browser.new_page()
    page.goto(f"{address}#{read}")
    page.get_by_label("API key").fill(key)
    page.get_by_label("API key").press("Tab")
    expect(page.get_by_role("heading", level=1)).to_have_text("What?")
    expect(page.locator("#problem-told")).to_be_hidden()
    page.context.close()


def test_a_missing_read_is_reported_beside_the_form(
    browser: playwright.Browser, serving: Callable[..., str]
) -> None:
    gate = threading.Semaphore(1)
    address = serving(gate)
    page = browser.new_page()
    page.goto(f"{address}#read-0")
    expect(page.locator("#problem-told")).to_contain_text("there is no read 'read-0'")
    expect(page.get_by_label("Question")).to_be_visible()
    for lost in (False, True):  # whether the connection breaks before the end can be told
        read = begin(address)
        page.goto(f"{address}#{read}")
        expect(page.locator("#step")).to_contain_text("Step 1 of 1")
        if lost:
            page.route("**/events*", lambda route: route.fulfill(status=404, json={}))
            page.reload()
        httpx2.delete(f"{address}v1/reads/{read}", trust_env=False)
        expect(page.locator("body")).to_contain_text(f"there is no read '{read}'")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        gate.release(2)  # one for the call that nobody waits for any more
    page.context.close()


def test_skipping_to_the_read_stays_with_it(page: Page, serving: Callable[..., str]) -> None:
    gate = threading.Semaphore(1)
    address = serving(gate)
    read = begin(address)
    page.goto(f"{address}#{read}")
    expect(page.locator("#step")).to_contain_text("Step 1 of 1")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    gate.release(100)
    expect(page.locator("#answer")).to_contain_text("The goose held a blue stone.")
    assert page.url.endswith(read)


def test_a_missing_server_is_reported_until_it_is_back(
    browser: playwright.Browser, serving: Callable[..., str]
) -> None:
    gate = threading.Semaphore(1)
    address = serving(gate)
    page = browser.new_page()
    page.route("**/events*", lambda route: route.abort())
    page.goto(f"{address}#{begin(address)}")
    expect(page.get_by_role("status")).to_contain_text("cannot be reached")
    page.unroute("**/events*")
    expect(page.locator("#step")).to_contain_text("Step 1 of 1")
    gate.release(100)
    expect(page.locator("#answer")).to_contain_text("The goose held a blue stone.")
    expect(page.get_by_role("status")).not_to_contain_text("cannot be reached")
    page.context.close()


def test_leaving_before_a_read_has_loaded_shows_the_later_one(
    page: Page, serving: Callable[..., str]
) -> None:
    address = serving()
    slow, quick = begin(address, "Slow?"), begin(address, "Quick?")
    page.goto(address)
    expect(page.locator(".reads li")).to_have_count(2)
    held: list[Any] = []
    page.route(f"**/v1/reads/{slow}", lambda route: held.append(route))
    with page.expect_request(f"**/v1/reads/{slow}"):
        page.get_by_role("link", name="Slow?").click()
    page.get_by_role("link", name="Quick?").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Quick?")
    held[0].continue_()
    page.wait_for_timeout(300)
    expect(page.get_by_role("heading", level=1)).to_have_text("Quick?")
    assert page.url.endswith(quick)


def test_errors_are_shown(browser: playwright.Browser, serving: Callable[..., str]) -> None:
    page = browser.new_page()
    page.goto(serving())
    page.get_by_label("Question").fill("What?")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#problem-told")).to_contain_text("nothing to read")
    page.route("**/v1/reads", lambda route: route.abort())
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#problem-told")).to_contain_text("cannot be reached")
    page.context.close()


def test_a_file_that_disappears_after_it_was_chosen_is_reported(
    browser: playwright.Browser, serving: Callable[..., str], tmp_path: Path
) -> None:
    page, story = browser.new_page(), tmp_path / "story.txt"
    story.write_text(STORY, "utf-8")
    page.goto(serving())
    page.get_by_label("Question").fill("What?")
    page.get_by_label("Files").set_input_files(story)
    story.unlink()
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#problem-told")).to_contain_text("story.txt has changed")
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_is_accessible(page: Page, serving: Callable[..., str], scheme: str) -> None:
    from axe_playwright_python import sync_playwright as axe

    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(serving())
    page.get_by_text("Options").click()
    expect(page.get_by_label("How to read")).to_be_visible()
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text("utf-8") + "\n;0")
    violations = page.evaluate("async () => (await axe.run()).violations")
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
