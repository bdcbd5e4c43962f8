"""A package of somebody else: it adds a workflow, a format and an engine to memagent."""

from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from pydantic import Field

from memagent import EngineSettings, ScriptedEngine
from memagent.prompts import OVERWRITE
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_overwrite
from memagent.reading.workflow import Workflow
from memagent.settings import Options, Positive


class Skimming(Options):
    """What `skim` can be told."""

    every: Positive = Field(default=2, description="which chunks skim reads: every 2nd, every 3rd ...")


async def skim(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Rewrite the memory at every so many chunks, then answer from it."""
    every = reading.settings.of(Skimming).every
    async for chunk in chunks:
        if chunk.index % every == 0:
            async for update in reading.update(chunk, memory, read_overwrite):
                memory = update.memory
                yield update
    async for answer in reading.conclude(memory):
        yield answer


PROMPTS = replace(OVERWRITE, workflow="skim")
WORKFLOW = Workflow(skim, PROMPTS, templates=True, keeps_memory=True, options=(Skimming,))


def read_shout(file: IO[bytes]) -> Iterator[str]:
    """The text of a .shout file, which is all in capitals."""
    for line in file:
        yield line.decode("utf-8").lower()


async def open_parrot(settings: EngineSettings) -> ScriptedEngine:
    """A model that counts the lamps that it is shown."""
    return ScriptedEngine(lambda messages: f"{settings.model} saw {messages[-1].content.count('lamp is')}")
