"""Generation by another process: an OpenAI-compatible server that gets the weights before each step.

vLLM loads a LoRA at run time (start it with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True);
SGLang loads weights from a folder. Both read the run's folder, so the server must have access to it.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent.engines.endpoint import is_own
from memagent.engines.openai import Connection, OpenAIEngine, connect
from memagent.engines.torch.chats import token_counter
from memagent.errors import EngineError, SettingsError
from memagent.training.export import export_policy
from memagent.training.optimization.policy import Policy
from memagent.training.settings import TrainingSettings

_TIMEOUT_SECONDS = 600.0


class Server:
    """The engine of a serving process, and how its weights are updated."""

    def __init__(self, engine: OpenAIEngine, settings: TrainingSettings, run: Path) -> None:
        self.engine = engine
        self._push = settings.rollout.push
        self._folder = (run / "served").resolve()

    async def push(self, policy: Policy, step: int, main: bool = True) -> None:
        """Make the server use the current policy; of several processes, only the `main` one sends it.

        Raises `EngineError` if the server does not accept it.
        """
        old, name = self.engine.model.name, f"policy-{step:06d}"
        if self._push == "vllm-lora":
            self.engine.model = replace(self.engine.model, name=name)
        if self._push == "none" or not main:
            return
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
        if self._push == "vllm-lora":
            export_policy(policy.model, policy.tokenizer, "adapter", folder)
            body = {"lora_name": name, "lora_path": str(folder)}
            try:
                await self._post("load_lora_adapter", body)
            except EngineError:  # an interrupted run may have left one of this name
                with suppress(EngineError):
                    await self._post("unload_lora_adapter", {"lora_name": name})
                await self._post("load_lora_adapter", body)
            if old.startswith("policy-"):
                await self._post("unload_lora_adapter", {"lora_name": old})
        else:
            export_policy(policy.model, policy.tokenizer, "merged", folder)
            await self._post("../update_weights_from_disk", {"model_path": str(folder)})
        for other in self._folder.glob("policy-*"):
            if other != folder:
                shutil.rmtree(other)

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            await self.engine.post(path, body, _TIMEOUT_SECONDS)
        except EngineError as error:
            raise EngineError(
                f"the server did not take the weights ({path}: {error}): see rollout.push in "
                "docs/training.md for how it must be started"
            ) from error


async def open_server(settings: TrainingSettings, policy: Policy, run: Path) -> Server:
    """The server that `rollout.server` names.

    Raises `EngineError` if it cannot be reached, `SettingsError` if the policy cannot be pushed there.
    """
    rollout = settings.rollout
    if rollout.push == "vllm-lora" and not policy.has_adapter:
        raise SettingsError(
            "rollout.push vllm-lora can push only a LoRA: set policy.lora_rank, or another rollout.push"
        )
    connection = Connection(
        base_url=rollout.server,
        api_key=settings.engine.api_key,
        concurrency=rollout.rows,
        timeout_seconds=settings.engine.timeout_seconds,
        retries=settings.engine.retries,
        record=True,
        verbatim=True,
        direct=is_own(rollout.server),
        # vLLM's prefix cache knows a LoRA by its name and path: what it computed with those of an earlier
        # run, or of this one before it was resumed, must not be used again.
        extra={"cache_salt": secrets.token_hex(8)} if rollout.push == "vllm-lora" else None,
    )
    engine = await connect(rollout.served_model, connection)
    name = str(policy.tokenizer.name_or_path)
    window = settings.engine.window_tokens or engine.model.window_tokens
    engine.model = replace(
        engine.model, count_tokens=token_counter(policy.tokenizer), tokenizer=name, window_tokens=window
    )
    return Server(engine, settings, run)
