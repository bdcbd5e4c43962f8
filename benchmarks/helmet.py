"""Run HELMET (arXiv 2410.02694) on any way of reading: its own data, prompts, scores and files.

    git clone https://github.com/princeton-nlp/HELMET && bash HELMET/scripts/download_data.sh
    python benchmarks/helmet.py HELMET --model NAME --base-url URL --workflow notes --config configs/rag.yaml

Needs HELMET's requirements beside memagent, in one environment. This is its `eval.py` with another model in
it; all that follows --workflow are its own arguments. What an example's prompt says around the context is the
problem, the context is the document, and no document is cut for its length. The longest answer is HELMET's.

Worked examples in the prompt (`shots: 2` in its configurations) are part of the problem, and those of its RAG
sets have passages of their own: allow for them with MEMAGENT_PROBLEM_TOKENS, or use --shots 0.

A read that fails ends the run of its data set without a score, since HELMET leaves out of the mean what has
no reply. The same command then continues from the journals beside its results.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from measure import name_model

from memagent import Settings, aread, load_settings, open_engine, text_document
from memagent.concurrency import map_concurrent
from memagent.types import Engine

Item = dict[str, Any]


@dataclass
class Reading:
    """A way of reading in the place of HELMET's `LLM`; HELMET sets the lengths before each data set."""

    settings: Settings
    traces: Path
    generation_max_length: int = 0  # tokens of an answer
    max_length: int = 0  # tokens of a prompt: not used, nothing is cut
    tokenizer: None = field(default=None, init=False)

    def prepare_inputs(self, item: Item, data: Item) -> Item:
        """The prompt of an example, taken apart into what is asked and the context."""
        problem = data["user_template"].format(**item | {"context": ""})
        return {"problem": re.sub(r"\n{3,}", "\n\n", problem).strip(), "document": item["context"]}

    def generate_batch(self, inputs: Sequence[Item]) -> list[Item]:
        """Read all of them. Raises `MemAgentError` where one fails."""
        return asyncio.run(self._read(inputs))

    async def _read(self, inputs: Sequence[Item]) -> list[Item]:
        self.traces.mkdir(parents=True, exist_ok=True)
        settings = replace(
            self.settings, read=self.settings.read.replace(answer_tokens=self.generation_max_length)
        )
        async with open_engine(settings.engine) as engine:
            work = partial(self._answer, engine=engine, settings=settings)
            async with aclosing(map_concurrent(work, inputs, engine.model.calls)) as outputs:
                return [output async for output in outputs]

    async def _answer(self, item: Item, engine: Engine, settings: Settings) -> Item:
        """What HELMET's models return for a prompt."""
        name = hashlib.sha256(f"{item['problem']}\0{item['document']}".encode()).hexdigest()
        document = text_document(item["document"], is_example=True)
        trace = self.traces / f"{name}.jsonl"
        read = await aread(
            item["problem"], document, engine=engine, settings=settings, trace=trace, resume=True
        )
        usages = [conversation.completion.usage for conversation in read.conversations]
        return {
            "output": read.answer,
            "input_len": sum(usage.prompt_tokens for usage in usages),
            "output_len": sum(usage.completion_tokens for usage in usages),
            "input_text": item["problem"],
        }


def main() -> None:
    """Run HELMET's `eval.py` in its folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("helmet", type=Path, help="a checkout of HELMET, with its data")
    for name in ("--model", "--base-url", "--workflow"):
        parser.add_argument(name)
    options, arguments = parser.parse_known_args()
    settings = load_settings({name: getattr(options, name) for name in ("model", "base_url", "workflow")})
    name = f"{name_model(settings.engine.model or 'memagent')}-{settings.read.workflow or 'auto'}"
    os.chdir(options.helmet)
    sys.path.insert(0, ".")
    sys.argv = ["eval.py", "--no_cuda", "--num_workers", "0", *arguments, "--model_name_or_path", name]
    helmet: Any = importlib.import_module("eval")
    helmet.load_LLM = lambda args: Reading(settings, Path(args.output_dir, "reads"))
    helmet.main()


if __name__ == "__main__":
    main()
