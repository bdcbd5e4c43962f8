"""`memagent models`: the available models, and others worth fetching; `models fetch` gets one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click
from rich.console import Console

from memagent.cli.finding import fetch_with_bar, warn_of_silent
from memagent.cli.messages import say, say_json
from memagent.engines.discovery import Search, look_around
from memagent.engines.llamacpp import catalogue, hub
from memagent.engines.llamacpp.hub import CachedModel, list_cached
from memagent.engines.llamacpp.machine import memory_bytes
from memagent.settings import load_settings

_GIB = 2**30
_AS_OF = "November 2026"


@dataclass(frozen=True, slots=True)
class _Worth:
    """A model by its maker's name, its licence, and the size of its Q4_K_M file in bytes."""

    name: str
    licence: str
    size_bytes: int


_WORTH = {
    "hf:unsloth/Qwen3.5-0.8B-GGUF": _Worth("Qwen3.5 0.8B", "Apache-2.0", 530_000_000),
    "hf:unsloth/Qwen3.5-2B-GGUF": _Worth("Qwen3.5 2B", "Apache-2.0", 1_280_000_000),
    "hf:ibm-granite/granite-4.1-3b-GGUF": _Worth("Granite 4.1 3B", "Apache-2.0", 2_099_501_664),
    "hf:unsloth/Qwen3.5-4B-GGUF": _Worth("Qwen3.5 4B", "Apache-2.0", 2_740_000_000),
    "hf:unsloth/gemma-4-E2B-it-GGUF": _Worth("Gemma 4 E2B", "Apache-2.0", 3_110_000_000),
    "hf:unsloth/gemma-4-E4B-it-GGUF": _Worth("Gemma 4 E4B", "Apache-2.0", 4_977_169_568),
    "hf:LiquidAI/LFM2.5-8B-A1B-GGUF": _Worth("LFM2.5-8B-A1B", "LFM Open License", 5_155_564_768),
    "hf:ibm-granite/granite-4.1-8b-GGUF": _Worth("Granite 4.1 8B", "Apache-2.0", 5_347_915_136),
    "hf:unsloth/Qwen3.5-9B-GGUF": _Worth("Qwen3.5 9B", "Apache-2.0", 5_680_000_000),
}
"""Small models that follow instructions, by where a GGUF of them is, the smallest first."""

_BESIDE_BYTES = 2 * _GIB  # for a window of 8K and everything else
_SHARE = 0.75  # of the memory; the rest is for other programs
_NAMES = "The names: " + ", ".join(
    f"{name} ({it.size_bytes / _GIB:.1f} GiB)" for name, it in catalogue.MODELS.items()
)


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[fetch]",
    short_help="List the available models, and others worth fetching.",
)
@click.option("--json", "as_json", is_flag=True, help="print a JSON object")
@click.pass_context
def command(context: click.Context, as_json: bool) -> int:
    """List available models: the default, those on local servers, and GGUF files that were fetched.

    Then list others worth fetching that fit this machine's memory: a suggestion as of November 2026, not a
    measurement.
    """
    return 0 if context.invoked_subcommand else _list(context.obj, as_json)


def _list(console: Console, as_json: bool) -> int:
    search = asyncio.run(look_around()) if load_settings().engine.discover else Search()
    warn_of_silent(search, console)
    cache, memory = list_cached(), memory_bytes()
    fetched = catalogue.list_cached()
    worth = suggest_models(memory, {it.name.rpartition(":")[0] for it in cache})
    if as_json:
        say_json(
            {
                "default": catalogue.DEFAULT,
                "servers": [
                    {"name": it.place.name, "base_url": it.place.base_url, "models": it.models}
                    for it in search.servers
                ],
                "fetched": [{**asdict(it), "path": str(it.path)} for it in fetched],
                "cache": [{**asdict(it), "path": str(it.path)} for it in cache],
                "memory_bytes": memory,
                "worth_fetching": worth,
            }
        )
        return 0
    say("\n".join(_lines(search, fetched, cache, memory, worth)))
    return 0


def suggest_models(memory: int | None, there: set[str]) -> list[str]:
    """The models that fit into `memory` bytes and are not `there`, largest first."""
    room = (memory or 0) * _SHARE - _BESIDE_BYTES
    return [name for name, it in reversed(_WORTH.items()) if it.size_bytes <= room and name not in there]


def _lines(
    search: Search,
    fetched: list[CachedModel],
    cache: list[CachedModel],
    memory: int | None,
    worth: list[str],
) -> Iterator[str]:
    there = catalogue.find_cached(catalogue.DEFAULT)
    yield f"default: {catalogue.DEFAULT}" + ("" if there else ", not fetched yet: memagent models fetch")
    for server in search.servers:
        yield f"{server.place.name} at {server.place.base_url}: {', '.join(server.models)}"
    if not search.servers:
        yield "servers on this machine: none found"
    for it in fetched:
        yield f"fetched: {it.name}, {it.size_bytes / _GIB:.1f} GiB"
    for it in cache:
        yield f"in the hub's cache: {it.name}, {it.size_bytes / _GIB:.1f} GiB"
    if worth:
        told = "unknown memory" if memory is None else f"{memory / _GIB:.0f} GiB of memory"
        yield f"worth fetching with {told} (a suggestion as of {_AS_OF}):"
        for name in worth:
            model = _WORTH[name]
            yield f"  --model {name}  {model.size_bytes / _GIB:.1f} GiB, {model.name}, {model.licence}"


@command.command(short_help="Get a small model that follows instructions.", epilog=_NAMES)
@click.argument("name", default=catalogue.DEFAULT)
@click.option("--quiet", is_flag=True, help="no progress on stderr")
@click.pass_obj
def fetch(console: Console, name: str, quiet: bool) -> int:
    """Get the model NAME, by default qwen2.5-coder-0.5b, or a GGUF of the hub (hf:ORG/REPO).

    It is kept in the cache: `--model NAME` then reads with it, offline too.
    """
    if name.startswith(hub.PREFIX):
        say(str(hub.fetch(name, bars=not quiet)))
        return 0
    say(str(fetch_with_bar(name, console, quiet)))
    return 0
