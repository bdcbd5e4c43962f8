"""Settings of llama.cpp for the embedded reader, each beside the default: batch, threads, cache, speculation.

The prompts are those of a RULER example with several needles, in two workflows: `gated`, which mostly replies
UNCHANGED, and `overwrite`, which copies its memory into every reply. The default and the changed server
run in one process and get each prompt in turn, so that other work on the machine affects both; the median
over the prompts is reported. `the default again` shows how much of a difference is chance. Run it on a
quiet machine. Not covered: cached prompt prefixes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import measure

from memagent import EngineSettings, Read, ReadSettings, open_engine, text_document
from memagent.engines.adapters import READER, read_adapter
from memagent.engines.llamacpp import embedded
from memagent.engines.llamacpp import engine as llamacpp
from memagent.engines.llamacpp.machine import available_cores
from memagent.reading.workflows import choose_workflow
from memagent.tasks import TASKS, Recipe
from memagent.types import Message

WORKFLOWS = ("gated", "overwrite")
_TASK = "niah_multivalue"
_REPLY_TOKENS = 128  # the memory that the reader was trained with
_WINDOW_TOKENS = 8192
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Change = Callable[[Any, Any], None]
"""Given the xllamacpp module and llama.cpp's parameters, changes the parameters."""


def _batch(tokens: int) -> Change:
    def change(_: Any, params: Any) -> None:
        params.n_batch = params.n_ubatch = tokens

    return change


def _plain_attention(xllamacpp: Any, params: Any) -> None:
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED


def _lora_beside(xllamacpp: Any, params: Any) -> None:
    params.model.path = str(embedded.default_model())
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(READER), 1.0)]


def _no_repacking(_: Any, params: Any) -> None:
    params.no_extra_bufts = True


def _cache(keys: str, values: str) -> Change:
    def change(xllamacpp: Any, params: Any) -> None:
        params.cache_type_k = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{keys}")
        params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{values}")

    return change


def _reading_threads(_: Any, params: Any) -> None:
    params.cpuparams_batch.n_threads = 1


def _writing_threads(_: Any, params: Any) -> None:
    params.cpuparams.n_threads = 2


def _speculation(kind: str, known: int | None = None, drafted: int | None = None) -> Change:
    """Draft what followed the last `known` tokens at an earlier place, at most `drafted` tokens."""

    def change(xllamacpp: Any, params: Any) -> None:
        name = f"COMMON_SPECULATIVE_TYPE_NGRAM_{kind.upper()}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
        if known and drafted:
            how = getattr(params.speculative, f"ngram_{kind}")
            how.size_n, how.size_m = known, drafted

    return change


SETTINGS: dict[str, Change] = {
    "the default again": lambda *_: None,
    "batch 64": _batch(64),
    "batch 128": _batch(128),
    "batch 256": _batch(256),
    "without flash attention": _plain_attention,
    "without repacking": _no_repacking,
    "the LoRA beside the model": _lora_beside,
    "KV cache F32": _cache("F32", "F32"),
    "keys Q8_0": _cache("Q8_0", "F16"),
    "KV cache Q8_0": _cache("Q8_0", "Q8_0"),
    "reading with one thread": _reading_threads,
    "writing with two threads": _writing_threads,
    "ngram-simple, 12 then 48": _speculation("simple"),
    "ngram-simple, 4 then 16": _speculation("simple", 4, 16),
    "ngram-map-k, 4 then 16": _speculation("map_k", 4, 16),
    "ngram-cache": _speculation("cache"),
}


@dataclass(frozen=True)
class Reply:
    """What a server made of a prompt, and its own times in seconds."""

    text: str
    prompt_tokens: int
    written_tokens: int
    read_seconds: float
    write_seconds: float
    drafted: int = 0
    accepted: int = 0

    @property
    def seconds(self) -> float:
        """Reading and writing together."""
        return self.read_seconds + self.write_seconds


@dataclass(frozen=True)
class Pair:
    """A prompt's replies: by the default, and by the changed server."""

    workflow: str
    default: Reply
    changed: Reply


class Server:
    """A running server of llama.cpp's."""

    def __init__(self, address: str) -> None:
        self._address = address

    def reply(self, messages: Sequence[Message]) -> Reply:
        """The greedy reply to a prompt, without using the cache."""
        plain: dict[str, Any] = {"temperature": 0, "max_tokens": _REPLY_TOKENS, "cache_prompt": False}
        chat = {"messages": [asdict(it) for it in messages], **llamacpp._PLAIN_SAMPLING, **plain}
        headers = {"Authorization": "Bearer key", "Content-Type": "application/json"}
        body = json.dumps(chat).encode()
        request = urllib.request.Request(f"{self._address}/v1/chat/completions", body, headers)
        with _DIRECT.open(request) as answer:
            told = json.load(answer)
        times = told["timings"]
        return Reply(
            text=told["choices"][0]["message"]["content"],
            prompt_tokens=times["prompt_n"],
            written_tokens=times["predicted_n"],
            read_seconds=times["prompt_ms"] / 1000,
            write_seconds=times["predicted_ms"] / 1000,
            drafted=times.get("draft_n", 0),
            accepted=times.get("draft_n_accepted", 0),
        )


