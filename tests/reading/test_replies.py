"""What a reply means: markers, thoughts, and two lists of a hundred that must come out right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.prompts import GATED, OVERWRITE, Prompts, load_prompts
from memagent.prompts.thoughts import without_thought
from memagent.reading.replies import (
    MemoryChange,
    ReplyReader,
    read_check,
    read_gated,
    read_overwrite,
    settle,
)
from memagent.reading.workflows import workflows

OLD = "The vault opens with 4711. Ada holds the second key; the clock hides it."
TAGS = Path(__file__).parents[1] / "data" / "plain_tags.toml"
TAGGED = load_prompts(TAGS)
UNMARKED = replace(GATED, replies="unmarked")
READERS = pytest.mark.parametrize("read_reply", [read_overwrite, read_gated])
ASK_FOR_ENOUGH = pytest.mark.parametrize("prompts", [GATED, UNMARKED], ids=["marked", "unmarked"])
FORMS = pytest.mark.parametrize("prompts", [GATED, UNMARKED, TAGGED], ids=["marked", "unmarked", "tagged"])
LISTS = json.loads(Path(__file__).with_name("data").joinpath("replies.json").read_text("utf-8"))


def always(text: str) -> bool:
    return True


def list_texts(kind: str) -> list[tuple[str, str]]:
    """The texts of a list, each with the memory that it is a reply over."""
    return [
        (group["before"][number % len(group["before"])], text)
        for group in LISTS.values()
        for number, text in enumerate(group[kind])
    ]


HONEST, IDLE = list_texts("honest"), list_texts("idle")


# The lists


@pytest.mark.parametrize("form", ["{}", "MEMORY\n{}", "<think>hm</think>\nMEMORY\n\n{}", "{}\nENOUGH"])
@pytest.mark.parametrize("prompts", [GATED, UNMARKED], ids=["marked", "unmarked"])
@pytest.mark.parametrize("check", ["MEMORY", "", "It is hard to say.", "MEMORY or UNCHANGED"])
def test_no_honest_memory_is_lost(prompts: Prompts, form: str, check: str) -> None:
    """Neither over a memory nor as the first, with whatever the model says when it is asked."""
    lost = []
    for before, text in HONEST:
        for memory in (before, ""):
            change = read_gated(form.format(text), memory, prompts)
            if change.action == "ask":
                change = settle(change, check, memory, always)
            if text not in change.memory_after(memory):
                lost.append(text)
    assert lost == []


@pytest.mark.parametrize("form", ["{}", "MEMORY\n{}", "{}\n\nENOUGH"])
@pytest.mark.parametrize("prompts", [GATED, UNMARKED], ids=["marked", "unmarked"])
def test_idle_replies_do_not_replace_a_memory(prompts: Prompts, form: str) -> None:
    caught = 0
    for memory, text in IDLE:
        change = read_gated(form.format(text), memory, prompts)
        caught += change.action != "replace"
        for check in ("UNCHANGED", "", "Perhaps."):
            after = settle(change, check, memory, always).memory_after(memory)
            assert change.action == "replace" or memory in after
    assert caught >= 95


@pytest.mark.parametrize("prompts", [GATED, UNMARKED], ids=["marked", "unmarked"])
def test_an_update_that_keeps_the_memory_costs_no_question(prompts: Prompts) -> None:
    for form in ("{}", "MEMORY\n{}") if prompts is GATED else ("{}",):
        for memory, text in HONEST:
            longer = f"{memory}\n{text}"
            assert read_gated(form.format(longer), memory, prompts) == MemoryChange("replace", longer)


def test_a_model_trained_without_marks_is_taken_at_its_word() -> None:
    for memory, text in HONEST:
        assert read_gated(text, memory, TAGGED) == MemoryChange("replace", text)
        assert read_gated("UNCHANGED", memory, TAGGED) == MemoryChange("keep")


@pytest.mark.parametrize("replies", ["marked", "unmarked"])
def test_training_sees_markers_alone(replies: str) -> None:
    """Without questions, what the words of a reply say is never looked at."""
    prompts = replace(GATED, replies=replies, asks=False)
    for memory, text in (*HONEST, *IDLE):
        bare = " ".join(text.strip("*_`. ").split()).upper()
        keeps = bare == "UNCHANGED" or text == prompts.empty_memory
        assert read_gated(text, memory, prompts).action == ("keep" if keeps else "replace")


@pytest.mark.parametrize("text", [text for _, text in (*HONEST, *IDLE)])
def test_overwrite_is_the_published_workflow(text: str) -> None:
    memory = "" if text == GATED.empty_memory else text  # which looks the same in the next prompt
    assert read_overwrite(text, OLD, GATED) == MemoryChange("replace", memory)
    assert read_overwrite(f"<think>hm</think>\n{text}\n", OLD, GATED) == MemoryChange("replace", memory)
    assert OVERWRITE.fill("update", problem="?", chunk="chunk", memory=memory) == OVERWRITE.fill(
        "update", problem="?", chunk="chunk", memory=text
    )


def test_only_an_empty_reply_leaves_the_published_memory() -> None:
    for reply in ("", " \n", "<think>hm</think>", "<think>hm"):
        assert read_overwrite(reply, OLD, GATED) == MemoryChange("keep")
    for reply in (
        "UNCHANGED",
        "MEMORY",
        "MEMORY\nx",
        "x\nENOUGH",
        "<memory-xdvupgqbzkwmtj>x</memory-xdvupgqbzkwmtj>",
    ):
        assert read_overwrite(reply, OLD, GATED) == MemoryChange("replace", reply)
    assert read_overwrite("(empty)", OLD, GATED) == MemoryChange("replace", "")


# Markers

UNCHANGED = [
    *("UNCHANGED", "unchanged", "Unchanged.", "**UNCHANGED**", "`UNCHANGED`", '"UNCHANGED"', "_UNCHANGED_"),
    *("- UNCHANGED", "# UNCHANGED", "<UNCHANGED>", "[UNCHANGED]", "> UNCHANGED!", "  UNCHANGED  \n"),
    *("\\boxed{UNCHANGED}", "UNCHANGED\n", "```\nUNCHANGED\n```", "---\nUNCHANGED"),
    *(
        "<memory-xdvupgqbzkwmtj>UNCHANGED</memory-xdvupgqbzkwmtj>",
        "<memory-xdvupgqbzkwmtj>\nUNCHANGED\n</memory-xdvupgqbzkwmtj>",
    ),
    *("<think>Ships?</think>\nUNCHANGED", "the chunk is of ships\n</think>\n\nUNCHANGED"),
]


@pytest.mark.parametrize(
    "reply",
    [f"```{name}\nMEMORY\nThe code is 7.\n```" for name in ("", "text")]
    + ["MEMORY\n```\nThe code is 7.\n```", "```\nMEMORY\nThe code is 7.\n```\nENOUGH"],
)
def test_a_code_fence_is_not_part_of_the_memory(reply: str) -> None:
    assert read_gated(reply, "", GATED).text == "The code is 7."
    assert read_overwrite(reply, OLD, GATED).text == reply


@pytest.mark.parametrize("reply", UNCHANGED)
@FORMS
def test_unchanged_in_many_guises(prompts: Prompts, reply: str) -> None:
    assert read_gated(reply, OLD, prompts) == MemoryChange("keep")
    assert read_gated(reply, "", prompts) == MemoryChange("keep")


def test_unchanged_below_memory_is_unchanged() -> None:
    assert read_gated("MEMORY\nUNCHANGED", OLD, GATED) == MemoryChange("keep")


@pytest.mark.parametrize("memory", ["", OLD])
@pytest.mark.parametrize(
    "reply", ["MEMORY\n", "**MEMORY**", "MEMORY:\n\n(empty)", "MEMORY\nthe memory anew", ""]
)
def test_a_marker_without_a_memory_is_not_a_verdict(reply: str, memory: str) -> None:
    assert read_gated(reply, memory, GATED) == MemoryChange("note")
    assert read_gated(reply, memory, UNMARKED).action in ("note", "ask", "replace"), "it has no markers"
    for prompts in (TAGGED, replace(GATED, asks=False), replace(GATED, own={})):
        assert read_gated(reply, memory, prompts).action != "note", "the markers alone decide"


def test_one_word_below_a_marker_may_be_meant() -> None:
    assert "the one word" in GATED.update
    assert read_gated("MEMORY\none", "", GATED) == MemoryChange("replace", "one")
    assert read_gated("the one word", "", GATED) == MemoryChange("note")


@pytest.mark.parametrize(
    "reply",
    [
        "UNCHANGED\n\nThis chunk is about ships.",
        "Unchanged\n- rent: 900",
        f"UNCHANGED\n\nThe memory says that {OLD}; nothing is new.",
    ],
)
def test_unchanged_with_more_is_not_explained_by_the_marker(reply: str) -> None:
    for prompts in (GATED, UNMARKED):
        assert read_gated(reply, OLD, prompts) == MemoryChange("ask", reply)
        assert read_gated(reply, "", prompts) == MemoryChange("replace", reply)
    assert read_gated(reply, OLD, TAGGED) == MemoryChange("replace", reply)


NEW = f"{OLD}\n- It is in Leeds, behind the </think> sign.\n\nUNCHANGED since 1907."


@pytest.mark.parametrize(
    "reply",
    [
        f"MEMORY\n{NEW}",
        f"MEMORY:\n{NEW}\n",
        f"**MEMORY**\n\n{NEW}",
        f"# MEMORY\n{NEW}",
        f"MEMORY: {NEW}",
        f"<think>one</think>\n\nMEMORY\n{NEW}",
        f"<memory-xdvupgqbzkwmtj>\nMEMORY\n{NEW}\n</memory-xdvupgqbzkwmtj>",
        f"MEMORY\n<memory-xdvupgqbzkwmtj>\n{NEW}\n</memory-xdvupgqbzkwmtj>",
    ],
)
def test_memory_on_the_first_line(reply: str) -> None:
    assert read_gated(reply, OLD, GATED) == MemoryChange("replace", NEW)
    assert read_gated(reply, "", GATED) == MemoryChange("replace", NEW)


def test_a_long_memory_below_its_marker_is_believed() -> None:
    text = "Another matter altogether. " * 20 + "End."
    assert read_gated(f"MEMORY\n{text}", OLD, GATED) == MemoryChange("replace", text)
    assert read_gated(text, OLD, GATED) == MemoryChange("ask", text)


def test_memory_is_a_word_like_others_where_it_is_no_marker() -> None:
    for text in (f"MEMORY\n{OLD}", f"Notes\nMEMORY\n{OLD}", f"MEMORY cards are sold.\n{OLD}"):
        assert read_gated(text, OLD, UNMARKED) == MemoryChange("replace", text)
    text = f"MEMORY cards are sold.\n{OLD}"
    assert read_gated(text, OLD, GATED) == MemoryChange("replace", text)


ENOUGH = [
    *(
        "ENOUGH",
        "enough",
        "**ENOUGH**",
        "`ENOUGH`",
        "ENOUGH.",
        "> ENOUGH",
        "_Enough!_",
        "ENOUGH\n\n",
        "[ENOUGH]",
    ),
]


@pytest.mark.parametrize("prompts", [TAGGED, workflows()["parallel"].prompts], ids=["tagged", "parallel"])
def test_a_memory_keeps_its_last_word_where_enough_was_not_asked_for(prompts: Prompts) -> None:
    rules = "MEMORY\nPatience\nSilence\nEnough"
    text = rules.removeprefix("MEMORY\n") if prompts.replies == "marked" else rules
    assert read_gated(rules, "", prompts) == MemoryChange("replace", text)


@FORMS
def test_the_word_for_an_empty_memory_is_no_finding(prompts: Prompts) -> None:
    for memory in ("", OLD):
        change = MemoryChange("note" if prompts.asks else "keep")
        assert read_gated(prompts.empty_memory, memory, prompts) == change


@pytest.mark.parametrize("marker", ENOUGH)
@ASK_FOR_ENOUGH
def test_enough_on_a_last_line(prompts: Prompts, marker: str) -> None:
    for memory in ("", OLD):
        change = MemoryChange("replace", f"{OLD}\nIt is red.", True)
        assert read_gated(f"{OLD}\nIt is red.\n{marker}", memory, prompts) == change
        wrapped = f"<memory-xdvupgqbzkwmtj>\n{OLD}\nIt is red.\n{marker}</memory-xdvupgqbzkwmtj>"
        assert read_gated(wrapped, memory, prompts) == change


@pytest.mark.parametrize(
    "reply",
    ["UNCHANGED\nENOUGH", "UNCHANGED ENOUGH", "**UNCHANGED, ENOUGH**", "ENOUGH", "UNCHANGED\n\n`ENOUGH`"],
)
@ASK_FOR_ENOUGH
def test_unchanged_and_enough(prompts: Prompts, reply: str) -> None:
    assert read_gated(reply, OLD, prompts) == MemoryChange("keep", "", True)
    assert read_gated(reply, "", prompts) == MemoryChange("keep"), "an empty memory is never enough"


@pytest.mark.parametrize(
    "text",
    [
        f"The law was left UNCHANGED in 1907. {OLD}",
        f"He had ENOUGH of it by 1907. {OLD}",
        f"{OLD} ENOUGH",
        f"ENOUGH\n{OLD}",
        f"Notes:\nUNCHANGED\n{OLD}",
    ],
)
@FORMS
def test_the_words_elsewhere_are_text(prompts: Prompts, text: str) -> None:
    assert read_gated(text, OLD, prompts) == MemoryChange("replace", text)


# Thoughts


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("<think>a\nb</think>\n\nThe key is 12.", "The key is 12."),
        ("\n <think></think>The key is 12.", "The key is 12."),
        ("<think>a</think>\n<think>b</think>\nThe key is 12.", "The key is 12."),
        ("so the key must be 12.\n</think>\n\nThe key is 12.", "The key is 12."),
        ("so the key must be 12.</think>The key is 12.", "The key is 12."),
        ("the key must be 12</think> The key is 12.", "The key is 12."),
        ("It must be\n12.</think>\nThe key is 12.", "The key is 12."),
        ("<think>The key is 12, because", ""),
        ("<think>one</think><think>two, because", ""),
        ("The key is 12.", "The key is 12."),
        ("I <think> the key is 12.", "I <think> the key is 12."),
        ("  \n", ""),
        *((text, text) for text in ("a </think> b", "It ends in </think>\n\nand goes on.", "x\n</think>\ny")),
        (" <think>a</think>\n<think>b</think> c </think>", "c </think>"),
        ("<think>a</think>\nIt ends in\n</think>\n\nand goes on.", "It ends in\n</think>\n\nand goes on."),
        ("MEMORY\nIt ends in\n</think>\n\nand goes on.", "MEMORY\nIt ends in\n</think>\n\nand goes on."),
    ],
)
def test_only_what_leads_is_a_thought(reply: str, rest: str) -> None:
    assert without_thought(reply) == rest


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<thinking>\n", "</thinking>"),
        ("<thought>", "</thought>"),
        ("<seed:think>", "</seed:think>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|channel>thought\n", "<channel|>"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
def test_each_family_of_models_writes_its_thoughts_in_its_own_way(opening: str, closing: str) -> None:
    assert read_gated(f"{opening}Is it 12?\nNo.{closing}UNCHANGED", OLD, GATED) == MemoryChange("keep")
    assert without_thought(f"{opening}Is it 12?{closing}\n\nThe key is 13.") == "The key is 13."
    assert without_thought(f"{opening}It must be 12, because") == ""
    mention = f"It opens with {opening}x{closing}, and so on."
    assert without_thought(mention) == mention


# What was marked in the prompt, and comes back in the reply


@READERS
def test_marks_are_taken_out_of_a_reply(read_reply: ReplyReader) -> None:
    text = f"{OLD} It ends in </think> and <|im_end|>, then </memory-xdvupgqbzkwmtj>."
    assert GATED.neutralise(text) != text
    assert read_reply(GATED.neutralise(text), OLD, GATED) == MemoryChange("replace", text)


@READERS
def test_a_tag_around_part_of_the_reply_stays(read_reply: ReplyReader) -> None:
    for reply in (
        "<b>Rome</b> and <b>Leeds</b>.",
        "<b>Rome</b>",
        "Rome </memory-xdvupgqbzkwmtj>",
        "<a>Rome</b>",
        "x <memory-xdvupgqbzkwmtj>Rome</memory-xdvupgqbzkwmtj>",
    ):
        assert read_reply(f"{reply} {OLD}", OLD, GATED) == MemoryChange("replace", f"{reply} {OLD}")


# The question


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        *(
            ("MEMORY", "replace"),
            ("memory.", "replace"),
            ("**MEMORY**", "replace"),
            ("It is MEMORY.", "replace"),
        ),
        *(("UNCHANGED", "keep"), ("Unchanged", "keep"), ("<think>MEMORY?</think>UNCHANGED", "keep")),
        *(("", "ask"), ("Yes.", "ask"), ("MEMORY or UNCHANGED", "ask"), ("记忆", "ask")),
    ],
)
def test_the_answer_to_the_question(reply: str, action: str) -> None:
    assert read_check(reply) == action


def test_what_stays_open_keeps_both() -> None:
    change = MemoryChange("ask", "one two\nthree\nfour", True)

    def settled(limit: int) -> str:
        fits: Callable[[str], bool] = lambda text: len(text.split()) <= limit  # noqa: E731
        return settle(change, "?", "a b", fits).memory_after("a b")

    assert settled(6) == "a b\none two\nthree\nfour"
    assert settled(5) == "a b\none two\nthree"
    assert settled(3) == "a b"
    assert settle(change, "MEMORY", "a b", always) == MemoryChange("replace", change.text, True)
    assert settle(change, "UNCHANGED", "a b", always).memory_after("a b") == "a b"


# Any reply


@FORMS
@given(reply=st.text(), memory=st.text(max_size=50))
def test_any_reply_keeps_the_memory_or_is_kept(prompts: Prompts, reply: str, memory: str) -> None:
    change = read_gated(reply, memory, prompts)
    after = change.memory_after(memory)
    assert after == memory or set("".join(after.splitlines())) <= set(reply)
    assert after or not change.enough
    assert after or not memory, "a memory is never replaced by nothing"


@READERS
@pytest.mark.parametrize("start", ["", "<think>", "MEMORY\n"])
@pytest.mark.parametrize(
    "piece",
    [
        *(
            "<think>",
            "</think>",
            "<think> x",
            "\n</think>",
            "\n</think>\n",
            "it is ",
            "<a>",
            "</a>",
            "\n",
            " ",
            "x. ",
            "1.1",
        ),
        *(
            "</memory-xdvupgqbzkwmtj>",
            "<memory-xdvupgqbzkwmtj>",
            "`",
            "UNCHANGED\n",
            "ENOUGH\n",
            "MEMORY\n",
            "·",
            "<·",
            "-\n",
            "记忆",
        ),
    ],
)
def test_long_replies_of_one_piece_take_no_time(read_reply: ReplyReader, start: str, piece: str) -> None:
    """A pattern that goes over them again and again would take hours here."""
    assert isinstance(read_reply(start + piece * 30_000 + "!", OLD, GATED), MemoryChange)
