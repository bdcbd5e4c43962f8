"""Settings of llama.cpp for the default model, or for the GGUF of `--model`.

The servers run in this process, on one thread unless stated otherwise, one at a time. Speeds are per second
of processor time, which a busy machine hardly changes; only the part `waiting`, which is about busy machines,
uses the clock. Not covered: what a setting does to the answers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import measure

from memagent.engines.gguf import catalogue
from memagent.engines.llamacpp import engine as llamacpp

_DECODED_TOKENS = 64
_PACKAGES = ("memagent", "xllamacpp", "gguf")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Client:
    """Posts to a running server."""

    address: str

    def post(self, path: str, **body: Any) -> Any:
        """The reply's JSON."""
        headers = {"Authorization": "Bearer key", "Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), headers)
        with _DIRECT.open(request) as reply:
            return json.load(reply)

    def tokens(self, text: str) -> list[int]:
        """The text's token ids."""
        tokens: list[int] = self.post("/tokenize", content=text, add_special=False)["tokens"]
        return tokens

    def complete(self, prompt: list[int], tokens: int, **options: Any) -> Any:
        """A greedy completion of `tokens` tokens."""
        fixed = {"temperature": 0, "ignore_eos": True, "n_predict": tokens}
        return self.post("/completion", prompt=prompt, **(fixed | options))


@contextmanager
def server(path: Path, window_tokens: int = 8192, threads: int = 1, **changed: Any) -> Iterator[Client]:
    """memagent's own server with some parameters changed."""
    xllamacpp = llamacpp.import_xllamacpp()
    params = llamacpp.parameters(xllamacpp, llamacpp.ServerStart(path, window_tokens, 1, threads, "key"))
    params.cpuparams.n_threads = threads  # for writing too, for which memagent uses one
    for name, value in changed.items():
        setattr(params, name, value)
    running = xllamacpp.Server(params)
    yield Client(running.listening_address)
    del running


def speeds(client: Client, prompt: list[int]) -> tuple[float, float]:
    """Tokens per second of processor time: reading the prompt, writing after it."""
    began = time.process_time()
    client.complete(prompt, 1, cache_prompt=False)
    read = time.process_time()
    client.complete(prompt, 1 + _DECODED_TOKENS)
    return len(prompt) / (read - began), _DECODED_TOKENS / (time.process_time() - read)


_WAYS: dict[str, dict[str, Any]] = {
    "memagent's (batches of 512)": {},
    "batches of 128": {"n_batch": 128, "n_ubatch": 128},
    "batches of 256": {"n_batch": 256, "n_ubatch": 256},
    "batches of 2048, in parts of 512": {"n_batch": 2048, "n_ubatch": 512},
    "without flash attention": {"flash_attn_type": 0},
    "without repacking": {"no_extra_bufts": True},
}


def settings(text: str, path: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Batches, flash attention and repacking, at two lengths of prompt; every round tries all in turn."""
    taken: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(server(path, **changed)) for name, changed in _WAYS.items()}
        tokens = next(iter(clients.values())).tokens(text)
        for _ in range(args.rounds):
            for length in (args.prompt_tokens // 4, args.prompt_tokens):
                for name, client in clients.items():
                    taken.setdefault((length, name), []).append(speeds(client, tokens[:length]))
    return [
        {
            "settings": name,
            "prompt": length,
            "read/CPU s": round(median(read for read, _ in timings), 1),
            "write/CPU s": round(median(write for _, write in timings), 1),
        }
        for (length, name), timings in taken.items()
    ]


def waiting(_text: str, path: Path, _args: argparse.Namespace) -> list[dict[str, Any]]:
    """Threads that spin or sleep while they wait for each other, alone and beside a busy process."""
    rows = []
    for busy in (0, 1):
        for threads, policy in ((1, "passive"), (2, "default"), (2, "passive")):
            neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
            try:
                timings = json.loads(_in_a_process(path, threads, policy))
            finally:
                for neighbour in neighbours:
                    neighbour.kill()
                    neighbour.wait()
            rows.append({"busy processes beside it": busy, "threads": threads, "waiting": policy} | timings)
    return rows


def _in_a_process(path: Path, threads: int, policy: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    options = ["--threads", str(threads), "--policy", policy]
    command = [sys.executable, __file__, "--work", str(path), *options]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def work(path: Path, threads: int, policy: str) -> None:
    """Time reading and writing by the clock, and print the speeds, in a process of `waiting`."""
    if policy == "default":
        importlib.import_module("xllamacpp")  # before memagent can set the policy
    with server(path, 2048, threads) as client:
        prompt = client.tokens(measure.STORY.read_text("utf-8"))[:500]
        options = {"cache_prompt": False}
        taken = [client.complete(prompt, 1 + _DECODED_TOKENS, **options)["timings"] for _ in range(3)]
    print(
        json.dumps(
            {
                "read/s": median(item["prompt_per_second"] for item in taken),
                "write/s": median(item["predicted_per_second"] for item in taken),
            }
        )
    )


_PARTS: dict[str, Callable[[str, Path, argparse.Namespace], list[dict[str, Any]]]] = {
    "settings": settings,
    "waiting": waiting,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=[*_PARTS])
    parser.add_argument("--model", type=Path, help="another GGUF")
    parser.add_argument("--text", type=Path, default=measure.STORY)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    measure.add_json_flag(parser)
    args = parser.parse_args()
    if args.work:
        return work(args.work, args.threads, args.policy)
    record = measure.provenance()
    record["versions"] = {name: measure.find_version(name) for name in _PACKAGES}
    text = args.text.read_text("utf-8")
    model = args.model or catalogue.find_default()
    for name in args.parts:
        record[name] = rows = _PARTS[name](text, model, args)
        print(f"\n{name}\n\n{measure.table([*rows[0]], [[*row.values()] for row in rows])}", flush=True)
    measure.write_json(args.json, record)
    return None


if __name__ == "__main__":
    main()
