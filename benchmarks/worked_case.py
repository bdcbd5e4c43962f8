"""Two questions whose answer takes two steps, read step by step: one read well, and one that goes wrong.

    python benchmarks/worked_case.py --hotpot hotpot_dev_distractor.jsonl.gz --out docs/cases

A bridge question of HotpotQA needs two paragraphs of ten: one has a lead (the film), the other what it leads
to (its director's birthplace). The questions from row 200 on are read in their order with `notes`, by an
untrained model. Taken are the first one with the lead in the memory at an earlier chunk than what it leads to
and HotpotQA's answer, word for word; and the first one whose memory had the lead, while the answer shares no
word with HotpotQA's.

Writes the documents and the journals to OUT, for `memagent show` and `memagent view`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from measure import load_rows

import memagent
from memagent.tasks.scoring import exact_match, f1

FIRST_ROW = 200
CHUNK_TOKENS = 200  # about a paragraph: of such short documents there are few chunks otherwise

Row = dict[str, Any]


def main() -> None:
    """Read until there is a case of each kind."""
    asked = _parse_arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    missing = {"right", "wrong"}
    for number, row in bridges(asked.hotpot):
        path = asked.out / f"hotpot-{number}.md"
        path.write_text(document_of(row), "utf-8")
        trajectory = memagent.read(
            row["question"], path, trace=path.with_suffix(".jsonl"), model=asked.model, discover=False,
            workflow="notes", chunk_tokens=CHUNK_TOKENS, temperature=0.0,
        )  # fmt: skip
        kind = judge(row, trajectory)
        print(f"{path.stem}, {kind}: {row['question']} {row['answer']}? {trajectory.answer}", flush=True)
        if kind in missing:
            missing.remove(kind)
        else:
            path.unlink()
            path.with_suffix(".jsonl").unlink()
        if not missing:
            break


def bridges(path: Path) -> Iterator[tuple[int, Row]]:
    """The numbers and rows, from `FIRST_ROW` on, of questions whose answer only one of two paragraphs has."""
    for number, row in islice(enumerate(load_rows(path)), FIRST_ROW, None):
        if row["type"] == "bridge" and sum(row["answer"] in " ".join(fact) for fact in facts_of(row)) == 1:
            yield number, row


def facts_of(row: Row) -> list[list[str]]:
    """The sentences that are needed, of each of the two paragraphs."""
    needed = {tuple(fact) for fact in row["supporting_facts"]}
    facts = (
        [_plain(text) for number, text in enumerate(sentences) if (title, number) in needed]
        for title, sentences in row["context"]
    )
    return [item for item in facts if item]


def document_of(row: Row) -> str:
    """The ten paragraphs under their titles."""
    return "".join(f"{title}\n\n{_plain(''.join(sentences))}\n\n" for title, sentences in row["context"])


def judge(row: Row, trajectory: memagent.Trajectory) -> str | None:
    """What a read is a case of: "right", "wrong" or neither."""
    lead, goal = sorted(facts_of(row), key=lambda fact: row["answer"] in " ".join(fact))
    memories = [
        _plain(conversation.memory)
        for conversation in trajectory.conversations
        if conversation.kind == "update"
    ]
    lead_at, goal_at = (_first(memories, item) for item in (lead, goal))
    if lead_at < goal_at < len(memories) and exact_match(trajectory.answer, (row["answer"],)):
        return "right"
    return "wrong" if lead_at < len(memories) and not f1(trajectory.answer, (row["answer"],)) else None


def _first(memories: list[str], sentences: list[str]) -> int:
    """The first memory that has one of the sentences; how many there are if none has."""
    return next(
        (n for n, memory in enumerate(memories) if any(text in memory for text in sentences)), len(memories)
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hotpot", type=Path, required=True, help="hotpot_dev_distractor.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name or a GGUF file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
