"""Documents fitted to a length, and long texts counted in blocks."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from memagent.tasks.recipe import Pieces, count_long, fit
from memagent.types import TokenCounter


def count_words(text: str) -> int:
    return len(text.split())


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    head=st.integers(0, 30),
    limit=st.integers(0, 5000),
)
def test_the_document_fits_and_another_piece_would_not_or_little_is_left(
    sizes: list[int], head: int, limit: int
) -> None:
    pieces = Pieces(cycle("w " * size for size in sizes))

    def build(size: int) -> str:
        return "h " * head + "".join(pieces.first(size))

    fitted = fit(build, limit, count_words, pieces.characters)
    if head > limit:
        assert fitted is None
        return
    assert fitted is not None
    text, tokens, size = fitted
    assert text == build(size) and tokens == count_words(text) <= limit
    assert tokens >= 0.985 * limit or count_words(build(size + 1)) > limit


def test_sizes_whose_tokens_do_not_follow_their_weight_end_too() -> None:
    def build(size: int) -> str:
        return "w " * (size * size // 50)  # nothing at first, and then ever more a piece

    fitted = fit(build, 10_000, count_words)
    assert fitted is not None and 9850 <= fitted[1] <= 10_000


def test_a_long_text_is_counted_in_blocks_about_as_it_is_whole(count: TokenCounter) -> None:
    text = "It was a dark and stormy night; the rain fell in torrents. " * 20_000
    lengths = []

    def counting(block: str) -> int:
        lengths.append(len(block))
        return count(block)

    tokens = count_long(text, counting)
    assert max(lengths) <= 65_536 and sum(lengths) == len(text)
    assert abs(tokens - count(text)) <= len(lengths)


def test_a_text_without_a_space_is_counted_too() -> None:
    assert count_long("x" * 200_000, len) == 200_000
