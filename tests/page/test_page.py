"""The page in a browser: what it shows of a read, how one moves through it, and which files it takes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

import memagent
from memagent import ScriptedEngine
from memagent.reading.journal import read_journal
from memagent.reading.read import NOT_FOUND
from memagent.reading.tally.plan import Plan
from memagent.types import Conversation

playwright = pytest.importorskip("playwright.sync_api")
expect = getattr(playwright, "expect", None)
Page = getattr(playwright, "Page", None)

FACTS = ("A hat was lost in the snow.", "Peterson found a goose.", "The goose held a blue stone.")
FILLER = "Nothing of note was said that evening by anybody in the house.\n"
STEPS = 10_000
DIFF = "async ([old, fresh]) => (await import('./diff.js')).diff(old, fresh)"


def usage(tokens: int = 10) -> dict[str, int]:
    return {"prompt_tokens": tokens, "completion_tokens": 5, "cached_tokens": 0}


def header(**values: object) -> dict[str, object]:
    document = {"sha256": "0" * 64, "sources": ["a.txt"]}
    return {
        "type": "header",
        "format": 2,
        "problem": "Who?",
        "memory": "",
        "document": document,
        "budgets": {"chunk_tokens": 100},
        "model": "scripted",
        "workflow": "gated",
        **values,
    }


def step(index: int | None, memory: str, span: tuple[int, int] | None, **values: object) -> dict[str, object]:
    line = {
        "type": "conversation",
        "kind": "answer" if index is None else "update",
        "chunk_index": index,
        "span": span,
        "source": None if span is None else "a.txt",
        "prompt_sha256": "0" * 16,
        "finish_reason": "stop",
        "usage": usage(),
        "memory": memory,
        "enough": False,
        "seconds": 1.0,
    }
    return {**line, **values}


def write(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    return path


def give(page: Page, *files: Path) -> None:
    page.locator("#file").set_input_files(list(files))


def says(page: Page, text: str) -> None:
    expect(page.locator("#problem-told")).to_contain_text(text)


def test_a_read_is_shown_from_the_disk(viewed: Callable[..., Page], record: Callable[..., Path]) -> None:
    page = viewed(record())
    expect(page.get_by_role("heading", level=1)).to_have_text("What did the goose hold?")
    page.keyboard.press("Home")
    expect(page.locator("#memory ins")).to_have_text("A hat was lost in the snow.")
    page.keyboard.press("n")
    expect(page.locator("#memory ins")).to_have_text("Peterson found a goose.")
    expect(page.locator("#memory del")).to_have_count(0)
    page.keyboard.press("n")
    expect(page.locator("#memory ins")).to_have_text("The goose held a blue stone.")
    expect(page.locator("#memory del")).to_contain_text("A hat was lost in the snow.")
    expect(page.locator("#text")).to_contain_text("The goose held a blue stone.")
    page.get_by_label("Changes").uncheck()
    expect(page.locator("#memory")).to_have_text("Peterson found a goose. The goose held a blue stone.")


def test_a_read_opens_at_the_step_that_brought_the_answer(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record(answer="Nobody was hanged. Peterson found a goose."))
    expect(page.locator("#text mark")).to_have_text("Peterson found a goose.")
    expect(page.locator("#memory ins")).to_have_text("Peterson found a goose.")


def test_a_read_without_sources_opens_at_the_last_change_of_the_memory(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record(), "--without-text")
    expect(page.locator("#memory ins")).to_have_text("The goose held a blue stone.")
    expect(page.get_by_title("Next change (n)")).to_be_disabled()


def test_of_several_steps_over_a_chunk_the_one_that_took_the_note_is_opened(
    empty: Page, tmp_path: Path
) -> None:
    steps = [step(0, "A.", (0, 9)), step(1, "A.", (9, 21)), step(1, "A. It was blue.", (9, 21))]
    source = {"file": "a.txt", "page": None, "start": 9, "end": 21, "excerpt": "It was blue.", "at": 9}
    answer = {
        "type": "answer",
        "found": True,
        "answer": "It was blue.",
        "statements": [{"text": "It was blue.", "source": source}],
    }
    give(empty, write(tmp_path / "t.jsonl", header(), *steps, step(None, "A. It was blue.", None), answer))
    expect(empty.locator("#step")).to_contain_text("Step 3 of 4")


def test_a_missing_answer_is_shown_quietly(viewed: Callable[..., Page], record: Callable[..., Path]) -> None:
    page = viewed(record(facts=()))
    expect(page.locator("#answer p.quiet")).to_have_text(NOT_FOUND)
    expect(page.locator("#answer li")).to_have_count(0)
    expect(page.locator("#step")).to_contain_text("memory unchanged")


def test_the_text_beside_the_memory_is_the_chunk_character_for_character(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    trace = record()
    story = (trace.parent / "story.txt").read_text("utf-8")
    page = viewed(trace)
    expect(page.locator("#text mark")).to_be_visible()  # it is unpacked
    page.keyboard.press("Home")
    for line in read_journal(trace):
        if isinstance(line, Conversation) and line.span:
            start, end = line.span
            lines = [story.count("\n", 0, position) + 1 for position in (start, max(start, end - 1))]
            label = f"lines {lines[0]} to {lines[1]}" if lines[0] < lines[1] else f"line {lines[0]}"
            expect(page.locator("#text-facts")).to_have_text(re.compile(f"story.txt, {label}$"))
            assert page.locator("#text").text_content() == story[start:end]
            page.keyboard.press("ArrowRight")


def test_each_statement_of_the_answer_leads_to_its_place(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record())
    expect(page.locator("#answer .said")).to_have_text("The goose held a blue stone.1 Nobody was hanged.")
    expect(page.locator("#answer .unsupported")).to_contain_text("Without a number: the text does not say so")
    page.get_by_role("button", name="Source 1").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")


MARKDOWN = """Two things are **known**:

