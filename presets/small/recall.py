"""How well does a small reader answer from a memory that holds what it needs?

    python presets/small/recall.py runs/small-reader

Its memories are written by hand: all facts of a document, or those alone that the answer follows from. What
is missed then is not the memory's fault.
"""

import argparse
import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from memagent.engines import open_engine
from memagent.prompts import load_prompts
from memagent.settings import EngineSettings
from memagent.tasks.scoring import confidence_interval
from memagent.training.data import load_function
from memagent.training.settings import load_training
from memagent.types import Engine, Example, Sampling

HERE = Path(__file__).parent
MEMORIES = ("all facts", "the needed ones")


async def answered(engine: Engine, example: Example, facts: tuple[str, ...], answer_tokens: int) -> bool:
    """Whether all answers are given, in so many tokens, from a memory of these facts."""
    prompts = replace(load_prompts(HERE / "gated.toml"), guards_turns=False, asks=False)
    messages = prompts.for_answer(example.problem, "\n".join(facts))
    reply = (await engine.complete(messages, Sampling(answer_tokens))).text
    return all(answer in reply for answer in example.answers)


async def measured(model: str, count: int) -> dict[str, dict[str, list[bool]]]:
    """For each task and kind of memory, whether each of so many questions was answered."""
    example, notes_of = (load_function(f"{HERE / 'data.py'}:{name}") for name in ("example", "notes_of"))
    preset = load_training(HERE.parent / "small.toml")
    settings = EngineSettings(
        engine="transformers", model=model, window_tokens=preset.engine.window_tokens, concurrency=32
    )
    found: dict[str, dict[str, list[bool]]] = defaultdict(dict)
    async with open_engine(settings) as engine:
        for name in MEMORIES:
            asked = [example(index, 500, "recall") for index in range(4 * count)]
            given = (notes_of(it.document) if name == MEMORIES[0] else it.evidence for it in asked)
            right = await asyncio.gather(*(
                answered(engine, it, facts, preset.read.answer_tokens)
                for it, facts in zip(asked, given, strict=True)
            ))  # fmt: skip
            for it, was in zip(asked, right, strict=True):
                found[it.task].setdefault(name, []).append(was)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="the folder of a reader, as `memagent train export` writes it")
    parser.add_argument("--count", type=int, default=40, help="questions of each task (40)")
    asked = parser.parse_args()
    print("| task | " + " | ".join(MEMORIES) + " |\n|---" + "|---:" * len(MEMORIES) + "|")
    for task, of in asyncio.run(measured(asked.model, asked.count)).items():
        cells = []
        for name in MEMORIES:
            low, high = confidence_interval([float(it) for it in of[name]])
            cells.append(f"{100 * fmean(of[name]):.0f} [{100 * low:.0f}, {100 * high:.0f}]")
        print(f"| {task} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
