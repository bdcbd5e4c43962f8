"""A taskset and a harness for verifiers' v1: memagent's examples and rewards, and its reads as rollouts.

Each conversation of a read is a branch of the trace, and the reward is that of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.clients import ModelContext
from verifiers.v1.runtimes import ProgramResult, Runtime

from memagent import EngineSettings, Settings, load_settings
from memagent.tasks.files import example_of, load_examples
from memagent.training.rewards import load_reward
from memagent.training.rollout import roll_out
from memagent.types import Example, Trajectory

__all__ = ["ReadingHarness", "ReadingTaskset"]


class ReadingData(vf.TaskData):
    """An example. The prompt is for other harnesses: the whole document, then the problem."""

    task: str
    problem: str
    document: str
    answers: tuple[str, ...]

    @property
    def example(self) -> Example:
        """The example, as memagent has it."""
        row = {name: getattr(self, name) for name in ("id", "task", "problem", "document")}
        return example_of({**row, "answers": list(self.answers)}, Path(self.task))


class ReadingTaskConfig(vf.TaskConfig):
    """How an attempt is rewarded: by an exact match, a scorer, or a function (`module:function`)."""

    reward: str | None = None
    scorer: str | None = None


class ReadingTask(vf.Task[ReadingData, vf.State, ReadingTaskConfig]):
    """One example, with the reward of its answer."""

    @vf.reward
    async def answered(self, trace: vf.Trace) -> float:
        """The reward of the answer; of the last reply, if another harness made it."""
        answer = trace.info.get("answer", trace.last_reply)
        if not answer:
            return 0.0
        reward = load_reward(self.config.reward, self.config.scorer)
        example = self.data.example
        return float(reward(example, Trajectory(example.id, (), answer)))


class ReadingConfig(vf.TasksetConfig):
    """Which examples: a file in memagent's format."""

    examples: str = "examples.jsonl"
    task: ReadingTaskConfig = ReadingTaskConfig()


class ReadingTaskset(vf.Taskset[ReadingTask, ReadingConfig]):
    """The examples of a file, one in memory at a time."""

    def load(self) -> Iterator[ReadingTask]:
        """Yield them in the file's order."""
        for example in load_examples(self.config.examples):
            data = ReadingData(
                id=example.id,
                prompt=f"{example.document}\n\n{example.problem}",
                task=example.task,
                problem=example.problem,
                document=example.document,
                answers=example.answers,
            )
            yield ReadingTask(data, self.config.task)


class ReadingHarnessConfig(vf.HarnessConfig):
    """How documents are read: memagent's settings, by name (`workflow`, `chunk_tokens`, ...)."""

    id: str = "memagent-verifiers"
    read: dict[str, Any] = Field(default_factory=lambda: {"workflow": "overwrite"})


class ReadingHarness(vf.Harness[ReadingHarnessConfig]):
    """Reads the task's document in this process; every call goes through the rollout's endpoint."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Make one attempt. Raises `EngineError` if the endpoint fails, which ends the rollout."""
        if not isinstance(data, ReadingData):
            raise TypeError(f"{self.config.id} reads the tasks of {__name__}, not {type(data).__name__}")
        engine = EngineSettings(base_url=endpoint, api_key=secret, model=ctx.model)
        read = load_settings(self.config.read, environment={}).read
        trajectory = await roll_out(data.example, Settings(engine, read))
        trace.info["answer"] = trajectory.answer
        if trajectory.error:
            trace.info["failure"] = trajectory.error
        return ProgramResult(0, trajectory.answer, trajectory.error or "")
