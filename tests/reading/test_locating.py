"""Where a note comes from: whole sentences of the chunk, of one file each."""

from __future__ import annotations

import pytest

from memagent.reading.locating import count_words, coverage, falls_short, locate
from memagent.reading.ranking import Rarity
from memagent.types import Chunk, Part

PROBLEM = "Where is the green lamp?"
RAIN = "It rained. The hills were grey. Nobody came."


def rarity_of(text: str) -> Rarity:
    rarity = Rarity()
    count_words(Chunk(0, text, 0, len(text), 1, (Part("a.txt", 0, len(text)),)), rarity)
    return rarity


def located(text: str, note: str, problem: str = PROBLEM, *parts: Part) -> list[tuple[str, str, float]]:
    """The file, the excerpt and the support of each passage, which stands in its file as it is."""
    chunk = Chunk(0, text, 0, len(text), 1, parts or (Part("a.txt", 0, len(text)),))
    match = locate(note, problem, chunk, (0, len(text)), rarity_of(text))
    sources = match.sources if match else ()
    for source in sources:
        part = next(part for part in chunk.parts if part.source == source.file)
        assert text[part.offset + source.start : part.offset + source.end] == source.excerpt
        assert part.start <= part.offset + source.start <= part.offset + source.end <= part.end
    return [(source.file, source.excerpt, match.support) for source in sources] if match else []


def excerpts(text: str, note: str, problem: str = PROBLEM) -> list[str]:
    return [excerpt for _, excerpt, _ in located(text, note, problem)]


def test_sentences_next_to_each_other_are_one_passage() -> None:
    passage = "He keeps the lamp. It stands in Oslo."
    text = f"{RAIN}\n\nSomebody spoke. {passage} More was said.\n\n{RAIN}"
    assert excerpts(text, "The lamp is in Oslo.") == [passage]
    apart = "He keeps the lamp. That is known. It stands in Oslo."
    assert excerpts(apart, "The lamp is in Oslo.") == ["He keeps the lamp.", "It stands in Oslo."]


@pytest.mark.parametrize("row", ["- {name}: shelf {shelf}", "| {name} | shelf {shelf} |"])
def test_of_a_list_or_a_table_only_lines_are_taken(row: str) -> None:
    names = [
        f"{colour} {thing}" for colour in ("red", "blue", "green") for thing in ("cup", "lamp", "rope", "jar")
    ]
    lines = [row.format(name=name, shelf=70 + index) for index, name in enumerate(names)]
    lines += [row.format(name=f"thing{number}", shelf=number) for number in range(10)]
    index = names.index("green lamp")
    passages = excerpts("\n".join(lines), f"The green lamp is on shelf {70 + index}.")
    assert lines[index] in "\n".join(passages).split("\n") and len(passages) <= 3


def test_a_note_of_several_values_leads_to_each() -> None:
    sentences = [
        "The first code is 7421.",
        "A second code is 8832.",
        "The last code was 9143.",
    ]
    text = "\n\n".join([RAIN, sentences[0], RAIN, sentences[1], RAIN, sentences[2]])
    assert excerpts(text, "The codes are 7421, 8832 and 9143.", "What are the codes?") == sentences


@pytest.mark.parametrize("name", ["Mr. Brown", "Dr. Brown", "Mrs. Brown", "J. R. Brown", "St. Brown"])
def test_a_sentence_does_not_end_at_an_abbreviation(name: str) -> None:
    text = f"One came. Two went. {name} owns the lamp. Four sat. Five stood."
    assert excerpts(text, "Brown owns the lamp.") == [f"{name} owns the lamp."]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("known", [0, 40])
def test_no_passage_is_of_two_files(end: str, known: int) -> None:
    """Nor where the files are continued after some characters that a notebook knows."""
    one, other = f"Rain fell. The lamp is green{end}", "It is in Oslo. Go there."
    text, border = one + other, len(one)
    parts = (
        Part("one.txt", 0, border, offset=-known),
        Part("two.txt", border, len(text), offset=border - known),
    )
    passages = located(text, "The green lamp is in Oslo.", PROBLEM, *parts)
    assert [(file, excerpt) for file, excerpt, _ in passages] == [
        ("one.txt", "The lamp is green"),
        ("two.txt", "It is in Oslo."),
    ]


def test_a_note_that_has_nothing_of_the_chunk_leads_nowhere() -> None:
    assert located(RAIN, "The lamp is in Oslo.") == []
    assert located(RAIN, "The text says nothing about it.") == []
    assert located(RAIN, "") == []
    ((_, excerpt, support),) = located("A green lamp. What of it?", "It is in Oslo.")
    assert (excerpt, support) == ("A green lamp.", 0.0), "what the problem names is found all the same"


def test_support_is_the_share_of_the_note_that_the_chunk_has() -> None:
    text = f"The lamp is in Oslo.\n\n{RAIN}"
    ((_, _, whole),) = located(text, "It is in Oslo.")
    ((_, _, half),) = located(text, "It is in Oslo, or Rome.")
    assert whole == 1.0 and 0 < half < 1


def test_only_the_span_that_was_shown_is_searched() -> None:
    text = f"The lamp is in Oslo.\n\nOslo is a city.\n\n{RAIN}"
    chunk = Chunk(0, text, 100, 100 + len(text), 1, (Part("a.txt", 100, 100 + len(text), offset=40),))
    start = 100 + text.index("Oslo is")
    match = locate("It is in Oslo.", PROBLEM, chunk, (start, start + 15), rarity_of(text))
    assert match
    (source,) = match.sources
    assert source.excerpt == "Oslo is a city."
    assert source.start == start - 40, "as it stands in its file"


RENT = "Lease. The monthly rent is 1,140 euros. No poultry is allowed."


@pytest.mark.parametrize(
    ("problem", "doubtful"),
    [
        ("How high is the rent?", False),
        ("How high is the rent per month, and for how long?", False),
        ("How much is the rent per month?", False),
        ("What is the rent that the tenant has to pay?", False),
        ("How much is it per month?", False),
        ("What is it?", False),
        ("How much does the tenant pay?", True),
        ("How high is the tower?", True),
        ("Who is president of France?", True),
        ("Is the rent in Kroner, Riga or Lisbon?", True),
    ],
)
def test_a_short_text_falls_short_of_questions_on_something_else(problem: str, doubtful: bool) -> None:
    assert falls_short(problem, RENT.split(". "), rarity_of(RENT)) == doubtful


def test_coverage_is_what_a_text_has_of_the_problem_by_weight() -> None:
    rarity = rarity_of(f"The green lamp.\n\nGreen hills.\n\nGreen grass.\n\n{RAIN}")
    assert coverage(PROBLEM, "A lamp that is green.", rarity) == pytest.approx(1.0)
    assert coverage(PROBLEM, "A lamp.", rarity) > coverage(PROBLEM, "Green.", rarity) > 0
    assert coverage(PROBLEM, RAIN, rarity) == 0 == coverage("Is it so?", RAIN, rarity)
