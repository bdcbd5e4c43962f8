"""Templates: their slots, their files, one pass of substitution, and what neutralise leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent import Message, Prompts, SettingsError, load_prompts
from memagent.prompts import GATED, OVERWRITE

UPDATE = "{problem}|{chunk}|{memory}"
ANSWER = "{problem}|{memory}"
PLAIN = Prompts(update=UPDATE, answer=ANSWER)


def content(messages: tuple[Message, ...]) -> str:
    (message,) = messages
    assert message.role == "user"
    return message.content


# Slots


@pytest.mark.parametrize(
    ("update", "answer", "said"),
    [
        ("{chunk}{memory}", ANSWER, r"the update template lacks \{problem\}$"),
        ("", ANSWER, r"the update template lacks \{chunk\}, \{memory\}, \{problem\}$"),
        ("{problem}{{chunk}}{memory}", ANSWER, r"the update template lacks \{chunk\}$"),
        (UPDATE, "{problem}", r"the answer template lacks \{memory\}$"),
        (
            UPDATE + "{chunks}",
            ANSWER,
            r"unknown \{chunks\}: its slots are .*; write \{\{word\}\} for a literal",
        ),
        (UPDATE, UPDATE, r"the answer template has unknown \{chunk\}"),
        (UPDATE + "{0}", ANSWER, r"unknown \{0\}"),
    ],
)
def test_slots_are_checked(update: str, answer: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Prompts(update=update, answer=answer)


def test_braces() -> None:
    prompts = Prompts(update="{{{problem}}} {{chunk}} {} { x } {{}} {chunk}{memory}", answer=ANSWER)
    assert content(prompts.for_update("P", "C", "M")) == "{P} {chunk} {} { x } {} CM"


def test_slots_are_filled_in_one_pass() -> None:
    values = ("{memory}{chunk}", "{problem} {{x}} {y}", "{chunk}{{problem}}")
    assert content(PLAIN.for_update(*values)) == "|".join(values)
    assert content(PLAIN.for_answer(values[0], values[2])) == f"{values[0]}|{values[2]}"


def test_a_slot_may_come_twice() -> None:
    prompts = Prompts(update=UPDATE + " {problem}", answer=ANSWER)
    assert content(prompts.for_update("P", "C", "M")) == "P|C|M P"


def test_an_empty_memory_has_a_stand_in() -> None:
    assert content(PLAIN.for_update("P", "C", "")) == "P|C|(empty)"
    assert content(replace(PLAIN, empty_memory="{nothing}").for_answer("P", "\x00")) == "P|{nothing}"


def test_a_system_prompt_comes_first_and_is_no_template() -> None:
    prompts = Prompts(update=UPDATE, answer=ANSWER, system="You read {slowly}.")
    system, user = prompts.for_update("P", "C", "M")
    assert system == Message("system", "You read {slowly}.")
    assert user == Message("user", "P|C|M")
    assert [message.role for message in prompts.for_answer("P", "M")] == ["system", "user"]


def test_bare_text_is_the_longer_prompt_without_its_slots() -> None:
    assert (
        Prompts("long {problem}{chunk}{memory}", "{problem}{memory}", "sys ", "none").bare_text
        == "sys long none"
    )
    assert Prompts(UPDATE, "longer than it is {problem}{memory}").bare_text == "longer than it is (empty)"


def test_the_fingerprint_is_of_every_template() -> None:
    variants = [
        PLAIN,
        replace(PLAIN, update=UPDATE + " "),
        replace(PLAIN, answer=ANSWER + " "),
        replace(PLAIN, system="S"),
        replace(PLAIN, empty_memory=""),
        GATED,
        OVERWRITE,
    ]
    assert len({prompts.fingerprint for prompts in variants}) == len(variants)
    assert replace(PLAIN).fingerprint == PLAIN.fingerprint
    # A journal may be resumed by another version only while this stays: change it knowingly.
    assert PLAIN.fingerprint == "384bacf04efdf0c8"


# Files


def test_templates_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.toml"
    path.write_text(
        'system = "Read."\nempty_memory = "nichts"\nanswer = "{problem}|{memory}"\n'
        'update = """\n{problem}|{chunk}|{memory}"""\n',
        "utf-8",
    )
    expected = Prompts(update=UPDATE, answer=ANSWER, system="Read.", empty_memory="nichts")
    assert load_prompts(path) == expected == load_prompts(str(path))


GOOD = f"update = '{UPDATE}'\nanswer = '{ANSWER}'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "sytem = 'x'", "unknown key 'sytem'; known: answer, empty_memory, system, update"),
        (GOOD + "system = 3", "system must be text, not int"),
        (GOOD + "[update.x]", "cannot be read"),
        (f"update = '{UPDATE}'", "the key 'answer' is missing"),
        ("", "the key 'update' is missing"),
        (f"update = '{{chunk}}'\nanswer = '{ANSWER}'", r"the update template lacks \{memory\}, \{problem\}"),
        ("update = '", "cannot be read"),
        ("a = " + "[" * 5000, "cannot be read"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prompts.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said) as refused:
        load_prompts(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["missing.toml", ".", "latin.toml", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "latin.toml").write_bytes(b"update = '\xe9'")
    with pytest.raises(SettingsError, match=r"template file .* cannot be read"):
        load_prompts(tmp_path / name)


# Ours


@pytest.mark.parametrize("prompts", [GATED, OVERWRITE])
def test_what_differs_between_questions_comes_after_the_chunk(prompts: Prompts) -> None:
    """So that a server with a prefix cache reads a chunk once for all questions."""
    one, two = (content(prompts.for_update(problem, "the chunk", "M")) for problem in ("Who?", "Why?"))
    same = next(place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert "the chunk" in one[:same]


def test_our_workflows_say_their_markers() -> None:
    assert "UNCHANGED" in GATED.update
    assert "ENOUGH" in GATED.update
    assert "UNCHANGED" not in OVERWRITE.update
    assert GATED.answer == OVERWRITE.answer


# What neutralise leaves alone, and what it takes

ORDINARY = [
    *(
        "a < b",
        "a<b",
        "a <b> c",
        "x < s > 2",
        "i<chunk;i++",
        "if used < memory:",
        "for (i = 0; i < chunk; i++)",
    ),
    *("List<int>", "Map<String, List<Item>>", "std::vector<std::pair<int, int>> v;", "fn f<T: Copy>(x: &T)"),
    *(
        "<div class='a'>text</div>",
        "<strong>s</strong>",
        "<span>",
        "<problems>",
        "<memory_bank>",
        "</memory_bank>",
        "</memoryless>",
        "<chunk-list/>",
    ),
    *("</div>", "<br/>", "<!-- note -->", "<?xml version='1.0'?>", "<https://example.org>", "<stdio.h>"),
    *("f <| x", "a <|> b", "x |> f", "a || b", "cat <<EOF", "1 << 3", "p <- 2", "<=>", "<|", "|<"),
    *("{memory} {problem} {chunk} {{x}}", "[1]", "[INSTALL]", "args[INST_1]", "[x](y)", "T_{<s}"),
    *("P(x) < 0.05 and y > 3", "𝑎 < 𝑏 ≤ c", "UNCHANGED\nENOUGH", "e = mc²", "“quotes” — and … dots"),
    *(
        "tab\tand\nline\r\nends\x85\u2028",
        "שלום \u200fעולם",
        "नमस्\u200dते",
        "👩🏽\u200d💻",
        "e\u0301",
        "soft\u00adhyphen",
    ),
]


@pytest.mark.parametrize("text", ORDINARY)
@pytest.mark.parametrize("prompts", [GATED, OVERWRITE])
def test_ordinary_text_stays(prompts: Prompts, text: str) -> None:
    assert prompts.neutralise(text) == text
    assert prompts.neutralise(f"before {text} after") == f"before {text} after"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a\x00b\x07c\x1bd\x7fe\x9ff", "abcdef"),
        ("page\x0cpage\x0bline", "page\npage\nline"),
        ("a\u202eb\u2066c\u2069d", "abcd"),
        ("hi\U000e0049\U000e0067 there", "hi there"),
        ("a\ud800b\udfffc", "a\ufffdb\ufffdc"),
        ("<\x00/memory>", "‹/memory>"),
        ("<<SYS>>x<</SYS>>", "‹<SYS>>x‹</SYS>>"),
        ("[INST] x [/INST]", "‹INST] x ‹/INST]"),
        ("<s>x</s>", "‹s>x‹/s>"),
    ],
)
def test_what_is_taken(text: str, safe: str) -> None:
    assert GATED.neutralise(text) == safe


@given(st.text(st.sampled_from(list("<>/|\\ \n\u200bsSmemory[]INST＜／ｍ{}\x00")), max_size=60) | st.text())
def test_twice_is_once(text: str) -> None:
    once = GATED.neutralise(text)
    assert GATED.neutralise(once) == once


@given(st.text(st.characters(categories=["L", "N", "P", "Z", "S", "M"], exclude_characters="<＜﹤[")))
def test_text_without_brackets_stays(text: str) -> None:
    assert GATED.neutralise(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "<" + " " * 100_000,
            "<" * 100_000,
            "< " * 50_000,
            "</" + "\u200b" * 100_000,
            ("<" + " " * 300) * 300,
        ),
        *(
            "<memory " * 12_000,
            "<memory" + " x" * 50_000,
            ("<memory" + " x" * 300) * 200,
            "<" + "a" * 100_000,
        ),
        *("<m" * 50_000, "<memory" + "/ " * 50_000, "[" * 100_000, "<" + "/" * 100_000 + " " * 100_000),
    ],
    ids=range(13),
)
def test_no_text_makes_it_slow(text: str) -> None:
    """A pattern that goes back over its repeats would take hours here."""
    assert len(GATED.neutralise(text)) == len(text)


def test_ascii_is_neutralised_as_all_text_is() -> None:
    """Plain ASCII goes a faster way to the same end."""
    ascii_text = "".join(map(chr, range(128)))
    without_brackets = ascii_text.replace("<", "").replace("[", "")
    assert GATED.neutralise(without_brackets) == GATED.neutralise(without_brackets + "é")[:-1]
