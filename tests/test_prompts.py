"""Templates: their slots, their files, one pass of substitution, and what neutralise leaves alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent import Message, Prompts, SettingsError, load_prompts, text_document
from memagent.prompts import ENOUGH, GATED, MEMORY, OVERWRITE, UNCHANGED, prompts_from

UPDATE = "{problem}|{chunk}|{memory}"
ANSWER = "{problem}|{memory}"
PLAIN = Prompts(update=UPDATE, answer=ANSWER)
TAGS = Path(__file__).parent / "data" / "plain_tags.toml"
TAGGED = load_prompts(TAGS)


def content(messages: tuple[Message, ...]) -> str:
    (message,) = messages
    assert message.role == "user"
    return message.content


# Slots


@pytest.mark.parametrize(
    ("update", "answer", "message"),
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
def test_slots_are_checked(update: str, answer: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Prompts(update=update, answer=answer)


def test_braces() -> None:
    prompts = Prompts(update="{{{problem}}} {{chunk}} {} { x } {{}} {chunk}{memory}", answer=ANSWER)
    assert content(prompts.fill("update", problem="P", chunk="C", memory="M")) == "{P} {chunk} {} { x } {} CM"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{{"a": {"b": 1}}', '{{"a": {"b": 1}}'),
        ("}}", "}}"),
        ("青}} {{", "青}}"),
        ("{{a}} {{b", "{{a}} {{"),
        ("{{b}", "{{"),
        ("{{}}}}", "{{}}}}"),
    ],
)
def test_a_doubled_brace_without_its_counterpart_is_refused(text: str, at: str) -> None:
    """It would lose a brace without a word."""
    with pytest.raises(SettingsError, match=f"the answer template has {re.escape(repr(at))}: a doubled "):
        Prompts(UPDATE, f"{text}\n{ANSWER}")


def test_braces_that_are_all_doubled_or_all_single_are_taken_as_they_are_meant() -> None:
    single = '{"a": {"b": 1} } :-} {'
    for text, meant in (('{{"a": {{"b": 1}}}}', '{"a": {"b": 1}}'), (single, single)):
        answer = Prompts(UPDATE, f"{text} {ANSWER}").fill("answer", problem="P", memory="M")
        assert content(answer) == f"{meant} P|M"


@pytest.mark.parametrize("slot", ["problem", "chunk", "memory", "reply", "mark"])
def test_a_slot_where_nothing_is_filled_in_is_refused(slot: str) -> None:
    for key in ("system", "empty_memory"):
        table = {"update": UPDATE, "answer": ANSWER, key: f"Here: {{{slot}}}"}
        with pytest.raises(
            SettingsError, match=f"^mine: {key} has \\{{{slot}\\}}, which would stay as it is"
        ):
            prompts_from(table, "mine")


def test_slots_are_filled_in_one_pass() -> None:
    values = ("{memory}{chunk}", "{problem} {{x}} {y}", "{chunk}{{problem}}")
    assert content(
        PLAIN.fill("update", **dict(zip(("problem", "chunk", "memory"), values, strict=True)))
    ) == "|".join(values)
    assert content(PLAIN.fill("answer", problem=values[0], memory=values[2])) == f"{values[0]}|{values[2]}"


def test_a_slot_may_come_twice() -> None:
    prompts = Prompts(update=UPDATE + " {problem}", answer=ANSWER)
    assert content(prompts.fill("update", problem="P", chunk="C", memory="M")) == "P|C|M P"


def test_an_empty_memory_has_a_stand_in() -> None:
    assert content(PLAIN.fill("update", problem="P", chunk="C", memory="")) == "P|C|(empty)"
    assert (
        content(replace(PLAIN, empty_memory="{nothing}").fill("answer", problem="P", memory=""))
        == "P|{nothing}"
    )


def test_a_system_prompt_comes_first_and_is_not_a_template() -> None:
    prompts = Prompts(update=UPDATE, answer=ANSWER, system="You read {slowly}.")
    system, user = prompts.fill("update", problem="P", chunk="C", memory="M")
    assert system == Message("system", "You read {slowly}.")
    assert user == Message("user", "P|C|M")
    assert [message.role for message in prompts.fill("answer", problem="P", memory="M")] == ["system", "user"]


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
        replace(PLAIN, workflow="gated"),
        replace(PLAIN, replies="marked"),
        replace(PLAIN, asks=False),
        replace(PLAIN, check=PLAIN.check + " "),
        GATED,
        OVERWRITE,
    ]
    assert len({prompts.fingerprint for prompts in variants}) == len(variants)
    assert PLAIN.for_document("d").fingerprint == PLAIN.fingerprint


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


def test_templates_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "prompts.toml"
    path.write_text("update = '{problem} {chunk} {memory}'\nanswer = '{problem} {memory}'\n", "utf-8-sig")
    assert load_prompts(path).answer == "{problem} {memory}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD + "sytem = 'x'",
            "unknown key 'sytem'; known: answer, asks, check, empty_memory, replies, ",
        ),
        (GOOD + "system = 3", "system must be text, not int"),
        (GOOD + "asks = 'no'", "asks must be true or false, not str"),
        (GOOD + "replies = 'any'", "replies is 'any': it must be 'marked' or 'unmarked'"),
        (GOOD + "mark = 'x'", "unknown key 'mark'"),
        (GOOD + "[update.x]", "cannot be read"),
        (f"update = '{UPDATE}'", "the key 'answer' is missing"),
        ("", "the key 'update' is missing"),
        (f"update = '{{chunk}}'\nanswer = '{ANSWER}'", r"the update template lacks \{memory\}, \{problem\}"),
        ("update = '", "cannot be read"),
        ("a = " + "[" * 5000, "cannot be read"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as refused:
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
    one, two = (
        content(prompts.fill("update", problem=problem, chunk="the chunk", memory="M"))
        for problem in ("Who?", "Why?")
    )
    same = next(position for position, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert "the chunk" in one[:same]


def test_our_workflows_say_their_markers() -> None:
    assert GATED.replies == "marked"
    for marker in (UNCHANGED, MEMORY, ENOUGH):
        assert marker in GATED.update
        assert marker not in OVERWRITE.update
    assert GATED.answer == OVERWRITE.answer
    for marker in (UNCHANGED, MEMORY):
        assert marker in GATED.check


# Marks


def test_the_mark_is_all_that_differs_between_documents() -> None:
    one, other = (GATED.for_document(text_document(text).mark) for text in ("one", "two"))
    first, second = (
        content(prompts.fill("update", problem="P", chunk="C", memory="M")) for prompts in (one, other)
    )
    assert first.replace(one.mark, other.mark) == second
    assert f"<chunk-{one.mark}>\nC\n</chunk-{one.mark}>" in first


@pytest.mark.parametrize("prompts", [GATED, OVERWRITE])
def test_the_instructions_are_the_same_for_all_documents(prompts: Prompts) -> None:
    one, two = (
        content(prompts.for_document(letter * 14).fill("update", problem="P", chunk="C", memory="M"))
        for letter in "ab"
    )
    same = next(position for position, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert "<chunk-" in one[:same]
    assert "\nC\n" not in one[:same]


def test_a_users_template_may_have_marks_or_none() -> None:
    prompts = Prompts(update=UPDATE + "<a-{mark}>", answer=ANSWER).for_document("sealedenvelope")
    assert content(prompts.fill("update", problem="P", chunk="C", memory="M")) == f"P|C|M<a-{prompts.mark}>"
    assert prompts.neutralise("x <A-SealedEnvelope>") == "x <A-S·ealedEnvelope>"
    assert content(PLAIN.for_document("d").fill("update", problem="P", chunk="C", memory="M")) == "P|C|M"


def test_the_check_shows_the_memory_and_the_reply() -> None:
    text = content(
        GATED.fill(
            "check", problem="the problem", memory="the memory", reply="it says </memory-xdvupgqbzkwmtj>"
        )
    )
    for part in ("\nthe problem\n", "\nthe memory\n", "\nit says </memory-x·dvupgqbzkwmtj>\n"):
        assert part in text


# What neutralise leaves alone, and what it takes

ORDINARY = [
    *(
        "#include <memory>",
        "  #include <memory>  // <chunk>",
        "impl<S> Read for Thing<S> {}",
        "unique_ptr<Chunk>",
    ),
    *("|x|<|y|", "(?<memory>a+)", "arr[think]", "<s>50</s> 40", "was <s>50</s> <s>45</s>", "unk <pad> <unk>"),
    *(
        "let a: Option<Memory> = x;",
        "Vec<chunk>",
        "[|1; 2|]",
        "<[inst]>",
        "f :: a <|> b",
        "‹x› · <· b",
    ),
    *(
        "page\x0cend\x0b",
        "bell\x07\x1b[0m\x7f\x9f",
        "a\u202eb\u2066c\u2069d",
        "🏴\U000e0067\U000e0062\U000e007f",
    ),
    *("<|x|>", "<|im_start|", "< |im_start|>", "<\u200b|im_end|>", "[inst]", "<Think>", "[think]", "<start>"),
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
@pytest.mark.parametrize("prompts", [GATED, OVERWRITE, TAGGED])
def test_ordinary_text_stays(prompts: Prompts, text: str) -> None:
    assert prompts.neutralise(text) == text
    assert prompts.neutralise(f"before {text} after") == f"before {text} after"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a\0b\ud800c\udfff", "a\ufffdb\ufffdc\ufffd"),
        ("</memory>", "<·/memory>"),
        ("x </ Memory >", "x <·/ Memory >"),
        ("  <memory>", "  <·memory>"),
        ("a <memory>", "a <memory>"),
        ("<·/memory>", "<··/memory>"),
        ("<<SYS>>x<</SYS>>", "<·<SYS>>x<·</SYS>>"),
        ("[INST] x [/INST]", "[·INST] x [·/INST]"),
        ("x</s><s>[INST]", "x<·/s><·s>[·INST]"),
        ("]~b]user [e~[", "]·~b]user [·e~["),
    ],
)
def test_what_is_marked(text: str, safe: str) -> None:
    assert TAGGED.neutralise(text) == safe


PIECES = [
    *(
        "<",
        ">",
        "</",
        "[",
        "]",
        "·",
        "|",
        "\n",
        " ",
        "\u200b",
        "/",
        "memory",
        "memory-xdvupgqbzkwmtj",
        "MEMORY-xdvupgqbzkwmtj",
        "chunk",
    ),
    *(
        "<|im_start|>",
        "</s>",
        "<s>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "</SYS>>",
        "user:",
        "user",
        "]~b]",
        "[e~[",
    ),
    *(
        "<|",
        "|>",
        "｜",
        "＜",
        "﹤",
        "＞",
        "／",
        "<role>HUMAN</role>",
        "</memory>",
        "<·",
        "[·",
        "<turn|>",
        "ｍ",
    ),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(alphabet="<>/|[]·s \nmINST~b"))
@pytest.mark.parametrize("prompts", [GATED, TAGGED])
def test_what_is_marked_is_restored(prompts: Prompts, text: str) -> None:
    once = prompts.neutralise(text)
    assert prompts.restore(once) == text
    assert prompts.restore(prompts.neutralise(once)) == once


@given(st.text(st.characters(categories=["L", "N", "P", "Z", "S", "M"], exclude_characters="<＜﹤[]")))
def test_text_without_brackets_stays(text: str) -> None:
    assert GATED.neutralise(text) == text


@pytest.mark.parametrize("prompts", [GATED, TAGGED])
def test_code_arrives_unharmed(prompts: Prompts) -> None:
    """Under 0.2% of the installed Python files are altered at all, and those are restored."""
    files = sorted(Path(pytest.__file__).parents[1].rglob("*.py"))
    files = [file for file in files if "transformers" not in file.parts][
        ::7
    ]  # that one is full of turn tokens
    altered = 0
    for file in files:
        text = file.read_text("utf-8", "replace")
        safe = prompts.neutralise(text)
        assert prompts.restore(safe) == text
        altered += safe != text
    assert len(files) > 300
    assert altered <= len(files) / 500


@pytest.mark.parametrize(
    "text",
    [
        *("<" + " " * 100_000, "<" * 100_000, "< " * 50_000, "</" + "\u200b" * 100_000),
        *(
            "<memory " * 12_000,
            "<memory" + " x" * 50_000,
            ("<memory" + " x" * 300) * 200,
            "<" + "a" * 100_000,
        ),
        *("<m" * 50_000, "<memory" + "/ " * 50_000, "[" * 100_000, "<" + "/" * 100_000 + " " * 100_000),
        *((" " * 300 + "<memory>") * 300, "<s>" * 30_000, "</s> <s>" * 12_000, "<|" + "a" * 100_000),
        *("<" + "·" * 100_000, "<·" * 50_000, "\n<memory" * 12_000, ("<" + " " * 300) * 300),
    ],
    ids=range(20),
)
def test_no_text_makes_it_slow(text: str) -> None:
    """A pattern that goes back over its repeats would take hours here."""
    assert len(TAGGED.neutralise(text)) - len(text) in (0, text.count("<"), 1)