- The goose held a blue stone.
- *Peterson* found a goose.

A hat was lost in the snow."""


def test_an_answer_in_markdown_stands_once_with_the_numbers_of_its_sources(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record(answer=MARKDOWN))
    expect(page.locator("#answer .said p").first).to_have_text("Two things are known:")
    expect(page.locator("#answer .said strong")).to_have_text("known")
    expect(page.locator("#answer .said li")).to_have_text(
        ["The goose held a blue stone.1", "Peterson found a goose.2"]
    )
    expect(page.locator("#answer .said p").last).to_have_text("A hat was lost in the snow.3")
    expect(page.locator(".sources button")).to_have_text(["line 29", "line 15", "line 1"])
    assert (page.locator("#answer").text_content() or "").count("blue stone") == 1


def test_a_source_has_its_line_and_the_heading_above_it(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    story = (
        f"# Snow\n\n{FACTS[0]}\n\n```\n\n# no heading\n```\n\n{FACTS[1]}\n\n## *Blue* things ##\n\n{FACTS[2]}"
    )
    trace = record(story, answer=" ".join(FACTS), name="story.md")
    page = viewed(trace)
    places = page.locator(".sources button")
    expect(places).to_have_text(
        ["line 3, under “Snow”", "line 10, under “Snow”", "line 14, under “Blue things”"]
    )


def test_lines_are_counted_and_headings_looked_for_within_a_file(empty: Page, tmp_path: Path) -> None:
    raws = {"a.md": b"# One\n\nFirst.\n", "b.md": b"Second.\n\n# Two\n\nThird.\n"}
    for name, raw in raws.items():
        (tmp_path / name).write_bytes(raw)
    digest = sha256(b"".join(sha256(raw).digest() for raw in raws.values())).hexdigest()
    statements = [
        {
            "text": text,
            "source": {
                "file": file,
                "page": page,
                "start": start,
                "end": start + 6,
                "excerpt": text,
                "at": at,
            },
        }
        for text, file, page, start, at in (
            ("First.", "a.md", None, 7, 7),
            ("Second.", "b.md", None, 0, 14),
            ("Third.", "b.md", 4, 16, 30),
        )
    ]
    steps = [step(0, "A.", (0, 14), source="a.md"), step(1, "A. B.", (14, 37), source="b.md")]
    answer = {"type": "answer", "found": True, "answer": "First. Second. Third.", "statements": statements}
    document = {"sha256": digest, "sources": list(raws)}
    give(empty, write(tmp_path / "t.jsonl", header(document=document), *steps, answer))
    expect(empty.locator(".sources button")).to_have_text(["a.md", "b.md", "b.md, page 4"])
    give(empty, *map(tmp_path.joinpath, raws))
    expect(empty.locator(".sources button")).to_have_text(
        ["a.md, line 3, under “One”", "b.md, line 1", "b.md, page 4, under “Two”"]
    )


def test_a_source_in_an_earlier_document_has_no_place_in_this_one(empty: Page, tmp_path: Path) -> None:
    raw = b"It was snow.\n\nNothing else.\n"
    (tmp_path / "a.txt").write_bytes(raw)
    document = {"sha256": sha256(sha256(raw).digest()).hexdigest(), "sources": ["a.txt"]}
    source = {"file": "old.txt", "page": None, "start": 0, "end": 12, "excerpt": "It was blue.", "at": None}
    answer = {
        "type": "answer",
        "found": True,
        "answer": "It was blue.",
        "statements": [{"text": "It was blue.", "source": source, "nearest": []}],
    }
    trace = write(tmp_path / "t.jsonl", header(document=document), step(0, "It was blue.", (0, 28)), answer)
    give(empty, trace, tmp_path / "a.txt")
    expect(empty.locator("#text")).to_contain_text("It was snow.")
    expect(empty.locator(".sources button")).to_have_text("old.txt")
    expect(empty.locator("#text mark")).to_have_count(0)


@pytest.mark.parametrize("workflow", ["gated", "evidence", "tally"])
def test_the_places_in_two_files_are_those_of_each_file(
    workflow: str, viewed: Callable[..., Page], tmp_path: Path
) -> None:
    facts = {"a.txt": "Ann got 7 EUR.", "b.txt": "Bo got 5 EUR."}
    for beginning, (name, fact) in zip(("\U0001fabf\n\n", "\n\n\n\n"), facts.items(), strict=True):
        (tmp_path / name).write_text(f"{beginning}{fact}\n\n{FILLER * 12}", "utf-8")

    def reply(messages: tuple[memagent.Message, ...]) -> str:
        prompt = messages[-1].content
        known = [fact for fact in facts.values() if fact in prompt]
        if workflow == "tally":
            return json.dumps([{"who": fact.split()[0]} for fact in known])
        if "<chunk" not in prompt:
            return " ".join(facts.values())
        if workflow == "evidence":
            return "\n".join(f"ADD {fact}" for fact in known) or "UNCHANGED"
        return "MEMORY\n" + " ".join(known)

    plan = Plan(row="one payment", fields=({"name": "who", "type": "text"},), sql="SELECT who FROM rows")
    options = {"plan": plan.to_toml()} if workflow == "tally" else {}
    settings = memagent.ReadSettings(workflow=workflow, chunk_tokens=100, **options)
    trace, files = tmp_path / "t.jsonl", [tmp_path / name for name in facts]
    engine = memagent.ScriptedEngine(reply)
    memagent.read(
        "Who got what?", files, engine=engine, trace=trace, settings=memagent.Settings(read=settings)
    )
    page = viewed(trace)
    places = page.locator("#rows button" if workflow == "tally" else ".sources button")
    expect(places).to_have_text([f"{files[0]}, line 3", f"{files[1]}, line 5"])
    places.last.click()
    expect(page.locator("#text mark")).to_have_text("Bo got 5 EUR.")


def test_a_statement_in_other_words_leads_to_its_nearest_passage(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record(answer="A blue stone was held by the goose."))
    source = page.locator(".sources li")
    expect(source).to_contain_text("Nearest passage, other words:The goose held a blue stone.")
    source.get_by_role("button").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")


def test_a_paraphrase_is_distinguished_from_a_source(empty: Page, tmp_path: Path) -> None:
    passage = {"file": "a.txt", "page": None, "start": 0, "end": 9, "at": 0}
    statements = [
        {
            "text": "The goose held a stone.",
            "source": None,
            "nearest": [passage | {"excerpt": "A goose had it."}],
        },
        {
            "text": "It was blue.",
            "source": passage | {"start": 9, "end": 21, "excerpt": "It was blue.", "at": 9},
            "nearest": [],
        },
        {"text": "Nobody was hanged.", "source": None, "nearest": []},
    ]
    answer = {
        "type": "answer",
        "found": True,
        "answer": " ".join(statement["text"] for statement in statements),
        "statements": statements,
    }
    give(empty, write(tmp_path / "t.jsonl", header(), step(0, "A.", (0, 30)), answer))
    expect(empty.locator(".said")).to_have_text("The goose held a stone.1 It was blue.2 Nobody was hanged.")
    expect(empty.locator(".sources li").first).to_have_text(
        re.compile("^Nearest passage, other words:A goose had it.a")
    )
    expect(empty.locator(".sources li").last).to_have_text("a.txt")
    expect(empty.get_by_role("button", name="Nearest passage 1")).to_be_visible()


REMEMBER = """async (remembered) => {
  const { showRemembered } = await import("./answer.js");
  showRemembered({ remembered }, { describe: () => "line 1" });
}"""


def test_a_statement_of_the_memory_without_a_source_looks_like_one(empty: Page) -> None:
    source = {"file": "a.txt", "page": None, "start": 0, "end": 9, "excerpt": "A goose had it."}
    statements = [
        {"text": "A goose had it.", "source": source, "nearest": []},
        {"text": "The goose held it.", "source": None, "nearest": [source]},
        {"text": "Nobody was hanged.", "source": None, "nearest": []},
    ]
    empty.evaluate(REMEMBER, statements)
    bars = "(items) => items.map((item) => getComputedStyle(item).borderLeftColor)"
    supported, *unsupported = empty.locator("#remembered li").evaluate_all(bars)
    assert len(unsupported) == 2 and supported not in unsupported and len(set(unsupported)) == 1
    label, quote = empty.locator("#remembered .kind"), empty.locator("#remembered q")
    expect(label).to_have_css("font-style", "italic")
    colour = quote.evaluate("(node) => getComputedStyle(node).color")
    expect(label).to_have_css("color", colour)


def test_a_read_that_has_not_begun_shows_no_chart(empty: Page, tmp_path: Path) -> None:
    give(empty, write(tmp_path / "t.jsonl", header()))
    expect(empty.locator("#answer")).to_contain_text("not finished")
    for hidden in ("#answer-title", "#steps", "#panes", "#totals-section"):
        expect(empty.locator(hidden)).to_be_hidden()


RENDER = """async (text) => {
  const { markdown } = await import("./markdown.js");
  const box = document.createElement("div");
  box.append(...markdown(text));
  return [box.innerHTML, box.textContent, [...box.querySelectorAll("*")].map((node) => node.localName)];
}"""


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("One\ntwo.\n\nThree.", "<p>One\ntwo.</p><p>Three.</p>"),
        ("## A *b* ##\nc", "<h3>A <em>b</em></h3><p>c</p>"),
        ("**a *b*** and __c__, `*d*`", "<p><strong>a <em>b</em></strong> and __c__, <code>*d*</code></p>"),
        ("2 * 3 * 4, a_b_c, _d_, *e", "<p>2 * 3 * 4, a_b_c, <em>d</em>, *e</p>"),
        (
            "- a\n  - b\n    more\n- c\n\n- d",
            "<ul><li>a<ul><li>b\n    more</li></ul></li><li>c</li><li>d</li></ul>",
        ),
        ("3. a\n4) b\n- c", '<ol start="3"><li>a</li><li>b</li></ol><ul><li>c</li></ul>'),
        ("```py\n# a **b**\n\nc\n```\nd", "<pre><code># a **b**\n\nc</code></pre><p>d</p>"),
        ("~~~\nunclosed", "<pre><code>unclosed</code></pre>"),
        ("[a](javascript:b) <b>c</b>", "<p>[a](javascript:b) &lt;b&gt;c&lt;/b&gt;</p>"),
        ("1998. A year", "<p>1998. A year</p>"),
    ],
)
def test_markdown_is_rendered(empty: Page, text: str, html: str) -> None:
    assert empty.evaluate(RENDER, text)[0] == html


def test_any_text_is_shown_with_all_its_words_and_no_other_elements(empty: Page) -> None:
    draw = random.Random(11)
    pieces = [
        "**",
        "*",
        "_",
        "`",
        "```",
        "~~~",
        "# ",
        "- ",
        "1. ",
        "\n",
        "\n\n",
        "  ",
        "word",
        "<img src=x>",
        "猫",
        "🪿",
    ]
    for _ in range(500):
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(40)))
        _, content, tags = empty.evaluate(RENDER, text)
        assert set(tags) <= {"p", "h3", "ul", "ol", "li", "pre", "code", "em", "strong"}, text
        for word in ("<img src=x>", "猫", "🪿"):
            if "~~~" not in text and "```" not in text:  # what stands beside a fence names a language
                assert content.count(word) == text.count(word), text
    for hostile in (
        "**a " * 20_000,
        "*a " * 20_000,
        "- " * 50_000,
        "# " + " " * 100_000,
        "`" * 99_999,
        "_a" * 50_000,
    ):
        empty.evaluate(RENDER, hostile)
    empty.evaluate(RENDER, "".join(f"{' ' * 2 * depth}- a\n" for depth in range(300)))


def test_a_read_in_one_prompt_shows_its_text_and_no_steps(
    viewed: Callable[..., Page], tmp_path: Path
) -> None:
    story, trace = tmp_path / "story.txt", tmp_path / "whole.jsonl"
    story.write_text("It was late. The goose held a blue stone. It was dark.", "utf-8")
    engine = ScriptedEngine(["The goose held a blue stone."])
    memagent.read("What did the goose hold?", story, engine=engine, trace=trace, cite=True)
    page = viewed(trace)
    expect(page.locator("#text")).to_contain_text("It was late.")
    for hidden in ("#steps", "#memory-pane"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("#answer")).to_have_text("The goose held a blue stone.line 1")
    page.get_by_role("button", name="line 1").click()
    expect(page.locator("#text mark")).to_have_text("The goose held a blue stone.")


def test_keys_slider_buttons_and_the_strip_move_through_the_steps(empty: Page, tmp_path: Path) -> None:
    lines = [step(index, f"Memory {index // 3}.", (index * 5, index * 5 + 5)) for index in range(30)]
    give(empty, write(tmp_path / "t.jsonl", header(), *lines))
    description = empty.locator("#step")
    expect(description).to_contain_text("Step 28 of 30")
    for key, number in (("Home", 1), ("ArrowRight", 2), ("n", 4), ("End", 30), ("ArrowRight", 30), ("p", 28),
                        ("PageUp", 18), ("ArrowLeft", 17), ("Home", 1), ("ArrowLeft", 1)):  # fmt: skip
        empty.keyboard.press(key)
        expect(description).to_contain_text(f"Step {number} of 30")
    slider = empty.get_by_role("slider")
    slider.fill("12")
    expect(description).to_contain_text("Step 12 of 30")
    assert "Step 12 of 30" in (slider.get_attribute("aria-valuetext") or "")
    slider.press("ArrowRight")
    expect(description).to_contain_text("Step 13 of 30")
    empty.get_by_role("button", name="Previous change").click()
    expect(description).to_contain_text("Step 10 of 30")
    box = empty.locator("#timeline").bounding_box()
    assert box
    empty.mouse.click(box["x"] + box["width"] * 25.5 / 30, box["y"] + 10)
    expect(description).to_contain_text("Step 26 of 30")


def test_ten_thousand_steps_are_opened_and_gone_through(empty: Page, tmp_path: Path) -> None:
    words = [f"Fact number {number} is known." for number in range(STEPS)]
    lines = [
        step(index, " ".join(words[max(0, index - 40) : index + 1]), (index, index + 1))
        for index in range(STEPS)
    ]
    give(empty, write(tmp_path / "t.jsonl", header(), *lines))
    expect(empty.locator("#step")).to_contain_text("Step 10,000 of 10,000", timeout=60_000)
    empty.keyboard.press("Home")
    expect(empty.locator("#memory ins")).to_have_text(words[0])
    empty.keyboard.press("End")
    expect(empty.locator("#memory ins")).to_have_text(words[-1].split(".")[0] + ".")
    expect(empty.locator("#memory del")).to_contain_text(words[STEPS - 42])
    colour_count = empty.evaluate(
        """() => { const { data } = strip.getContext("2d").getImageData(0, 0, strip.width, strip.height);
                   return new Set(new Uint32Array(data.buffer)).size }"""
    )
    assert colour_count > 2  # the ground, what was added, what was removed


def test_many_moves_within_a_frame_are_drawn_once(empty: Page, tmp_path: Path) -> None:
    lines = [step(index, f"Memory {index}.", (index, index + 1)) for index in range(100)]
    give(empty, write(tmp_path / "t.jsonl", header(), *lines))
    expect(empty.locator("#step")).to_contain_text("Step 100 of 100")
    changes = empty.evaluate(
        """async () => {
          let changes = 0;
          const observer = new MutationObserver((records) => (changes += records.length));
          observer.observe(document.querySelector("#memory"), { childList: true });
          const slider = document.querySelector("#slider");
          for (let number = 1; number <= 100; number += 1) {
            slider.value = number;
            slider.dispatchEvent(new Event("input"));
          }
          await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
          return changes;
        }"""
    )
    assert changes == 1


HOSTILE = '<img src=x onerror=alert(1)></script><script>alert(2)</script>{{7*7}}" onload="alert(3)'


def test_text_is_text_wherever_it_stands(viewed: Callable[..., Page], record: Callable[..., Path]) -> None:
    facts = [f"{fact} {HOSTILE}" for fact in ("One.", "Two.")]
    trace = record(" ".join(facts), facts, HOSTILE, f"Who? {HOSTILE}", "<b onclick=alert(4)>x&amp;y.txt")
    page = viewed(trace)
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Who? {HOSTILE}")
    expect(page.locator("#answer")).to_contain_text(HOSTILE)
    expect(page.locator("#memory")).to_contain_text(HOSTILE)
    expect(page.locator("#text")).to_contain_text(HOSTILE)
    expect(page.locator("#facts")).to_contain_text("<b onclick=alert(4)>x&amp;y.txt")
    assert page.locator("img, main script, b").count() == 0


def test_dropped_text_stands_beside_the_memory_if_it_is_what_was_read(
    empty: Page, record: Callable[..., Path]
) -> None:
    trace = record()
    story = trace.parent / "story.txt"
    data = empty.evaluate_handle(
        """([journal, text]) => {
          const data = new DataTransfer();
          data.items.add(new File([journal], "story.jsonl"));
          data.items.add(new File([text], "story.txt"));
          return data;
        }""",
        [trace.read_text("utf-8"), story.read_text("utf-8")],
    )
    empty.dispatch_event("main", "drop", {"dataTransfer": data})
    expect(empty.locator("#text")).to_contain_text("The goose held a blue stone. \U0001fabf")
    story.write_text(story.read_text("utf-8").replace("snow", "rain"), "utf-8")
    give(empty, story)
    says(empty, "changed since")
    empty.keyboard.press("Home")
    expect(empty.locator("#text")).to_contain_text("in the snow")


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.html", b"<p>words</p>", "converted before it is read"),
        ("a.txt", b"\x1f\x8bwords", "converted before it is read"),
        ("a.txt", b"caf\xe9, and so on", "encoding that the page does not know"),
        ("a.txt", b"short", "read in another form"),
    ],
)
def test_text_that_would_not_fit_the_spans_is_refused(
    empty: Page, tmp_path: Path, name: str, raw: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(raw)
    document = {"sha256": sha256(sha256(raw).digest()).hexdigest(), "sources": [f"some/{name}"]}
    trace = write(tmp_path / "t.jsonl", header(document=document), step(0, "A memory.", (0, 10)))
    give(empty, trace, file)
    says(empty, message)
    expect(empty.locator("#text")).to_contain_text("does not hold the text")


def test_several_files_are_put_together_in_the_order_of_the_read(empty: Page, tmp_path: Path) -> None:
    raws = {"b.txt": b"\xef\xbb\xbfFirst. ", "a.txt": "Second.".encode("utf-16")}
    for name, raw in raws.items():
        (tmp_path / name).write_bytes(raw)
    digests = b"".join(sha256(raw).digest() for raw in raws.values())
    document = {"sha256": sha256(digests).hexdigest(), "sources": [f"x/{name}" for name in raws]}
    trace = write(tmp_path / "t.jsonl", header(document=document), step(0, "A.", (0, 14)))
    give(empty, trace)
    give(empty, tmp_path / "a.txt")
    says(empty, "missing or ambiguous: b.txt")
    give(empty, tmp_path / "a.txt", tmp_path / "b.txt")
    expect(empty.locator("#text")).to_have_text("First. Second.")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([header(format=1)], "has format 1, this page reads 2"),
        ([header(), header()], "is not a journal"),
        ([], "not a journal"),
    ],
)
def test_another_file_is_refused(
    empty: Page, tmp_path: Path, lines: list[dict[str, object]], message: str
) -> None:
    give(empty, write(tmp_path / "t.jsonl", *lines))
    says(empty, message)
    expect(empty.get_by_role("heading", level=1)).to_have_text("Watch a memory grow")


def test_a_last_line_that_a_crash_has_torn_is_left_out(empty: Page, tmp_path: Path) -> None:
    steps = [step(0, "Ein Hut.", (0, 9)), step(1, "Hut \U0001fabf.", (9, 21)), step(2, "Nichts.", (21, 30))]
    trace = write(tmp_path / "t.jsonl", header(), *steps)
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-1])
    give(empty, trace)
    expect(empty.locator("#status")).to_contain_text("t.jsonl: 2 steps")
    trace.write_bytes(whole.replace(b'"memory": "Ein Hut."', b'"memory": "Ein H'))
    give(empty, trace)
    says(empty, "t.jsonl, line 2: not written by memagent, or damaged")
    trace.write_bytes(whole[:30])
    give(empty, trace)
    says(empty, "t.jsonl has no whole line: its read has not begun")


def test_a_diff_leads_from_the_one_text_to_the_other(empty: Page) -> None:
    draw = random.Random(3)
    words = ["a", "goose", "Stone.", "blue!", "\n", "  ", "猫。", "\U0001fabf", "it's", '"No."', "1.5"]
    for _ in range(300):
        before = [draw.choice(words) for _ in range(draw.randrange(30))]
        after = [word for word in before if draw.random() > 0.2]
        after[draw.randrange(len(after) + 1) :] = [draw.choice(words) for _ in range(draw.randrange(9))]
        old, new = draw.choice(("", " ")).join(before), draw.choice(("", " ")).join(after)
        pieces = empty.evaluate(DIFF, [old, new])
        old_text = "".join(piece["text"] for piece in pieces if piece["kind"] != "added")
        assert "".join(old_text.split()) == "".join(old.split())
        assert "".join(piece["text"] for piece in pieces if piece["kind"] != "removed") == new
        assert all(one["kind"] != two["kind"] for one, two in pairwise(pieces))


def test_long_memories_are_compared_in_bounded_time(empty: Page) -> None:
    old, new = ("".join(f"{letter}{number} " for number in range(40_000)) for letter in "ab")
    pieces = empty.evaluate(DIFF, [old, new])
    assert [piece["kind"] for piece in pieces] == ["removed", "added"]
    blank = empty.evaluate(DIFF, [" " * 200_000, ""])
    assert len(blank) == 1


def test_a_step_is_described(empty: Page, tmp_path: Path) -> None:
    lines = [
        step(0, "A.", (0, 10), finish_reason="length"),
        {"type": "overflow", "prompt_sha256": "0", "error": "too long", "unusable": [usage(100)]},
        step(1, "A. B.", (10, 15), unusable=[usage(7)]),
        step(1, "A. B.", (15, 20), ignored="MEMORY"),
        step(2, "A. B.", (20, 30), unused=True),
        step(2, "A. B.", (20, 30), verdict=-1.26),
        step(2, "A. B. C.", (20, 30), enough=True, usage={**usage(2000), "cached_tokens": 1500}),
        step(None, "A. B. C.", None, seconds=125.0),
        {"type": "answer", "found": True, "answer": "C."},
    ]
    give(empty, write(tmp_path / "t.jsonl", header(), *lines))
    description = empty.locator("#step")
    expect(description).to_contain_text("Step 5 of 6")
    empty.keyboard.press("Home")
    for text in (
        "chunk 1 · memory changed · reply cut at its token budget",
        "chunk 2 · memory changed · part of a chunk that was split",
        "chunk 2 · memory unchanged · replied “MEMORY” · part of a chunk that was split",
        "chunk 3 · verdict -1.3 · memory unchanged · 10",
        "memory changed · asked once more · enough is known · 2,000 (1,500 cached) + 5 tokens",
        "the answer · 10 + 5 tokens · 2 min",
    ):
        expect(description).to_contain_text(text)
        empty.keyboard.press("ArrowRight")
    expect(empty.locator("#memory ins, #memory del")).to_have_count(0)
    empty.get_by_text("Figures and settings").click()
    expect(empty.locator("#totals")).to_contain_text("3, split: 1")
    expect(empty.locator("#totals")).to_contain_text("2,167, cached: 1,500")


def test_notes_that_are_read_like_chunks_are_not_taken_for_the_document(empty: Page, tmp_path: Path) -> None:
    raw = b"abcdefghijklmnopqrst"
    (tmp_path / "a.txt").write_bytes(raw)
    document = {"sha256": sha256(sha256(raw).digest()).hexdigest(), "sources": ["a.txt"]}
    lines = [step(0, "One.", (0, 10)), step(1, "Two.", (10, 20)), step(0, "Both.", (0, 9), source="notes")]
    trace = write(
        tmp_path / "t.jsonl", header(workflow="map_reduce", takes_notes=True, document=document), *lines
    )
    give(empty, trace, tmp_path / "a.txt")
    expect(empty.locator("#text")).to_contain_text("read notes")
    empty.keyboard.press("Home")
    expect(empty.locator("#text")).to_have_text("abcdefghij")
    empty.keyboard.press("ArrowRight")
    expect(empty.locator("#memory del")).to_have_count(0)  # each chunk is read with nothing in memory
    empty.keyboard.press("End")
    expect(empty.locator("#text")).to_contain_text("read notes")
    expect(empty.locator("#step")).to_contain_text("notes 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_is_accessible_and_nothing_sticks_out(
    viewed: Callable[..., Page], record: Callable[..., Path], empty: Page, scheme: str, width: int
) -> None:
    empty.set_viewport_size({"width": width, "height": 800})
    empty.emulate_media(color_scheme=scheme)
    _check_accessible(empty)
    page = viewed(record(problem="What did the goose hold? " + "x" * 300))
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.get_by_text("Figures and settings").click()
    expect(page.locator("#memory del")).to_have_count(1)
    _check_accessible(page)


def _check_accessible(page: Page) -> None:
    from axe_playwright_python import sync_playwright as axe

    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text("utf-8") + "\n;0")
    violations = page.evaluate("async () => (await axe.run()).violations")
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_control_is_reached_by_tab_and_keys_leave_fields_alone(
    viewed: Callable[..., Page], record: Callable[..., Path]
) -> None:
    page = viewed(record())
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(page.locator("#memory del")).to_have_count(1)
    controls = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        controls.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"file", "slider", "previous", "next", "changes", "memory", "text", "line 29"} <= controls
    before = page.locator("#step").text_content()
    page.locator("#text").focus()
    page.keyboard.press("End")  # scrolls the text, and stays at the step
    page.evaluate("() => new Promise(requestAnimationFrame)")  # in which a move would be drawn
    assert page.locator("#step").text_content() == before


def test_modules_share_no_names_and_put_no_markup_together() -> None:
    from memagent.server.page import bound_page, page_folder

    named = re.compile(r"^(?:export )?(?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
    names: list[str] = []
    for file in page_folder().glob("*.js"):
        code = file.read_text("utf-8")
        names += named.findall(code)
        assert not markup.search(code), file.name
    assert len(names) == len(set(names))
    head, tail = bound_page()
    assert not re.search(r"^(import|export) ", tail, re.MULTILINE) and tail.count("</script") == 1
    assert "src=" not in head + tail and 'href="page.css' not in head
