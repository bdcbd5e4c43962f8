"""Does a reader name the right sentence of a paragraph, and say so if there is none?

    python recipes/reader/measure.py --model MODEL.gguf --adapter reader.gguf --squad squad_v2_dev.jsonl.gz

SQuAD 2.0's dev set is not trained on. Beside the reader stands the sentence that shares most words with the
question, weighed by how rare they are in the paragraph.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

from lessons import sentences_of

from memagent import EngineSettings, open_engine, text_document
from memagent.documents.chunking import split
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import load_prompts
from memagent.reading.locating import number, point
from memagent.reading.ranking import Rarity, stems, telling
from memagent.tasks.scoring import confidence_interval
from memagent.types import Engine, Sampling

HERE = Path(__file__).parent
MAX_REPLY_TOKENS = 16


async def measure(engine: Engine, rows: list[dict[str, Any]]) -> dict[str, list[bool]]:
    """For each question, by what is counted: whether it was so."""
    counts: dict[str, list[bool]] = {
        "the right sentence is named": [], "it alone is named": [], "most words in common": [],
        "none is named, and there is none": [],
    }  # fmt: skip
    for row in rows:
        text = row["context"].strip()
        document = text_document(text, is_example=True)
        chunks = list(split(document, 4096, estimate_tokens))
        prompts = load_prompts(HERE / "prompts.toml").for_document(document.mark, asks=False)
        shown, whole = number(chunks[0], (0, len(text))), (0, len(text))
        places = sentences_of(text)
        for asked in row["qas"]:
            messages = prompts.for_note(asked["question"], shown)
            reply = (await engine.complete(messages, Sampling(MAX_REPLY_TOKENS))).text
            find = point(reply, chunks[0], whole)
            if asked["is_impossible"]:
                counts["none is named, and there is none"].append(find is None)
                continue
            starts = {it["answer_start"] for it in asked["answers"]}
            gold = {at for at, (a, b) in enumerate(places) if any(a <= start < b for start in starts)}
            named = {
                at for at, (a, b) in enumerate(places)
                if find and any(it.start < b and a < it.end for it in find.sources)
            }  # fmt: skip
            counts["the right sentence is named"].append(bool(gold & named))
            counts["it alone is named"].append(bool(named) and named <= gold)
            counts["most words in common"].append(_most_in_common(asked["question"], text) in gold)
    return counts


def _most_in_common(problem: str, text: str) -> int:
    rarity, places = Rarity(), sentences_of(text)
    words = [frozenset(stems(text[a:b])) for a, b in places]
    for it in words:
        rarity.see(it)
    weights = [rarity.weigh(telling(problem) & it) for it in words]
    return weights.index(max(weights))


async def main() -> None:
    """Measure, and print shares with their 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--paragraphs", type=int, default=40, help="evenly spaced ones (40)")
    asked = parser.parse_args()
    with gzip.open(asked.squad, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = rows[:: len(rows) // asked.paragraphs][: asked.paragraphs]
    async with open_engine(EngineSettings(model=asked.model, adapter=asked.adapter)) as engine:
        for name, values in (await measure(engine, rows)).items():
            low, high = confidence_interval([float(it) for it in values])
            print(f"{name}: {sum(values)} of {len(values)} [{100 * low:.0f}, {100 * high:.0f}]")


if __name__ == "__main__":
    asyncio.run(main())
