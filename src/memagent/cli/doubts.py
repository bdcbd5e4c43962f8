"""What to warn of after a read: an answer that is missing, cut short, or not in the document's words."""

from __future__ import annotations

from memagent.reading.locating import find_sources
from memagent.reading.read import Read
from memagent.reading.sources import Statement, statements_of


def doubts_of(read: Read, noted: bool) -> list[str]:
    """What to warn of after a read. Blocks: the document may be searched for the answer."""
    if read.counts:  # its answer says how it was counted
        return []
    doubts = []
    if not read.has_answer and read.progress.given_up and not read.memory:
        room = "found no room in the memory: raise --memory-tokens"
        doubts.append(f"no answer was found: what was noted {room}")
    elif not read.has_answer and noted and not read.memory:
        doubts.append("no answer was found: nothing was noted, so no model was asked")
    elif not read.has_answer:
        what = "what was noted" if noted else "the document"
        doubts.append(f"no answer was found: the model says that {what} does not hold it")
    elif read.doubtful:
        doubts.append("the document has little of what the question names: check the answer")
    elif doubt := _doubt_words(read):
        doubts.append(doubt)
    progress = read.progress
    if progress.cut:
        doubts.append(f"{progress.cut} of {progress.spent.calls} replies were cut at their token budget")
    if progress.refused:
        doubts.append(
            f"refused, because the document does not have them: {progress.refused} passages of replies"
        )
    if progress.passed_over:
        doubts.append(f"{progress.passed_over} of {progress.chunks} chunks were passed over (--screen)")
    return doubts


def _doubt_words(read: Read) -> str:
    """A warning if the document says nothing of the answer word for word."""
    statements = read.statements
    searched = read.settings.cite or any(statement.source for statement in statements)
    if not searched:
        bare = [Statement(text, None) for text in statements_of(read.answer)]
        statements = find_sources(bare, read.problem, read.document, read.budgets.chunk_tokens)
    if any(statement.source for statement in statements):
        return ""
    if any(statement.nearest for statement in statements):
        how = "the nearest passage" if read.settings.cite else "its nearest passage (--cite shows it)"
        return f"the document does not say this in these words: compare {how}"
    return "the document does not say this, and no passage comes near it: check it"
