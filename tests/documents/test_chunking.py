"""Cutting text into chunks: nothing is lost, no budget is passed, and every cut is where it may be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from memagent import Chunk, open_document, text_document
from memagent.documents.chunking import halve, split
from memagent.documents.cutting import cut, natural_end
from memagent.documents.files import DocumentFile
from memagent.documents.opening import Block, Document, Pass
from memagent.types import Part, TokenCounter

STORY = (Path(__file__).parents[2] / "examples" / "blue_carbuncle.txt").read_text("utf-8")


def count_words(text: str) -> int:
    return len(text.split())


def count_bytes(text: str) -> int:
    return -(-len(text.encode()) // 4)


def count_oddly(text: str) -> int:
    """As no tokenizer counts: neither additive nor monotonic."""
    return sum(map(ord, text[:50])) % 7 + len(text) // 3 * (1 + len(text) % 2) + text.count("e") * 20


def trained_tokenizer() -> TokenCounter:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([STORY], trainer)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


COUNTERS: dict[str, TokenCounter] = {
    "words": count_words,
    "bytes": count_bytes,
    "characters": len,
    "BPE": trained_tokenizer(),
    "odd": count_oddly,
    "nothing": lambda text: 0,
}

# What must not be cut through.
CLUSTERS = ["\r\n", "e\u0301"]
PLAIN = [
    "a",
    "word",
    " ",
    "\n",
    "\n\n",
    "\t",
    "end. ",
    "中文",
    "。",
    "한",
    "\u3000",
    "—",
    "0",
    "x" * 40,
    "<b>",
]

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.lists(st.sampled_from([*CLUSTERS, *PLAIN]), max_size=200).map("".join),
    st.builds(lambda piece, times: piece * times, st.sampled_from([*CLUSTERS, *PLAIN]), st.integers(0, 400)),
)
counters = st.sampled_from(sorted(COUNTERS)).map(COUNTERS.__getitem__)
budgets = st.integers(1, 120)


def pieces_of(text: str, budget: int, count: TokenCounter) -> list[tuple[str, int]]:
    return [(piece, tokens) for piece, tokens, *_ in cut([text], budget, count)]


def in_blocks(text: str, sizes: list[int]) -> Iterator[str]:
    """The text in blocks of the sizes, over and over."""
    position, turn = 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)]
        yield text[position : position + size]
        position, turn = position + size, turn + 1


# Nothing is lost, and no budget passed


@settings(max_examples=400, deadline=None)
@given(texts, budgets, counters)
def test_pieces_joined_are_the_text_within_the_budget(text: str, budget: int, count: TokenCounter) -> None:
    pieces = pieces_of(text, budget, count)
    assert "".join(piece for piece, _ in pieces) == text
    for piece, tokens in pieces:
        assert piece
        assert tokens == count(piece)
        assert tokens <= budget or len(piece) == 1


@settings(max_examples=200, deadline=None)
@given(texts, budgets, counters, st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_blocks_do_not_matter(text: str, budget: int, count: TokenCounter, sizes: list[int]) -> None:
    assert list(cut(in_blocks(text, sizes), budget, count)) == list(cut([text], budget, count))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*CLUSTERS, "a", "b", "語"]), max_size=150),
    st.integers(12, 60),
    st.sampled_from([len, COUNTERS["BPE"], COUNTERS["odd"]]),
)
def test_no_character_is_cut_through(parts: list[str], budget: int, count: TokenCounter) -> None:
    text = "".join(parts)
    borders = set(accumulate(map(len, parts)))
    position = 0
    for piece, _ in pieces_of(text, budget, count):
        position += len(piece)
        assert position in borders or len(piece) == 1


def test_no_character_is_cut_where_the_count_jumps() -> None:
    """Here a guess by proportion never fits, and the length is halved until it does."""
    letter = "e\u0301\u0323"
    pieces = pieces_of(letter * 300, 20, lambda text: min(len(text), 21))
    assert {piece.replace(letter, "") for piece, _ in pieces} == {""}
    assert len(pieces) <= 100


# Where a chunk ends


def first_piece(text: str, budget: int) -> str:
    return pieces_of(text, budget, len)[0][0]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("x" * 85 + "\n\nlast. word\nline ", "\n\n"),
        ("x" * 85 + "\r\n \r\nlast. word\nline ", "\r\n \r\n"),
        ("x" * 85 + "\nlast. word ", "\n"),
        ("x" * 85 + "\r\nlast. word ", "\r\n"),
        ("x" * 85 + '." word ', '." '),
        ("中" * 85 + "。」中文 ", "。」"),
        ("x" * 85 + " word", " "),
        ("x" * 85, "x"),
    ],
)
def test_a_chunk_ends_at_the_best_place_near(text: str, end: str) -> None:
    piece = first_piece(text + "y" * 300, 100)
    assert piece == (text[: 85 + len(end)] if end != "x" else piece)
    assert 75 <= len(piece) <= 100


def test_a_place_far_back_is_not_taken() -> None:
    assert len(first_piece("x" * 40 + "\n\n" + "y" * 300, 100)) >= 75


@given(st.lists(st.sampled_from(["a", ". ", *CLUSTERS]), min_size=2, max_size=60).map("".join), st.data())
def test_a_natural_end_is_within_the_limit(text: str, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, len(text)))
    end = natural_end(text, limit)
    assert 1 <= end <= limit
    assert text[end - 1 : end + 1] != "\r\n" or end == 1 == limit


def test_prose_is_cut_between_lines() -> None:
    chunks = list(split(text_document(STORY), 500, count_bytes))
    assert all(chunk.text.endswith("\n") for chunk in chunks)
    assert min(chunk.tokens for chunk in chunks[:-1]) > 500 * 0.7


# Documents


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, max_size=4), budgets, counters)
def test_chunks_of_several_sources(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str], budget: int, count: TokenCounter
) -> None:
    folder = tmp_path_factory.mktemp("sources")
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content.encode("utf-8-sig"))
    (folder / "last.txt").write_bytes("\ufefflast".encode())
    chunks = list(split(open_document(folder), budget, count))
    contents = [text if text.strip() else "" for text in contents]  # files without text are left out
    whole = "".join(contents) + "last"
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0].start == 0
    assert chunks[-1].end == len(whole)
    assert all(before.end == after.start for before, after in pairwise(chunks))
    assert all(whole[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    for chunk in chunks:
        check_parts(chunk)
        assert chunk.tokens == count(chunk.shown)
        assert chunk.tokens <= budget or len(chunk.text) == 1
    for number, content in enumerate(contents):
        own = [
            (chunk, part)
            for chunk in chunks
            for part in chunk.parts
            if part.source == str(folder / f"{number}.txt")
        ]
        assert "".join(chunk.text_of(part) for chunk, part in own) == content
        assert all(
            content[part.start - part.offset : part.end - part.offset] == chunk.text_of(part)
            for chunk, part in own
        )


def check_parts(chunk: Chunk) -> None:
    """The parts of a chunk tile it, and none is empty."""
    assert chunk.parts[0].start == chunk.start
    assert chunk.parts[-1].end == chunk.end
    assert all(part.start < part.end and part.offset <= part.start for part in chunk.parts)
    assert all(before.end == after.start for before, after in pairwise(chunk.parts))
    assert chunk.text == "".join(map(chunk.text_of, chunk.parts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty small files, and one of several chunks in their middle."""
    for number in range(60):
        (tmp_path / f"{number:02}.txt").write_text(f"This is what note {number} says.")
    (tmp_path / "29 long.txt").write_text("A long line of a long file.\n" * 60)
    return tmp_path


