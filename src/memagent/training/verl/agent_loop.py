"""An agent loop that makes the package's own attempts: one read, with a training row per conversation.

The reward is the attempt's; verl assigns it to every row of the session. verl's workers load the data set
from this module (`data.custom_cls`), which registers the loop wherever they run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from transformers import GenerationConfig
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, register

from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.training.verl.data_set import ExampleDataset, read_example
from memagent.training.verl.engine import ServerEngine
from memagent.training.verl.settings import AGENT_LOOP, plugin_settings
from memagent.types import Conversation, Example, Trajectory

__all__ = ["ExampleDataset", "MemoryAgentLoop"]

_log = logging.getLogger("memagent")
_reward = cache(load_reward)  # verl makes a loop for every attempt; a user's file runs only once


@register(AGENT_LOOP)
class MemoryAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Reads the document of one example and answers from memory, as `memagent.reading.read.Read` does."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Make one attempt, with one output per conversation.

        An attempt that the policy fails gets reward 0. Raises whatever the servers raise, and
        `MemAgentError` for an example or settings that cannot be used: verl then marks the group as failed.
        """
        settings, scores = plugin_settings(self.config), []
        judge = _reward(settings.reward, settings.scorer)

        def score(example: Example, trajectory: Trajectory) -> float:
            scores.append(float(judge(example, trajectory)))
            return scores[-1]

        engine = self._engine(sampling_params, row)
        rollout = Rollout(
            engine=engine,
            settings=settings.read,
            reward=score,
            overlong_tokens=settings.overlong_tokens,
        )
        example = read_example(row["example"])
        trajectory = await rollout.attempt(example, f"{row['uid']}/{row['session_id']}")
        if trajectory.error:
            _log.warning("%s: reward 0: %s", example.id, trajectory.error)
        return _outputs(trajectory, engine.reports, scores[-1] if scores else 0.0)

    def _engine(self, sampling_params: dict[str, Any], row: Mapping[str, Any]) -> ServerEngine:
        rollout = self.rollout_config
        # Attempts at one example read the same chunks, so they go to one server and share its prefix cache.
        # If verl passes the id on to vLLM, ids must differ; it would also give all requests the same seed.
        seeded = rollout.full_determinism
        attempt = f"-{row['session_id']}" if seeded else ""
        return ServerEngine(
            client=self.server_manager,
            tokenizer=self.tokenizer,
            request_id=f"{row['uid']}{attempt}",
            sampling=sampling_params,
            prompt_tokens=rollout.prompt_length,
            window_tokens=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
            template=dict(self.apply_chat_template_kwargs),
            seeded=seeded,
            stop_ids=_stop_ids(self.config.actor_rollout_ref.model.path) | {self.tokenizer.eos_token_id},
        )


@cache
def _stop_ids(model: str) -> frozenset[int]:
    """The ids that end a reply, from the model's generation_config.json; none without that file."""
    try:
        listed = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return frozenset()
    return frozenset(listed if isinstance(listed, list) else [listed]) - {None}


def _outputs(trajectory: Trajectory, reports: list[dict[str, Any]], score: float) -> list[AgentLoopOutput]:
    """The rows of an attempt; the last one has the reward and the values that verl averages in its logs."""
    outputs = [_row(*pair) for pair in zip(trajectory.conversations, reports, strict=True)]
    outputs[-1].reward_score = trajectory.reward
    outputs[-1].extra_fields["reward_extra_info"] = {
        "acc": score,  # under this name, verl counts a validation attempt that failed as 0
        "conversations": len(outputs),
        "no_answer": float(trajectory.error is not None),
        "truncated": sum(it.completion.finish_reason == "length" for it in trajectory.conversations)
        / len(outputs),
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