@contextmanager
def server(change: Change | None = None) -> Iterator[Server]:
    """memagent's own server with the default reader, and changed parameters if there is a `change`."""
    xllamacpp = llamacpp.import_xllamacpp()
    path = embedded.merge_adapter(read_adapter(READER))
    assert path, "the cache cannot be written"
    threads = available_cores()
    params = llamacpp.parameters(xllamacpp, llamacpp.ServerStart(path, _WINDOW_TOKENS, 1, threads, "key"))
    if change:
        change(xllamacpp, params)
    running = xllamacpp.Server(params)
    yield Server(running.listening_address)
    del running


async def prompts_of(tokens: int, count: int) -> dict[str, list[tuple[Message, ...]]]:
    """The prompts of the last `count` updates of an example of so many tokens, for each workflow.

    `overwrite` gets the memories that `gated` wrote: the embedded reader was not trained to write its own.
    """
    example = TASKS[_TASK].make(Recipe(length_tokens=tokens), 0)
    document, memory = text_document(example.document, is_example=True), ""
    made: dict[str, list[tuple[Message, ...]]] = {it: [] for it in WORKFLOWS}
    async with open_engine(EngineSettings(engine="llamacpp")) as engine:
        gated, overwrite = (ReadSettings(workflow=it) for it in WORKFLOWS)
        prompts = choose_workflow(overwrite, engine.model.trained)[1].prompts.for_document(
            document.mark, guards_turns=engine.model.reads_turn_tokens, asks=False
        )
        async for it in Read(example.problem, document, engine, gated, asks=False):
            if it.kind == "update" and it.span:
                chunk = example.document[slice(*it.span)]
                made["gated"].append(it.messages)
                made["overwrite"].append(prompts.for_update(example.problem, chunk, memory))
                memory = it.memory
    return {workflow: asked[-count:] for workflow, asked in made.items()}


def pairs_of(
    default: Server, changed: Server, prompts: dict[str, list[tuple[Message, ...]]]
) -> Iterator[Pair]:
    """Give each prompt to both servers, alternating which goes first."""
    default.reply(next(iter(prompts.values()))[0])
    changed.reply(next(iter(prompts.values()))[0])
    for workflow, asked in prompts.items():
        for number, messages in enumerate(asked):
            if number % 2:
                second = changed.reply(messages)
                yield Pair(workflow, default.reply(messages), second)
            else:
                yield Pair(workflow, default.reply(messages), changed.reply(messages))


def row(name: str, pairs: Sequence[Pair]) -> list[str]:
    """A setting's row: speeds, time as a share of the default's, accepted drafts, differing replies."""
    replies = [it.changed for it in pairs]
    read = median(it.prompt_tokens / it.read_seconds for it in replies)
    written = sum(it.written_tokens for it in replies) / sum(it.write_seconds for it in replies)
    drafted, accepted = sum(it.drafted for it in replies), sum(it.accepted for it in replies)
    others = sum(it.changed.text != it.default.text for it in pairs)
    shares = [_share([it for it in pairs if it.workflow == workflow]) for workflow in WORKFLOWS]
    taken = f"{accepted} of {drafted}" if drafted else "-"
    return [name, f"{read:.0f}", f"{written:.0f}", *shares, taken, f"{others} of {len(pairs)}"]


def _share(pairs: Sequence[Pair]) -> str:
    ratios = sorted(it.changed.seconds / it.default.seconds for it in pairs)
    return f"{median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"


HEAD = (
    "setting",
    "read, tokens/s",
    "written, tokens/s",
    *(f"{it}: of the default's time" for it in WORKFLOWS),
    "drafts accepted",
    "other replies",
)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=[*SETTINGS], help="some settings")
    parser.add_argument("--prompts", type=int, default=6, help="of each read (6)")
    parser.add_argument("--length", type=int, default=2048, help="tokens to read for the prompts (2048)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    prompts = asyncio.run(prompts_of(args.length, args.prompts))
    found: dict[str, list[Pair]] = {}
    with server() as default:
        for name in args.only:
            with server(SETTINGS[name]) as changed:
                found[name] = [*pairs_of(default, changed, prompts)]
            print(f"{name}: measured", file=sys.stderr, flush=True)
    replies = [pair.default for pairs in found.values() for pair in pairs]
    read = fmean(it.prompt_tokens for it in replies)
    written = fmean(it.written_tokens for it in replies)
    print(measure.table(HEAD, (row(name, pairs) for name, pairs in found.items())))
    print(f"\nOn average {read:.0f} prompt tokens and {written:.0f} written.")
    told = {name: [asdict(it) for it in pairs] for name, pairs in found.items()}
    measure.write_json(args.json, measure.provenance() | {"settings": told})


if __name__ == "__main__":
    main()