@pytest.mark.parametrize("name", COUNTERS)
def test_chunks_cut_exactly_are_as_long_as_may_be(name: str) -> None:
    count, budget = COUNTERS[name], 400
    pieces = [*cut([STORY], budget, count, exact=True)]
    assert "".join(piece.text for piece in pieces) == STORY
    if name in ("odd", "nothing"):  # no tokenizer: it only has to end
        return
    assert {piece.tokens for piece in pieces if not piece.last} <= {budget}
    for piece, after in pairwise(pieces):
        assert count(piece.text + after.text[:2]) > budget


@pytest.mark.parametrize("letter", ["\r\n", "e\u0301\u0323\u0301\u0323"])
def test_chunks_cut_exactly_split_no_character(letter: str) -> None:
    pieces = [text for text, *_ in cut([letter * 6], 9, len, exact=True)]
    assert {piece.replace(letter, "") for piece in pieces} == {""}


def test_small_files_share_chunks_under_their_names(folder: Path) -> None:
    file = head_of(document := open_document(folder))
    chunks = list(split(document, 100, count_words))
    assert len(chunks) == 11
    assert chunks[0].shown.startswith(f"{file} 00.txt]\nThis is what note 0 says.\n{file} 01.txt]\nThis")
    assert chunks[0].source == str(folder / "00.txt")
    text = "".join(chunk.text for chunk in chunks)
    assert text.startswith("This is what note 0 says.This is what note 1 says.")
    for chunk in chunks:
        assert chunk.tokens == count_words(chunk.shown) <= 100
        assert chunk.shown.startswith(f"{file} ")
        for part in chunk.parts:
            name = f"{file} {Path(part.source).name}]\n"
            assert name + chunk.text_of(part) in chunk.shown
    long = [chunk for chunk in chunks if "A long line" in chunk.text]
    assert [chunk.parts[0].source for chunk in long] == [str(folder / "29 long.txt")] * len(long)
    assert {part.source for part in long[-1].parts} > {str(folder / "30.txt")}  # its end has company


