"""A server of the tiny policy that speaks as vLLM and SGLang do: it takes weights, and tells the ids."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from memagent.engines.torch.chats import chat_ids
from memagent.training.optimization.policy import load_policy
from memagent.training.settings import TrainingSettings
from memagent.types import Message
from server import Fault, Server, refusal

BASE = "tiny"


class Serving:
    """The base model of the settings, with the LoRAs that were loaded, or with the weights that came last."""

    def __init__(self, settings: TrainingSettings) -> None:
        plain = settings.policy.replace(lora_rank=0)
        policy = load_policy(plain, settings.rollout.temperature, settings.seed)
        self.tokenizer: Any = policy.tokenizer
        self.models: dict[str, Any] = {BASE: policy.network}
        self.taken: list[tuple[str, str]] = []
        self._base = lambda: load_policy(plain, 1.0, settings.seed).network
        self._lock = threading.Lock()
        self.pages = {
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
            "/update_weights_from_disk": self._update,
        }

    def _load(self, body: dict[str, Any]) -> Fault:
        name, path = body["lora_name"], body["lora_path"]
        if name in self.models:
            return refusal(400, f"The lora adapter '{name}' has already been loaded.")
        with self._lock:
            self.models[name] = PeftModel.from_pretrained(self._base(), path).eval()
        self.taken.append(("load", name))
        return Fault(headers={"Content-Type": "text/plain"}, body=f"Success: LoRA adapter '{name}' added.")

    def _unload(self, body: dict[str, Any]) -> Fault:
        name = body["lora_name"]
        if name not in self.models:
            return refusal(404, f"The lora adapter '{name}' cannot be found.")
        del self.models[name]
        self.taken.append(("unload", name))
        return Fault(headers={"Content-Type": "text/plain"}, body=f"Success: '{name}' removed.")

    def _update(self, body: dict[str, Any]) -> Fault:
        path = Path(body["model_path"])
        with self._lock:
            self.models[BASE] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.taken.append(("update", path.name))
        return Fault(body='{"success": true, "message": "Succeeded to update model weights."}')

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        """A completion as vLLM gives it to one who asks for token ids and log-probabilities."""
        messages = [Message(message["role"], message["content"]) for message in body["messages"]]
        prompt = chat_ids(self.tokenizer, messages)
        generator = torch.Generator().manual_seed(body.get("seed") or 0)
        ids: list[int] = []
        logprobs: list[float] = []
        with self._lock, torch.no_grad():
            network = self.models[body["model"]]
            while len(ids) < body["max_tokens"] and self.tokenizer.eos_token_id not in ids:
                logits = network(torch.tensor([prompt + ids])).logits[0, -1]
                row = torch.log_softmax(logits / (body["temperature"] or 1.0), -1)
                token = (
                    torch.multinomial(row.exp(), 1, generator=generator)
                    if body["temperature"]
                    else row.argmax()
                )
                ids.append(int(token))
                logprobs.append(float(row[ids[-1]]))
        ended = ids[-1] == self.tokenizer.eos_token_id
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.tokenizer.decode(ids, skip_special_tokens=True)},
            "finish_reason": "stop" if ended else "length",
            "logprobs": {"content": [{"token": "", "logprob": logprob} for logprob in logprobs]},
            "token_ids": ids,
        }
        return {
            "object": "chat.completion", "model": body["model"], "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
            "prompt_token_ids": prompt,
        }  # fmt: skip

    def start(self, **options: Any) -> Server:
        """The server; close it."""
        return Server(completion=self.completion, pages=self.pages, listed=[{"id": BASE}], **options)
