"""What stands in for vLLM: an actor that verl's own client and load balancer send token ids to."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable
from itertools import count
from typing import Any

import ray
from transformers import AutoTokenizer
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from smollm2 import MODEL

Reply = Callable[[list[int], dict[str, Any]], tuple[list[int], list[float]]]
"""From a prompt's ids and verl's sampling parameters to the ids and log-probabilities of a reply."""


@ray.remote(num_cpus=0)
class Server:
    """Answers with a reply made in this process, and remembers what was asked and answered."""

    def __init__(self, make_reply: Callable[[], Reply]) -> None:
        self._reply = make_reply()
        self._log: list[dict[str, Any]] = []

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **other: Any
    ) -> TokenOutput:
        ids, logprobs = await asyncio.to_thread(self._reply, prompt_ids, sampling_params)
        self._log.append({"prompt": prompt_ids, "ids": ids, "logprobs": logprobs, "how": sampling_params})
        return TokenOutput(
            token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields={"global_steps": 0}
        )

    async def log(self) -> list[dict[str, Any]]:
        return self._log


def client_of(config: Any, server: Any) -> LLMServerClient:
    """verl's client and load balancer, in front of one server."""
    balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote({"only": server})
    return LLMServerClient(config, balancer)


class Script:
    """Keeps the code in memory; its answers are right, wrong, right and empty in turn."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._answers = count()

    @classmethod
    def for_model(cls, folder: str) -> Script:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, prompt_ids: list[int], how: dict[str, Any]) -> tuple[list[int], list[float]]:
        ids = self._tokenizer(self.text(self._tokenizer.decode(prompt_ids)), add_special_tokens=False)[
            "input_ids"
        ]
        ids = [*ids, self._tokenizer.eos_token_id][: how["max_tokens"]]
        return ids, [-0.25 - index / 100 for index in range(len(ids))]

    def text(self, prompt: str) -> str:
        known = re.findall(r"code is (\d+)", prompt)
        if "<chunk" in prompt:
            return f"The code is {known[0]}" if known else "The code is 0000"
        right = known[0] if known else "no idea"
        return (right, "It is 9999", right, "")[next(self._answers) % 4]


class Embedded:
    """SmolLM2 on llama.cpp: prompts and replies are token ids, sampled as verl says."""

    def __init__(self, end: int) -> None:
        from memagent.engines.llamacpp.engine import ServerStart, import_xllamacpp, parameters

        self._end = end
        xllamacpp = import_xllamacpp()
        start = ServerStart(MODEL, window_tokens=1024, slots=1, threads=1, key="its own")
        self._server = xllamacpp.Server(parameters(xllamacpp, start))

    @classmethod
    def for_model(cls, folder: str) -> Embedded:
        return cls(AutoTokenizer.from_pretrained(folder).eos_token_id)

    def __call__(self, prompt_ids: list[int], how: dict[str, Any]) -> tuple[list[int], list[float]]:
        body = {
            "prompt": prompt_ids,
            "n_predict": how["max_tokens"],
            "temperature": how["temperature"],
            "top_p": how["top_p"],
            "n_probs": 1,
        }
        request = urllib.request.Request(
            f"{self._server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Authorization": "Bearer its own", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            reply = json.load(answer)
        tokens = [(entry["id"], entry["logprob"]) for entry in reply["completion_probabilities"]]
        if reply["stop_type"] == "eos":  # sampled, and not listed
            tokens.append((self._end, 0.0))
        return [token for token, _ in tokens], [logprob for _, logprob in tokens]