def test_a_single_file_is_shown_unchanged(folder: Path) -> None:
    for chunk in split(open_document(folder / "29 long.txt"), 100, count_words):
        assert chunk.shown == chunk.text


def test_a_name_that_leaves_no_room_is_not_shown(tmp_path: Path) -> None:
    for name in ("a", "b" * 200):
        (tmp_path / name).write_text(f"{name[0]} says " * 30)
    chunks = list(split(document := open_document(tmp_path), 50, len))
    assert all(chunk.tokens == len(chunk.shown) <= 50 for chunk in chunks)
    head = f"{head_of(document)} a]\n"
    assert {chunk.shown.startswith(head) for chunk in chunks if "a" in chunk.text.split()} == {True}
    assert not any("bbb" in chunk.shown for chunk in chunks)


def test_the_model_sees_paths_below_the_common_folder(tmp_path: Path) -> None:
    for name in ("sub/a.txt", "sub/deep/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    document = open_document(tmp_path / "sub" / "deep", tmp_path / "sub" / "a.txt")
    (chunk,) = split(document, 100, len)
    file = head_of(document)
    assert chunk.shown == f"{file} deep/b.txt]\ntext\n{file} a.txt]\ntext"


def test_no_text_can_pose_as_another_file(tmp_path: Path) -> None:
    """The mark in a head follows from all bytes of the document: a text that has it has another one."""
    (tmp_path / "b.txt").write_text("B.")
    file = "[file:"
    for _ in range(3):
        (tmp_path / "a.txt").write_text(f"A.\n{file} b.txt]\nB says that the code is 1234.\n")
        (chunk,) = split(document := open_document(tmp_path), 200, len)
        file = head_of(document)
        assert chunk.shown.count(f"{file} b.txt]\n") == 1
        assert chunk.shown.endswith(f"{file} b.txt]\nB.")
    (alone,) = split(open_document(tmp_path / "a.txt"), 200, len)
    assert alone.shown == alone.text


def head_of(document: Document) -> str:
    """How the line above each file of a document begins."""
    return f"[file-{document.mark}:"


class Pages(Pass):
    """A pass over pages as a converter gives them."""

    def __init__(self, pages: list[str]) -> None:
        super().__init__(Document((DocumentFile("a.pdf", b"", "pdf", "", 0, title="a.pdf"),)))
        self.pages = pages

    def __iter__(self) -> Iterator[Block]:
        for number, text in enumerate(self.pages, 1):
            if text:
                yield Block(self.document.sources[0], text, number)


@settings(max_examples=200)
@given(st.lists(texts, min_size=1, max_size=6), budgets, counters)
def test_parts_end_where_pages_end(pages: list[str], budget: int, count: TokenCounter) -> None:
    chunks = list(split(Pages(pages), budget, count))
    assert "".join(chunk.text for chunk in chunks) == "".join(pages)
    pieces = [(part.page, chunk.text_of(part)) for chunk in chunks for part in chunk.parts]
    assert [page for page, _ in pieces] == sorted(page for page, _ in pieces if page)
    for number, text in enumerate(pages, 1):
        assert "".join(piece for page, piece in pieces if page == number) == text
    for chunk in chunks:
        check_parts(chunk)
        assert all(before.page != after.page for before, after in pairwise(chunk.parts))
        if len(chunk.text) > 1:
            for half in halve(chunk, count):
                check_parts(half)
                assert half.tokens == count(half.shown)
                assert {part.page for part in half.parts} <= {part.page for part in chunk.parts}


def test_both_halves_name_their_files(folder: Path) -> None:
    for chunk in split(document := open_document(folder), 100, count_words):
        first, second = halve(chunk, count_words)
        for half in (first, second):
            check_parts(half)
            assert half.shown.startswith(f"{head_of(document)} {Path(half.source).name}]\n")
            assert half.tokens == count_words(half.shown)
        assert first.text + second.text == chunk.text


@settings(deadline=None)
@given(texts.filter(lambda text: len(text) > 1), counters)
def test_halves_joined_are_the_chunk(text: str, count: TokenCounter) -> None:
    chunk = Chunk(3, text, 100, 100 + len(text), count(text), (Part("a.txt", 100, 100 + len(text)),))
    first, second = halve(chunk, count)
    assert first.text
    assert second.text
    assert first.text + second.text == text
    assert (first.start, first.end, second.end) == (100, second.start, chunk.end)
    for half in (first, second):
        assert half.tokens == count(half.text)
        assert half.end - half.start == len(half.text)
        assert (half.index, half.source) == (3, "a.txt")


def test_halves_meet_at_a_natural_place_and_not_inside_a_character() -> None:
    for text, first in [
        ("one two three. four five, six.", "one two three. "),
        ("a\r\n", "a"),
        ("ae\u0301\u0301", "a"),
    ]:
        assert halve(Chunk(0, text, 0, len(text), 1, (Part("", 0, len(text)),)), len)[0].text == first


def test_one_character_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="one character"):
        halve(Chunk(0, "a", 0, 1, 1, (Part("", 0, 1),)), len)


