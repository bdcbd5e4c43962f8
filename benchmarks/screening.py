"""How much of the evidence `--screen` keeps, and how much of a document it passes over.

No model is involved: an engine that knows an example's evidence notes what it sees of it, word for word
(`ideal`), or notes nothing, so that only the problem decides (`problem alone`). A real reader lies in
between. The screen is that of `memagent ask --screen`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import measure
from early_exit import in_percent

from memagent import Completion, Message, Read, ReadSettings, Sampling, text_document
from memagent.documents.chunking import split
from memagent.documents.tokens import estimate_tokens
from memagent.tasks import TASKS, Recipe, examples
from memagent.types import Example, Model

_TASKS: Sequence[tuple[str, dict[str, Any]]] = (
    ("niah_single_1", {"length_tokens": 32768}),
    ("niah_single_2", {"length_tokens": 32768}),
    ("niah_multikey_1", {"length_tokens": 32768}),
    ("niah_multivalue", {"length_tokens": 32768}),
    ("niah_multiquery", {"length_tokens": 32768}),
    ("vt", {"length_tokens": 32768}),
    ("qa_1", {"length_tokens": 32768}),
    ("hqa", {"documents": 200}),
    ("musique", {"documents": 20}),
)
_MIN_SHOWN = 12  # characters of a passage split by a chunk's border


class Noting:
    """An engine that notes the evidence it is shown, or nothing."""

    def __init__(self, example: Example, notes: bool) -> None:
        self.model = Model("noting", estimate_tokens, "pieces")
        self._evidence, self._notes = example.evidence, notes
        self._memory: list[str] = []

    async def complete(
        self,
        messages: tuple[Message, ...],
        sampling: Sampling,  # noqa: ARG002
    ) -> Completion:
        """Reply with the evidence shown so far, or UNCHANGED."""
        prompt = messages[-1].content
        if "<chunk-" not in prompt:
            return Completion("an answer")
        chunk = prompt[prompt.index("<chunk-") : prompt.index("</chunk-")].partition("\n")[2].strip()
        self._memory += [part for passage in self._evidence if (part := _part(passage, chunk))]
        return Completion("MEMORY\n" + "\n".join(self._memory) if self._notes else "UNCHANGED")

    async def aclose(self) -> None: ...


def _part(passage: str, chunk: str) -> str:
    """The part of a passage in a chunk: all of it, or what the chunk's border leaves."""
    if passage in chunk:
        return passage
    for length in range(len(passage) - 1, _MIN_SHOWN - 1, -1):
        if chunk.endswith(passage[:length]):
            return passage[:length]
        if chunk.startswith(passage[-length:]):
            return passage[-length:]
    return ""


@dataclass(frozen=True)
class Screened:
    """Counts for one example: chunks, those passed over, those with evidence, and those of them kept."""

    chunks: int
    passed_over: int
    evidence: int
    kept: int


def screen(example: Example, chunk_tokens: int, notes: bool) -> Screened:
    """Read an example with the screen."""
    settings = ReadSettings(workflow="gated", chunk_tokens=chunk_tokens, problem_tokens=4096, screen=True)
    document = text_document(example.document, is_example=True)

    async def read() -> tuple[Read, set[int | None]]:
        reading = Read(example.problem, document, Noting(example, notes), settings, purpose="train")
        return reading, {conversation.chunk_index async for conversation in reading}

    done, seen = asyncio.run(read())
    spans = [(at, at + len(fact)) for fact in example.evidence if (at := example.document.find(fact)) >= 0]
    cut = list(split(document.blocks(), chunk_tokens, estimate_tokens))
    wanted = [
        item.index for item in cut if any(start < item.end and item.start < end for start, end in spans)
    ]
    result = done.result
    return Screened(result.chunks, result.passed_over, len(wanted), sum(number in seen for number in wanted))


def rows(seed: int, count: int, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The measurements for each task and chunk size."""
    for name, size in _TASKS:
        recipe = Recipe(seed=seed, **size)
        asked = list(examples(name, recipe, TASKS[name].count(None, count, recipe.corpora)))
        for chunk_tokens in sizes:
            shares = {
                notes: [screen(example, chunk_tokens, notes) for example in asked] for notes in (True, False)
            }
            yield {"task": name, **size, "chunk_tokens": chunk_tokens, "found": shares}


def _told(row: dict[str, Any]) -> list[str]:
    size = f"{row['documents']} documents" if "documents" in row else f"{row['length_tokens']:,} tokens"
    ideal, alone = row["found"][True], row["found"][False]
    return [
        f"{row['task']}, {size}",
        str(row["chunk_tokens"]),
        f"{sum(item.evidence for item in ideal)}",
        in_percent([item.kept / item.evidence for item in ideal]),
        in_percent([item.kept / item.evidence for item in alone]),
        in_percent([item.passed_over / item.chunks for item in ideal]),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=32, help="examples per task (32)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the examples (1)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 1024, 5000], help="chunk sizes")
    measure.add_json_flag(parser)
    options = parser.parse_args()
    heads = ["task", "chunk", "evidence chunks", "kept, ideal, %", "kept, problem alone, %", "passed over, %"]
    screened = list(rows(options.seed, options.count, options.chunks))
    print(measure.table(heads, map(_told, screened)))
    records = [
        {**row, "found": {("ideal" if notes else "problem alone"): [vars(item) for item in them]
                          for notes, them in row["found"].items()}}
        for row in screened
    ]  # fmt: skip
    measure.write_json(options.json, {**measure.provenance(), "rows": records})


if __name__ == "__main__":
    main()
