"""An agent loop that makes the package's own attempts: one read, with a training row per conversation.

The reward is the trajectory's; verl assigns it to every row of the session. verl's workers load the data set
from this module (`data.custom_cls`), which registers the loop wherever they run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset
from transformers import GenerationConfig
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, register

from memagent.documents.tokens import estimate_tokens
from memagent.engines.torch.chats import token_counter
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.settings import ReadSettings
from memagent.strict import StrictModel, build
from memagent.tasks.files import ExampleLine, example_lines
from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.types import Completion, Conversation, Example, Message, Model, Sampling, Trajectory, Usage

AGENT_LOOP = "memagent"
"""The required value of `actor_rollout_ref.rollout.agent.default_agent_loop`."""

_ELSEWHERE = {"temperature", "top_p", "seed"}
_log = logging.getLogger("memagent")
_reward = cache(load_reward)  # verl makes a loop for every attempt; a user's file runs only once


class PluginSettings(StrictModel):
    """The `memagent` section. `reward`, `scorer` and `overlong_tokens` are as in `memagent train`."""

    read: ReadSettings = ReadSettings()
    reward: str | None = None
    scorer: str | None = None
    overlong_tokens: int = 0


def plugin_settings(config: DictConfig) -> PluginSettings:
    """The `memagent` section of a verl configuration. Raises `SettingsError` for an unknown key.

    Settings files and the environment, which differ between machines, are ignored.
    """
    section: Any = OmegaConf.to_container(OmegaConf.select(config, "memagent", default={}), resolve=True)
    if sampling := sorted(_ELSEWHERE & section.get("read", {}).keys()):
        raise SettingsError(f"memagent.read.{sampling[0]} is verl's: set it in actor_rollout_ref.rollout")
    return build(PluginSettings, section, "memagent")


class ExampleDataset(Dataset[dict[str, Any]]):  # type: ignore[misc, unused-ignore]
    """The examples of one or more files, for `data.custom_cls`; only the first `max_samples` if above 0.

    `data_files` are plain JSONL files, as `memagent data make` writes them, with the same path on all
    machines. verl copies every field of a row to each of its conversations, so a row refers to its example
    and does not hold the document. Every line is checked up front, so that a bad one stops the run before it
    begins. Raises `SettingsError`.
    """

    def __init__(self, data_files: str | list[str], max_samples: int = -1, **_from_verl: Any) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        self._rows = [row for file in files for row in _rows_of(Path(file).expanduser().resolve())]
        if max_samples > 0:
            del self._rows[max_samples:]
        if not self._rows:
            raise SettingsError(f"there are no examples in {', '.join(map(str, files))}")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The fields that verl needs, and `example`, from which `read_example` reads the rest."""
        return {**self._rows[index], "index": index}


def read_example(reference: Mapping[str, Any]) -> Example:
    """The example that a row refers to. Raises `SettingsError` if its file is missing or has changed."""
    line = ExampleLine(Path(reference["path"]), reference["number"], reference["offset"])
    example = line.example(estimate_tokens)
    if example.id != reference["id"]:
        raise SettingsError(
            f"{line.path}, row {line.number} is not {reference['id']}: the file was changed during the run"
        )
    return example


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".gz":
        raise SettingsError(f"{path} is gzipped, but examples are read by their offset: unpack it")
    for line in example_lines(path):
        example = line.example(estimate_tokens)
        yield {
            "raw_prompt": [{"role": "user", "content": example.problem}],
            "example": {"path": str(path), "offset": line.offset, "number": line.number, "id": example.id},
            "data_source": example.task,
            "reward_model": {"style": "rule", "ground_truth": list(example.answers)},
        }