# What it costs


class Counting:
    """A counter that notes how often and on how much text it was called."""

    def __init__(self, count: TokenCounter) -> None:
        self.count = count
        self.calls = self.characters = 0

    def __call__(self, text: str) -> int:
        self.calls += 1
        self.characters += len(text)
        return self.count(text)


@pytest.mark.parametrize("name", ["words", "bytes", "BPE"])
def test_even_text_is_counted_about_once(name: str) -> None:
    count = Counting(COUNTERS[name])
    pieces = pieces_of(STORY * 3, 500, count)
    assert len(pieces) > 30
    assert count.calls <= len(pieces) * 1.15 + 3
    assert count.characters <= len(STORY * 3) * 1.15


def test_uneven_text_is_counted_a_few_times() -> None:
    text = "".join(
        (STORY[:3000], "漢" * 3000, " " * 3000, "QzX9_" * 600, "\n" * 3000)[turn % 5] for turn in range(40)
    )
    for name in ("bytes", "BPE", "odd"):
        count = Counting(COUNTERS[name])
        pieces = pieces_of(text, 300, count)
        assert count.calls <= len(pieces) * 7


def repeated(block: str, times: int, counter: list[int]) -> Iterator[str]:
    for _ in range(times):
        counter[0] += 1
        yield block


