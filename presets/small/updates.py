"""What does a small reader do at each update of its memory?

    python presets/small/updates.py runs/small-reader

It reads documents of twelve chunks. Counted are the chunks without a fact at which it writes, the facts that
it notes, the lines of its memory that it loses as it rewrites it, and the rewrites with a line that stands
there twice.
"""

import argparse
import asyncio
from collections import Counter
from pathlib import Path

from memagent import EngineSettings, Read, ReadSettings, open_engine, text_document
from memagent.training.data import load_function
from memagent.training.settings import load_training
from memagent.types import Engine, Example

HERE = Path(__file__).parent
CHUNKS, CHUNK = 12, 250  # tokens
KINDS = 4  # of tasks
COLUMNS = {
    "chunks without a fact at which it writes": ("idle writes", "idle"),
    "facts noted": ("noted", "facts"),
    "lines of the memory lost in a rewrite": ("lost", "lines"),
    "rewrites that repeat a line": ("repeats", "writes"),
}
example, notes_of = (load_function(f"{HERE / 'data.py'}:{name}") for name in ("example", "notes_of"))


async def counted(asked: Example, engine: Engine, settings: ReadSettings) -> Counter[str]:
    """What the updates of one read come to."""
    found: Counter[str] = Counter()
    before: list[str] = []
    async for it in Read(
        asked.problem, text_document(asked.document, is_example=True), engine, settings, asks=False
    ):
        if it.kind != "update" or it.span is None:
            continue
        after = it.memory.split("\n") if it.memory else []
        facts = notes_of(asked.document[slice(*it.span)])
        new = [fact for fact in facts if fact not in before]
        found["facts"] += len(new)
        found["noted"] += sum(fact in after for fact in new)
        found["idle"] += not facts
        if after != before:
            found["writes"] += 1
            found["idle writes"] += not facts
            found["lines"] += len(before)
            found["lost"] += sum(line not in after for line in before)
            found["repeats"] += len(set(after)) < len(after)
        before = after
    return found


async def measured(model: str, count: int) -> Counter[str]:
    """The sum over so many documents of each task."""
    preset = load_training(HERE.parent / "small.toml")
    settings = EngineSettings(
        engine="transformers", model=model, window_tokens=preset.engine.window_tokens, concurrency=32
    )
    async with open_engine(settings) as engine:
        asked = [example(index, CHUNKS * CHUNK, "classify") for index in range(KINDS * count)]
        counts = await asyncio.gather(*(counted(it, engine, preset.read) for it in asked))
    return sum(counts, Counter())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="the folder of a reader, as `memagent train export` writes it")
    parser.add_argument("--count", type=int, default=16, help="documents of each task (16)")
    asked = parser.parse_args()
    found = asyncio.run(measured(asked.model, asked.count))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---:" * len(COLUMNS) + "|")
    print("| " + " | ".join(f"{found[some]} of {found[of]}" for some, of in COLUMNS.values()) + " |")


if __name__ == "__main__":
    main()