class ServerEngine:
    """verl's LLM servers as an engine for one attempt: ids in, sampled ids with log-probabilities out.

    `sampling` holds verl's sampling parameters (temperature, top_p and so on; greedy in validation): a read
    sets only the length of a reply, and its seed if verl wants determinism. `reports` collects what verl
    reports about each completion, in order.
    """

    def __init__(self, loop: AgentLoopBase, sampling: dict[str, Any], row: Mapping[str, Any]) -> None:
        self.reports: list[dict[str, Any]] = []
        self._client, self._tokenizer, rollout = loop.server_manager, loop.tokenizer, loop.rollout_config
        self._sampling, self._template = sampling, dict(loop.apply_chat_template_kwargs)
        # Attempts at one example read the same chunks, so they go to one server and share its prefix cache.
        # If verl passes the id on to vLLM, ids must differ; it would also give all requests the same seed.
        self._seeded = rollout.full_determinism
        self._request_id = f"{row['uid']}-{row['session_id']}" if self._seeded else str(row["uid"])
        ends = _stop_ids(loop.config.actor_rollout_ref.model.path)
        self._stop_ids = ends | {self._tokenizer.eos_token_id}
        self._prompt_tokens = rollout.prompt_length
        self._window_tokens = rollout.max_model_len or rollout.prompt_length + rollout.response_length
        name = str(self._tokenizer.name_or_path)
        self.model = Model(name, token_counter(self._tokenizer), name, self._window_tokens)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat. Errors from verl propagate: they are not the policy's fault.

        Raises `ContextOverflowError` if the prompt is too long, `EngineError` if the servers send nothing.
        """
        prompt_ids = self._prompt_ids(messages, sampling.max_tokens)
        how = {**self._sampling, "max_tokens": sampling.max_tokens}
        if self._seeded:
            how["seed"] = sampling.seed
        output = await self._client.generate(
            request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=how
        )
        ids = output.token_ids
        if not ids or output.stop_reason == "aborted":
            raise EngineError(f"the server's reply has {len(ids)} tokens ({output.stop_reason})")
        self.reports.append(output.extra_fields)
        return Completion(
            # The clean-up that some tokenizers still enable removes spaces from the text.
            text=self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            finish_reason="stop" if ids[-1] in self._stop_ids else "length",
            prompt_ids=tuple(prompt_ids),
            completion_ids=tuple(ids),
            logprobs=tuple(output.log_probs or ()),
            usage=Usage(len(prompt_ids), len(ids)),
        )

    async def aclose(self) -> None:
        """Nothing to close: the servers belong to verl."""

    def _prompt_ids(self, messages: tuple[Message, ...], max_tokens: int) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            [asdict(message) for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self._template,
        )
        if len(ids) > self._prompt_tokens or len(ids) + max_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens and its reply up to {max_tokens}: data.max_prompt_length "
                f"is {self._prompt_tokens}, and the window for both together {self._window_tokens}"
            )
        return ids


@register(AGENT_LOOP)
class MemoryAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Reads the document of one example and answers from memory, as `memagent.reading.read.Read` does."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Make one attempt, with one output per conversation.

        Raises whatever the servers raise, and `MemAgentError` for an example or settings that cannot be
        used: verl then marks the group as failed.
        """
        settings, scores = plugin_settings(self.config), []
        judge = _reward(settings.reward, settings.scorer)

        def score(example: Example, trajectory: Trajectory) -> float:
            scores.append(float(judge(example, trajectory)))
            return scores[-1]

        engine = ServerEngine(self, sampling_params, row)
        rollout = Rollout(
            engine=engine, settings=settings.read, reward=score, overlong_tokens=settings.overlong_tokens
        )
        example = read_example(row["example"])
        trajectory = await rollout.attempt(example, f"{row['uid']}/{row['session_id']}")
        if trajectory.error:
            _log.warning("%s: reward 0: %s", example.id, trajectory.error)
        return _outputs(trajectory, engine.reports, scores[-1] if scores else 0.0)


@cache
def _stop_ids(model: str) -> frozenset[int]:
    """The ids that end a reply, from the model's generation_config.json; none without that file."""
    try:
        listed = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return frozenset()
    return frozenset(listed if isinstance(listed, list) else [listed]) - {None}


def _outputs(trajectory: Trajectory, reports: list[dict[str, Any]], score: float) -> list[AgentLoopOutput]:
    """The rows of a trajectory; the last one has the reward and the values that verl averages in its logs."""
    outputs = [_row(*pair) for pair in zip(trajectory.conversations, reports, strict=True)]
    cut = sum(conversation.completion.finish_reason == "length" for conversation in trajectory.conversations)
    outputs[-1].reward_score = trajectory.reward
    outputs[-1].extra_fields["reward_extra_info"] = {
        "acc": score,  # under this name, verl counts a validation attempt that failed as 0
        "conversations": len(outputs),
        "no_answer": float(trajectory.error is not None),
        "truncated": cut / len(outputs),
    }
    return outputs


def _row(conversation: Conversation, report: dict[str, Any]) -> AgentLoopOutput:
    completion = conversation.completion
    return AgentLoopOutput(
        prompt_ids=list(completion.prompt_ids),
        response_ids=list(completion.completion_ids),
        response_mask=[1] * len(completion.completion_ids),
        response_logprobs=list(completion.logprobs) or None,
        num_turns=len(conversation.messages) + 1,
        metrics=AgentLoopMetrics(generate_sequences=conversation.seconds),
        extra_fields=dict(report),  # includes the weights' versions, which verl's trainer needs
    )