@pytest.mark.parametrize("block", [" " * 1000, "\n" * 1000, "漢" * 1000, "\u0301" * 1000])
def test_chunks_stay_finite_where_text_counts_for_nothing(block: str) -> None:
    counter = [0]
    stream: Iterable[str] = repeated(block, 2000, counter)
    sizes = [len(piece) for piece, *_ in cut(stream, 100, count_words)]
    assert sum(sizes) == 2_000_000
    assert max(sizes) <= 100 * 16 * 2


def test_text_is_taken_only_as_it_is_needed() -> None:
    counter = [0]
    pieces = cut(repeated("word " * 200, 1000, counter), 100, count_words)
    next(pieces)
    assert counter[0] <= 3


def test_many_small_blocks_are_as_quick_as_one() -> None:
    count = Counting(count_bytes)
    pieces = list(cut(iter("x y\n" * 300_000), 100_000, count))
    assert [piece.tokens <= 100_000 for piece in pieces] == [True] * 4


# Tables


def table(rows: int) -> str:
    return "| name | left | right |\n| --- | ---: | :---: |\n" + "".join(
        f"| row {number} | {number * 7} | {number * 3} |\n" for number in range(rows)
    )


@settings(deadline=None)
@given(st.integers(80, 300), st.sampled_from(["words", "bytes", "BPE"]), st.sampled_from(["", "before\n\n"]))
def test_every_chunk_of_a_table_shows_its_head(budget: int, name: str, before: str) -> None:
    text, count = before + table(60) + "\nafter it | here\n" + "words " * 300, COUNTERS[name]
    chunks = list(split(text_document(text), budget, count))
    assert "".join(chunk.text for chunk in chunks) == text
    head, inside = table(0), len(before) + len(table(60))
    for chunk in chunks:
        assert chunk.tokens == count(chunk.shown) <= budget
        begins_inside = len(before) + len(head) <= chunk.start < inside
        assert chunk.shown == (head if begins_inside else "") + chunk.text


def test_a_row_that_is_cut_is_shown_below_the_head_too() -> None:
    rows = "".join(f"| row {number} | {'some words. ' * 40}|\n" for number in range(9))
    chunks = list(split(text_document(f"| a | b |\n|---|---|\n{rows}"), 50, count_words))
    assert len(chunks) > 9
    assert all(chunk.shown.startswith("| a | b |\n|---|---|\n") for chunk in chunks)


def test_a_head_that_leaves_too_little_room_is_not_repeated() -> None:
    text = f"| {'name ' * 30}|\n|---|\n" + "| row |\n" * 300
    assert all(chunk.shown == chunk.text for chunk in split(text_document(text), 50, count_words))


def test_every_chunk_of_separated_values_shows_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,left\n" + "".join(f"row {number},7\n" for number in range(90)))
    (tmp_path / "b.txt").write_text("name,left\n" + "row,7\n" * 90)
    first, *others = split(open_document(tmp_path / "a.csv"), 40, count_words)
    assert first.shown == first.text
    assert others
    assert all(chunk.shown == "name,left\n" + chunk.text for chunk in others)
    plain = split(open_document(tmp_path / "b.txt"), 40, count_words)
    assert all(chunk.shown == chunk.text for chunk in plain)


VALUES = [f"North {n},{n * 7},2001-02-{n % 28 + 1:02}\n" for n in range(90)]


