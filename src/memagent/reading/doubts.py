"""What to doubt after a read: an answer that is missing, cut short, or not in the document's words."""

from __future__ import annotations

from collections.abc import Iterator

from memagent.reading.locating import find_sources
from memagent.reading.read import Read
from memagent.reading.sources import Statement, statements_of


def doubts_of(read: Read) -> Iterator[str]:
    """What to warn of after a read that has ended."""
    if read.counts:  # its answer says how it was counted
        return
    progress = read.progress
    if not read.has_answer:
        yield f"no answer was found: {_why_not_found(read)}"
    elif read.doubtful:
        yield "the document has little of what the question says, or lacks a name in it: check the answer"
    if progress.cut:
        yield f"{progress.cut} of {progress.spent.calls} replies were cut at their token budget"
    if progress.refused:
        yield f"refused, because the document does not have them: {progress.refused} passages of replies"
    if progress.passed_over:
        yield f"{progress.passed_over} of {progress.chunks} chunks were passed over (`screen`)"


def _why_not_found(read: Read) -> str:
    if read.progress.given_up and not read.memory:
        return "what was noted found no room in the memory: raise `memory_tokens`"
    if read.noted and not read.memory:
        return "nothing was noted, so no model was asked"
    return f"the model says that {'what was noted' if read.noted else 'the document'} does not hold it"


def doubt_words(read: Read) -> str:
    """A warning if the document says nothing of the answer word for word. Blocks: it may be searched."""
    if read.counts or read.doubtful or not read.has_answer:
        return ""
    statements = read.statements
    searched = read.settings.cite or any(statement.source for statement in statements)
    if not searched:
        bare = [Statement(text, None) for text in statements_of(read.answer)]
        statements = find_sources(bare, read.problem, read.document, read.budgets.chunk_tokens)
    if any(statement.source for statement in statements):
        return ""
    if any(statement.nearest for statement in statements):
        how = "the nearest passage" if read.settings.cite else "its nearest passage (`cite` shows it)"
        return f"the document does not say this in these words: compare {how}"
    return "the document does not say this, and no passage comes near it: check it"
