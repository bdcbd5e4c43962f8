"""What a step of training costs: the update in three layouts, and decoding with and without shared prefixes.

    python benchmarks/training.py [--layers 6] [--device cpu] [--json FILE]

A group of G attempts reads one chunk: the prompts begin with the same chunk and continue with their own
memories. Weights are random, of SmolLM2-135M's shape with fewer layers, or from any folder (--model). Every
variant runs in its own process, so that its peak memory can be measured. Reported is the median of --rounds,
on a CPU in processor seconds (use one thread, OMP_NUM_THREADS=1: waiting threads are counted too). "Tokens"
are those of all sequences, whatever a layout saves or pads, so that tokens/s compare work done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import measure
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from memagent.engines.torch import decoding, prefill
from memagent.training.optimization.learner import Learner
from memagent.training.optimization.policy import Policy
from memagent.training.ranks import Ranks
from memagent.training.reinforcement import measure_mib
from memagent.training.settings import LossSettings, OptimizerSettings
from memagent.types import Sampling, TrainingSequence

VOCABULARY = 49152
UPDATES, ROLLOUTS = ("padded", "packed", "shared"), ("apart", "together")


def network(options: argparse.Namespace) -> PreTrainedModel:
    """The model to time."""
    torch.manual_seed(0)
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model).to(options.device)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=options.layers,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).to(options.device)


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    """A clock in seconds: processor time on a CPU, which other work does not affect, else wall time."""
    return time.process_time if options.device == "cpu" else time.perf_counter


def group(options: argparse.Namespace) -> list[TrainingSequence]:
    """The update conversations of one group at one chunk: chunk, problem, memory, reply."""
    draw = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(count))

    beginning = ids(options.chunk)
    return [
        TrainingSequence(
            beginning + ids(draw.randint(options.memory // 2, options.memory)),
            reply := ids(draw.randint(options.memory // 2, options.memory)),
            (-5.0,) * len(reply),
            draw.uniform(-1, 1),
        )
        for _ in range(options.attempts)
    ]


def update(options: argparse.Namespace, layout: Literal["shared", "packed", "padded"]) -> dict[str, float]:
    """Median seconds and tokens/s of an optimizer step."""
    clock = clock_of(options)
    policy = Policy(network(options), None, autocast=options.device != "cpu")
    learner = Learner(policy, OptimizerSettings(layout=layout, batch_tokens=options.budget), Ranks())
    sequences = group(options)
    tokens = sum(len(sequence.prompt_ids) + len(sequence.completion_ids) for sequence in sequences)
    seconds = []
    for _ in range(options.rounds + 1):
        started = clock()
        learner.reinforce(sequences, LossSettings(kl_weight=0.0), OptimizerSettings().learning_rate)
        seconds.append(clock() - started)
    return {
        "tokens": tokens,
        "seconds": median(seconds[1:]),
        "tokens_per_second": tokens / median(seconds[1:]),
    }


def rollout(options: argparse.Namespace, layout: str) -> dict[str, float]:
    """Median seconds and tokens/s, read and written, of decoding a batch."""
    clock, model = clock_of(options), network(options)
    if layout == "apart":
        vars(prefill)["group_by_beginning"] = lambda prompts: [
            (0, [number]) for number in range(len(prompts))
        ]
    sequences = group(options)
    seconds = []
    for _ in range(options.rounds + 1):
        loop = asyncio.new_event_loop()
        rows = [
            decoding.DecodingRow(
                list(sequence.prompt_ids),
                Sampling(options.memory // 2, 1.0, 1.0, index),
                loop.create_future(),
            )
            for index, sequence in enumerate(sequences)
        ]
        started = clock()
        decoding.decode(model, rows, frozenset(), options.device != "cpu")
        seconds.append(clock() - started)
        loop.close()
    tokens = sum(len(sequence.prompt_ids) + options.memory // 2 for sequence in sequences)
    return {
        "tokens": tokens,
        "seconds": median(seconds[1:]),
        "tokens_per_second": tokens / median(seconds[1:]),
    }


def in_own_process(kind: str, layout: str) -> dict[str, float]:
    """Run one variant of this script in its own process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", f"{kind} {layout}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Time the variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 6), ("attempts", 16), ("chunk", 640), ("memory", 128), ("rounds", 3),
                        ("budget", 1 << 20)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model")
    measure.add_json_flag(parser)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, layout = options.only.split()
        measured = (update if kind == "update" else rollout)(options, layout)
        print(json.dumps(measured | {"peak_mib": measure_mib()}))
        return
    variants = [("update", item) for item in UPDATES] + [("rollout", item) for item in ROLLOUTS]
    results = {f"{kind} {layout}": in_own_process(kind, layout) for kind, layout in variants}
    print(f"G = {options.attempts}, chunk {options.chunk}, memory and reply up to {options.memory} tokens")
    rows = []
    for name, result in results.items():
        first = results["update padded" if name.startswith("update") else "rollout apart"]
        ratio = f"{first['seconds'] / result['seconds']:.2f}x"
        rows.append(
            (name, result["seconds"], round(result["tokens_per_second"]), ratio, round(result["peak_mib"]))
        )
    print(measure.table(("", "seconds", "tokens/s", "against the first", "peak MiB"), rows))
    record = measure.provenance() | {"torch": torch.__version__, "device": options.device}
    measure.write_json(options.json, record | {"measured": results})


if __name__ == "__main__":
    main()