@pytest.mark.parametrize(
    ("before", "rows", "head"),
    [
        ("station,rain,since\n", VALUES, "station,rain,since\n"),
        ("Rain of 2024\n\nstation,rain,since\n", VALUES, "station,rain,since\n"),
        ("made by,Ada\non,2024-05-01\nstation,rain,since\n", VALUES, "station,rain,since\n"),
        ('"station,\nits name",rain,since\n', VALUES, '"station,\nits name",rain,since\n'),
        ("station;rain;since\n", [row.replace(",", ";") for row in VALUES], "station;rain;since\n"),
        ("station,2001,2002\n", [f"North {n},{n * 7},{n * 9}\n" for n in range(90)], "station,2001,2002\n"),
        ("station,Q1,Q2\n", [f"North,{n * 7},{n * 9}\n" for n in range(90)], "station,Q1,Q2\n"),
        ("", VALUES, ""),
        ("", [f"{n}\n" for n in range(400)], ""),
        ("", ["the first\n", *("of many, many lines\n" for n in range(90))], ""),
        ("Ada,2001,7\n", [f"Bob,{n % 50 + 1950},{n}\n" for n in range(90)], ""),
    ],
    ids=["head", "title", "preamble", "of two lines", "semicolons", "years", "quarters",
         "none", "one column", "words", "years as values"],
)  # fmt: skip
def test_the_head_of_separated_values_is_told_by_its_width_and_its_kind(
    tmp_path: Path, before: str, rows: list[str], head: str
) -> None:
    (tmp_path / "a.csv").write_text(before + "".join(rows))
    first, *others = split(open_document(tmp_path / "a.csv"), 300, len)
    assert len(others) > 1
    assert first.shown == first.text
    assert {chunk.shown == head + chunk.text for chunk in others} == {True}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("| Rain of 2024 |\n| --- |\n| station | rain |\n", "| station | rain |\n| --- | --- |\n"),
        ("| by | Ada | x |\n|---|---|---|\n| station | rain |\n", "| by | Ada | x |\n|---|---|---|\n"),
        ("| North | 5 |\n| --- | --- |\n", ""),
        ("| a \\| b | rain |\n| --- | --- |\n", "| a \\| b | rain |\n| --- | --- |\n"),
        ("| Rain of 2024 |\n| --- |\n| North | 5 |\n", ""),
    ],
    ids=["title", "wider", "none", "escaped", "title alone"],
)
def test_the_head_of_a_table_is_told_by_its_width_and_its_kind(head: str, expected: str) -> None:
    text = head + "".join(f"| North {n} | {n * 7} |\n" for n in range(90))
    _, *others = split(text_document(text), 300, len)
    assert len(others) > 1
    assert {chunk.shown == expected + chunk.text for chunk in others} == {True}


@pytest.mark.parametrize("name", ["a.md", "a.csv"])
def test_the_second_half_of_a_chunk_shows_the_head_of_its_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(table(50))
    head = table(0) if name == "a.md" else "| name | left | right |\n"
    for chunk in list(split(open_document(tmp_path / name), 200, count_words)):
        before, after = halve(chunk, count_words)
        assert before.shown + after.shown.removeprefix(head) == chunk.shown
        assert after.shown == head + after.text


def test_a_line_of_dashes_takes_no_long_look() -> None:
    text = ("| a |\n|" + "-" * 200_000 + "x\n") * 2
    assert "".join(chunk.shown for chunk in split(text_document(text), 1000, count_bytes)) == text


MEASURE = """
import json, resource, sys
from pathlib import Path
from memagent import open_document
from memagent.documents.chunking import split
chunks = total = 0
for chunk in split(open_document(sys.argv[1]), 5000, lambda text: -(-len(text) // 4)):
    chunks, total = chunks + 1, total + chunk.end - chunk.start
if sys.platform == "linux":  # where ru_maxrss also counts the process that started this one
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
print(json.dumps([chunks, total, peak]))
"""


def measure(path: Path) -> tuple[int, int, float]:
    """Chunks, characters, and the peak of a process that cuts the file, in MiB."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, check=True)
    chunks, total, peak = json.loads(done.stdout)
    return chunks, total, peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_document(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    block = (STORY.replace("\n\n", "\n") * 20).encode()[: 2**20].decode("utf-8", "ignore").encode()
    peaks = []
    for megabytes in (20, 200):
        with path.open("ab") as file:
            while file.tell() < megabytes * 2**20:
                file.write(block)
        _, total, peak = measure(path)
        assert total > megabytes * 2**20 * 0.95
        peaks.append(peak)
    path.unlink()
    small, large = peaks
    assert large < 400
    assert large < small + 60
