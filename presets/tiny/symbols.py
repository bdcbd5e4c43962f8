"""Six symbols hidden among letters: the smallest task that cannot be done without writing a memory.

A document is some chunks of six letters. One of the letters is replaced by one of six digits, and that
digit is the answer. A memory has room for one character, so what to keep must be learned.
"""

import random
import string
from dataclasses import replace
from pathlib import Path

from memagent.documents.opening import text_document
from memagent.engines import ScriptedEngine
from memagent.reading.read import Read
from memagent.settings import ReadSettings
from memagent.types import Example, Message, Trajectory

SYMBOLS = "012345"
CHUNK = 6


def example(index: int, chunks: int = 3, seed: str = "train") -> Example:
    """Example number `index`, of so many chunks."""
    draw = random.Random(f"{seed}/{index}")
    letters = draw.choices(string.ascii_lowercase, k=CHUNK * chunks)
    symbol = draw.choice(SYMBOLS)
    letters[draw.randrange(len(letters))] = symbol
    return Example(
        id=f"symbols-{seed}-{index}",
        task="symbols",
        problem="?",
        document="".join(letters),
        answers=(symbol,),
        length_tokens=len(letters),
    )


def held_out(index: int) -> Example:
    """Examples that are not trained on."""
    return example(index, seed="held out")


async def habits(wanted: Example) -> Trajectory:
    """What the warm start teaches, and it knows nothing of the task.

    The reply to a chunk is any one character in view, the chunk's or the memory's; the answer is the memory.
    """
    draw = random.Random(wanted.id)

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content  # chunk, "?", memory, ">", or "?", memory, "="
        memory = prompt[-2]
        if prompt.endswith("="):
            return memory
        return draw.choice(prompt[:CHUNK] + (memory if memory != "-" else ""))

    engine = ScriptedEngine(reply)
    engine.model = replace(engine.model, count_tokens=len)  # a token is a character
    settings = ReadSettings(workflow="overwrite", templates=str(Path(__file__).with_name("prompts.toml")),
                            chunk_tokens=CHUNK + 1, memory_tokens=1, answer_tokens=1)  # fmt: skip
    reading = Read(wanted.problem, text_document(wanted.document, is_example=True), engine, settings)
    conversations = tuple([conversation async for conversation in reading])
    return Trajectory(wanted.id, conversations, reading.answer)
