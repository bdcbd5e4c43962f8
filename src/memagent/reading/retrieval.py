"""Rank passages by BM25, without stemming and without support for scripts that use no spaces."""

from __future__ import annotations

from collections.abc import Sequence

from memagent.errors import SettingsError, extra_hint


def best_passages(problem: str, passages: Sequence[str], count: int) -> list[int]:
    """The numbers of the `count` passages most relevant to the problem, best first.

    The earlier passage wins a tie, so that a run can be repeated. Raises `SettingsError` without the extra
    `eval`.
    """
    try:
        import bm25s  # type: ignore[import-untyped]
    except ImportError as error:
        raise SettingsError(f"the workflow rag needs a package: {extra_hint('eval')}") from error

    words = bm25s.tokenize([problem, *passages], stopwords="en", return_ids=False, show_progress=False)
    query, corpus = words[0], words[1:]
    numbers = range(len(passages))
    if not query or not any(corpus):
        return list(numbers[:count])
    index = bm25s.BM25(corpus=None)
    index.index(corpus, show_progress=False)
    scores = index.get_scores(query)
    return sorted(numbers, key=lambda number: (-scores[number], number))[:count]
