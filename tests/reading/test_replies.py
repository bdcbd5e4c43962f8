"""What a reply means: the markers in many guises, thoughts, and what must never become the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.reading.replies import ReplyReader, read_gated, read_rewrite, without_thought

OLD = "The vault opens with 4711."
READERS = pytest.mark.parametrize("read_reply", [read_rewrite, read_gated])

UNCHANGED = [
    *("UNCHANGED", "unchanged", "Unchanged.", "**UNCHANGED**", "`UNCHANGED`", '"UNCHANGED"', "_UNCHANGED_"),
    *(
        "- UNCHANGED",
        "# UNCHANGED",
        "<UNCHANGED>",
        "[UNCHANGED]",
        "> UNCHANGED!",
        "  UNCHANGED  \n",
        "\\boxed{UNCHANGED}",
    ),
    *("UNCHANGED\n", "UNCHANGED\n\nThis chunk is about ships.", "```\nUNCHANGED\n```", "---\nUNCHANGED"),
    *(
        "Memory: UNCHANGED",
        "**Memory:** UNCHANGED",
        "The memory is UNCHANGED.",
        "Reply: UNCHANGED\n\nThis chunk is about ships.",
    ),
    *("<memory>UNCHANGED</memory>", "<memory>\nUNCHANGED\n</memory>", "<think>Ships?</think>\nUNCHANGED"),
    *("the chunk is of ships</think>\n\nUNCHANGED", "<think>a</think> <think>b</think>UNCHANGED"),
]
ENOUGH = [
    "ENOUGH",
    "enough",
    "**ENOUGH**",
    "`ENOUGH`",
    "ENOUGH.",
    "> ENOUGH",
    "_Enough!_",
    "ENOUGH\n\n",
    "[ENOUGH]",
]


@pytest.mark.parametrize("reply", UNCHANGED)
def test_unchanged_in_many_guises(reply: str) -> None:
    assert read_gated(reply, OLD) == (OLD, False)
    assert read_gated(reply, "") == ("", False)


@pytest.mark.parametrize("marker", ENOUGH)
def test_enough_on_a_last_line(marker: str) -> None:
    assert read_gated(f"The key is 12.\nIt is red.\n{marker}", OLD) == ("The key is 12.\nIt is red.", True)
    assert read_gated(f"<memory>\nThe key is 12.\n</memory>\n{marker}", OLD) == ("The key is 12.", True)
    assert read_gated(f"<memory>\nThe key is 12.\n{marker}</memory>", OLD) == ("The key is 12.", True)


@pytest.mark.parametrize(
    "reply",
    ["UNCHANGED\nENOUGH", "UNCHANGED ENOUGH", "**UNCHANGED, ENOUGH**", "ENOUGH", "UNCHANGED\n\n`ENOUGH`"],
)
def test_unchanged_and_enough(reply: str) -> None:
    assert read_gated(reply, OLD) == (OLD, True)
    assert read_gated(reply, "") == ("", False)


@pytest.mark.parametrize(
    "reply", ["", "ENOUGH", "No new information.\nENOUGH", "<think>hm</think>\nENOUGH", "(empty)\nENOUGH"]
)
def test_an_empty_memory_is_never_enough(reply: str) -> None:
    assert read_gated(reply, "") == ("", False)


@pytest.mark.parametrize(
    "text",
    [
        "The law was left UNCHANGED in 1907.",
        "He had ENOUGH of it by 1907.",
        "The key is 12. ENOUGH",
        "ENOUGH\nThe key is 12.",
        "Notes:\nUNCHANGED\nThe key is 12.",
    ],
)
def test_the_words_elsewhere_are_text(text: str) -> None:
    assert read_gated(text, OLD) == (text, False)


def test_the_workflow_without_markers_knows_none() -> None:
    assert read_rewrite("The key is 12.\nENOUGH", OLD) == ("The key is 12.\nENOUGH", False)
    assert read_rewrite("UNCHANGED", OLD) == (OLD, False)


# Thoughts


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("<think>a\nb</think>\n\nThe key is 12.", "The key is 12."),
        ("\n <think></think>The key is 12.", "The key is 12."),
        ("<think>a</think>\n<think>b</think>\nThe key is 12.", "The key is 12."),
        ("so the key must be 12.\n</think>\n\nThe key is 12.", "The key is 12."),
        ("<think>The key is 12, because", ""),
        ("<think>one</think><think>two, because", ""),
        ("reasons</think>", ""),
        ("The key is 12.", "The key is 12."),
        ("I <think> the key is 12.", "I <think> the key is 12."),
        ("  \n", ""),
    ],
)
@READERS
def test_thought_is_no_memory(read_reply: ReplyReader, reply: str, rest: str) -> None:
    assert without_thought(reply) == rest
    assert read_reply(reply, OLD) == (rest or OLD, False)


# What talks about the memory instead of being one


@pytest.mark.parametrize(
    "reply",
    [
        "The existing answer (4711) remains relevant.",
        "The answer remains the same as before.",
        "No mention of Alice.",
        "No mention of Alice.\n---\n✅",
        "The document does not mention Alice, but the memory stays as it is.",
        "The chunk is about a storm in 1807 but does not provide anything useful; the memory is unchanged.",
        "(empty)",
        "***",
        "✅",
        "\n\n",
    ],
)
@READERS
def test_nothing_new(read_reply: ReplyReader, reply: str) -> None:
    assert read_reply(reply, OLD) == (OLD, False)


@pytest.mark.parametrize(
    "reply",
    [
        "The document is valid until 5 May 2031.",
        "The answer is correct: Paris.",
        "The existing answer (4712) remains relevant.",
        "The answer remains the same: James Ryder.",
        "The answer is the same man who sold the goose: James Ryder.",
        "The answer is as was told: Henry Baker lost the hat.",
        "The section does not name the king, but the city is Rome.",
        "No new information.\nThe vault stands in Leeds.",
        "There is no other information about the vault, see Smith. " * 10,
    ],
)
@READERS
def test_a_name_or_number_of_its_own_makes_a_memory(read_reply: ReplyReader, reply: str) -> None:
    assert read_reply(reply, OLD) == (reply.strip(), False)


@READERS
def test_a_tag_around_part_of_the_reply_stays(read_reply: ReplyReader) -> None:
    for reply in (
        "<b>Rome</b> and <b>Leeds</b>.",
        "Rome </memory>",
        "<a>Rome</b>",
        "x <memory>Rome</memory>",
    ):
        assert read_reply(reply, OLD) == (reply, False)


@READERS
@given(reply=st.text(), memory=st.text(max_size=50))
def test_any_reply_gives_the_old_memory_or_part_of_itself(
    read_reply: ReplyReader, reply: str, memory: str
) -> None:
    after, enough = read_reply(reply, memory)
    assert after == memory or set("".join(after.splitlines())) <= set(reply)
    assert after or not enough


@READERS
@pytest.mark.parametrize("start", ["", "<a>", "<think>", "x "])
@pytest.mark.parametrize(
    "piece",
    [
        *(
            "<think>",
            "</think>",
            "it is ",
            "no ",
            "keep it ",
            "<a>",
            "</a>",
            "\n",
            " ",
            "x. ",
            "; but ",
            "1,",
            "1.1",
        ),
        *("</memory>", "memory,is,not,", "no,information", "nothing,is,", "keep,it,as", "`", "UNCHANGED\n"),
    ],
)
def test_long_replies_of_one_piece_take_no_time(read_reply: ReplyReader, start: str, piece: str) -> None:
    """A pattern that goes over them again and again would take hours here."""
    assert isinstance(read_reply(start + piece * 30_000 + "!", OLD)[0], str)
