"""What does a small reader note, of what its question needs and of all else, and what does it answer?

    python presets/small/measure.py READER --length 8192 --out rows.jsonl

READER is a folder that `memagent train export` writes. Each document that it reads becomes a row: its score
(the reward of training), how many of the needed facts, and of the others, were in its memory at any time, how
many of the needed ones in the end, and at how many chunks without a fact it wrote. It reads greedily; with
--samples, each document so many times more, at temperature 1, and the row has the mean of these scores too.
--think makes each reply to a chunk begin with a thought. With --passages it reads no chunks: it answers one
prompt with so many sentences, those that BM25 ranks best, with --searches 2 in two steps. --haystack names a
text to hide the facts in, instead of the second half of the essays. Run again, it reads what is missing.
"""

import argparse
import asyncio
import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from memagent import EngineSettings, Read, ReadSettings, open_engine, text_document
from memagent.engines.wrappers import Wrapper
from memagent.errors import EmptyAnswerError
from memagent.training.data import load_function
from memagent.training.rewards import exact_reward
from memagent.training.settings import load_training
from memagent.types import Completion, Engine, Example, Message, Sampling, Trajectory

HERE = Path(__file__).parent
LOOKAHEAD = 16  # chunks: full batches, with the replies that one after the other would get
WORKFLOWS = ("gated", "overwrite", "evidence")
WINDOW = 1024  # tokens
THOUGHT = "<think>"
example, notes_of, places_of = (
    load_function(f"{HERE / 'data.py'}:{name}") for name in ("example", "notes_of", "places_of")
)
ask_of_passages = load_function(f"{HERE / 'oracle.py'}:ask_of_passages")

Row = dict[str, Any]


def room_of(workflow: str) -> dict[str, int]:
    """What differs from the preset's budgets: `evidence` shows where its excerpts stand, which takes room."""
    return {"memory_tokens": 256, "chunk_tokens": 245} if workflow == "evidence" else {}


class Asking(Wrapper):
    """Gives each prompt a seed of its own, and with `thinks` makes each reply to a chunk begin a thought."""

    def __init__(self, engine: Engine, seed: str, thinks: bool) -> None:
        super().__init__(engine)
        self._seed, self._thinks = seed, thinks

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete; what was forced is part of the reply."""
        prompt = messages[-1].content
        sampling = replace(sampling, seed=random.Random(f"{self._seed}/{prompt}").getrandbits(31))
        if not self._thinks or prompt.endswith("The answer:\n"):
            return await self.engine.complete(messages, sampling)
        reply = await self.engine.complete((*messages, Message("assistant", THOUGHT)), sampling)
        return replace(reply, text=THOUGHT + reply.text)


async def read_all(
    asked: Example, engine: Engine, settings: ReadSettings, samples: int = 0, thinks: bool = False
) -> Row:
    """Read a document greedily and count, and read it so many times at temperature 1."""
    row = await read(asked, Asking(engine, asked.id, thinks), settings)
    if not samples:
        return row
    sampled = [
        await read(asked, Asking(engine, f"{asked.id}/{number}", thinks), settings.replace(temperature=1.0))
        for number in range(samples)
    ]
    return row | {"sampled": fmean(one["score"] for one in sampled)}


async def read(asked: Example, engine: Engine, settings: ReadSettings) -> Row:
    """Read a document and count."""
    notes, places = notes_of(asked.document), places_of(asked.document)
    noted: set[str] = set()
    memory, idle, writes, answer = "", 0, 0, ""
    document = text_document(asked.document, is_example=True)
    with suppress(EmptyAnswerError):  # it is wrong, and what was noted counts all the same
        async for conversation in Read(asked.problem, document, engine, settings):
            if conversation.kind == "answer":
                answer = conversation.completion.text
            elif conversation.span and not conversation.unused:
                start, end = conversation.span
                if not any(first < end and start < last for first, last in places):
                    idle += 1
                    writes += conversation.memory != memory
                memory = conversation.memory
                noted |= {note for note in notes if note in memory}
    needed, others = set(asked.evidence), set(notes) - set(asked.evidence)
    return {
        "score": score(asked, answer),
        "needed": len(needed), "needed noted": len(noted & needed),
        "held": sum(fact in memory for fact in needed),
        "others": len(others), "others noted": len(noted & others), "idle": idle, "idle writes": writes,
        "answer": answer,
    }  # fmt: skip


async def answer(asked: Example, engine: Engine, passages: int, tokens: int, searches: int = 1) -> Row:
    """Answer from passages."""
    messages = ask_of_passages(asked, passages, searches)
    reply = (await engine.complete(messages, Sampling(tokens))).text
    held = sum(f"{fact}." in messages[-1].content for fact in asked.evidence)
    return {"score": score(asked, reply), "needed": len(asked.evidence), "held": held, "answer": reply}


def score(asked: Example, answer: str) -> float:
    """What training rewards."""
    return exact_reward(asked, Trajectory(asked.id, (), answer))


async def measure(args: argparse.Namespace) -> None:
    """Write the rows that are missing, each as its document is read."""
    preset = load_training(HERE.parent / "small.toml")
    read_settings = preset.read.replace(
        workflow=args.workflow, templates=str(HERE / f"{args.workflow}.toml"), lookahead=LOOKAHEAD,
        **room_of(args.workflow),
    )  # fmt: skip
    settings = EngineSettings(
        engine="transformers", model=str(args.reader), window_tokens=WINDOW, concurrency=args.concurrency
    )
    options = {"haystack": str(args.haystack)} if args.haystack else {}
    if args.facts:
        options["facts_between"] = (args.facts, args.facts)
    done = (
        {json.loads(line)["id"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    at_once = asyncio.Semaphore(args.concurrency)
    async with open_engine(settings) as engine:
        with args.out.open("a") as rows:

            async def one(index: int) -> None:
                async with at_once:
                    asked = example(index, args.length, f"measure {args.seed}", **options)
                    if asked.id in done:
                        return
                    row = await (
                        answer(asked, engine, args.passages, preset.read.answer_tokens, args.searches)
                        if args.passages
                        else read_all(asked, engine, read_settings, args.samples, args.think)
                    )
                    about = {"id": asked.id, "task": asked.task, "haystack": asked.haystack}
                    rows.write(json.dumps(about | row) + "\n")
                    rows.flush()

            await asyncio.gather(*map(one, range(args.count)))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reader", type=Path, help="the folder of a reader")
    parser.add_argument("--out", type=Path, required=True, help="a file of rows")
    parser.add_argument("--length", type=int, default=3000, help="tokens of a document (3,000)")
    parser.add_argument("--count", type=int, default=64, help="documents (64)")
    parser.add_argument("--seed", type=int, default=0, help="of the documents")
    parser.add_argument("--workflow", choices=WORKFLOWS, default="gated")
    parser.add_argument("--passages", type=int, default=0, help="in one prompt, instead of chunks")
    parser.add_argument("--searches", type=int, default=1, help="with which they are found (1)")
    parser.add_argument("--samples", type=int, default=0, help="reads of a document at temperature 1 (0)")
    parser.add_argument("--think", action="store_true", help="force a thought")
    parser.add_argument("--facts", type=int, default=0, help="in a document (16 to 24)")
    parser.add_argument("--haystack", type=Path, help="a text, instead of the essays' second half")
    parser.add_argument("--concurrency", type=int, default=32, help="documents at a time (32)")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
