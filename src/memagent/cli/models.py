"""The model to read with, found on this machine; `memagent models` lists models, `models fetch` gets one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich import get_console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from memagent.cli.messages import say, say_json, tell, warn
from memagent.documents.tokens import estimate_tokens
from memagent.engines import ScriptedEngine, open_engine
from memagent.engines.discovery import Search, choose_server, look_around, settings_for, should_search
from memagent.engines.endpoint import UnreachableError
from memagent.engines.gguf import catalogue, hub
from memagent.engines.gguf.hub import CachedModel, list_cached
from memagent.engines.llamacpp.machine import memory_bytes
from memagent.settings import DEFAULT_WINDOW_TOKENS, EngineSettings, Settings, load_settings
from memagent.types import Engine, Model

_GIB = 2**30
_AS_OF = "November 2026"
_WORTH = {
    "hf:unsloth/Qwen3.5-0.8B-GGUF": ("Qwen3.5 0.8B", "Apache-2.0", 530_000_000),
    "hf:unsloth/Qwen3.5-2B-GGUF": ("Qwen3.5 2B", "Apache-2.0", 1_280_000_000),
    "hf:ibm-granite/granite-4.1-3b-GGUF": ("Granite 4.1 3B", "Apache-2.0", 2_099_501_664),
    "hf:unsloth/Qwen3.5-4B-GGUF": ("Qwen3.5 4B", "Apache-2.0", 2_740_000_000),
    "hf:unsloth/gemma-4-E2B-it-GGUF": ("Gemma 4 E2B", "Apache-2.0", 3_110_000_000),
    "hf:unsloth/gemma-4-E4B-it-GGUF": ("Gemma 4 E4B", "Apache-2.0", 4_977_169_568),
    "hf:LiquidAI/LFM2.5-8B-A1B-GGUF": ("LFM2.5-8B-A1B", "LFM Open License", 5_155_564_768),
    "hf:ibm-granite/granite-4.1-8b-GGUF": ("Granite 4.1 8B", "Apache-2.0", 5_347_915_136),
    "hf:unsloth/Qwen3.5-9B-GGUF": ("Qwen3.5 9B", "Apache-2.0", 5_680_000_000),
}
"""Small models that follow instructions, the smallest first, by where a GGUF of them is: the name that their
maker gave them, their licence, and the size of their Q4_K_M file in bytes."""

_BESIDE_BYTES = 2 * _GIB  # for a window of 8K and everything else
_SHARE = 0.75  # of the memory; the rest is for other programs
_NAMES = "The names: " + ", ".join(
    f"{name} ({model.size_bytes / _GIB:.1f} GiB)" for name, model in catalogue.MODELS.items()
)


def with_found_model(settings: Settings, quiet: bool, dry_run: bool = False) -> Settings:
    """The settings with the model that was found, which is named on stderr; a dry run fetches none.

    Raises `SettingsError` or `EngineError` if a model cannot be fetched, or there is none.
    """
    engine = settings.engine
    fetches = not (dry_run and must_fetch(engine))
    if fetches and engine.model and engine.model.startswith(hub.PREFIX) and not engine.base_url:
        path = hub.fetch(engine.model, bars=not quiet)
        tell(f"using {path.name} of {engine.model}")
        return replace(settings, engine=engine.replace(model=str(path)))
    searched = should_search(engine)
    if searched:
        search = asyncio.run(look_around())
        _warn_of_silent(search)
        if choice := choose_server(search, engine.model):
            server, model = choice
            others = "" if len(server.models) == 1 or engine.model else f" (one of {len(server.models)})"
            tell(
                f"using {model}{others} of {server.kind.name} at {server.kind.base_url}; "
                "--model selects another, --no-discover turns this off",
            )
            return replace(settings, engine=asyncio.run(settings_for(server, model, engine)))
        for server in search.servers:
            tell(f"{server.kind.name} at {server.kind.base_url} lists {', '.join(server.models)}")
    if fetches:
        use_default(engine, quiet, searched)
    return settings


@asynccontextmanager
async def open_to_count(settings: EngineSettings) -> AsyncIterator[Engine]:
    """Open an engine to count with; if no model is at hand, one that estimates, with a notice on stderr.

    Raises as `open_engine` does for settings that are wrong.
    """
    async with AsyncExitStack() as stack:
        window_tokens = settings.window_tokens or DEFAULT_WINDOW_TOKENS
        estimating = ScriptedEngine([])
        estimating.model = Model(settings.model or "none yet", estimate_tokens, window_tokens=window_tokens)
        why = "no model is fetched yet"
        if not must_fetch(settings):
            try:
                engine = await stack.enter_async_context(open_engine(settings))
            except UnreachableError as error:
                why = str(error)
            else:
                yield engine
                return
        warn(f"{why}\nestimated for a model with a window of {window_tokens:,} tokens")
        yield estimating


def must_fetch(settings: EngineSettings) -> bool:
    """Whether the model has to be fetched before it can read."""
    name = settings.model or catalogue.DEFAULT
    if not catalogue.may_be_meant(settings):
        return False
    if name.startswith(hub.PREFIX):
        return hub.find_cached(name) is None
    return name in catalogue.MODELS and catalogue.find_cached(name) is None and not settings.api_key


def use_default(engine: EngineSettings, quiet: bool, searched: bool = False) -> None:
    """If the settings leave the model open, name the default on stderr, and offer to fetch it if need be.

    Raises `SettingsError` if it is not there afterwards.
    """
    if engine.model or not catalogue.may_be_meant(engine):
        return
    default = catalogue.MODELS[catalogue.DEFAULT]
    why = "no model is set" + (", and no server was found on this machine" if searched else "")
    asks = not quiet and get_console().is_terminal and sys.stdin is not None and sys.stdin.isatty()
    if asks and catalogue.find_cached(catalogue.DEFAULT) is None:
        size_mb = f"{default.size_bytes / 1e6:.0f} MB"
        question = f"{why.capitalize()}. Fetch {default.title}? {size_mb}, once"
        if click.confirm(question, default=True, err=True):
            _fetch_with_bar(catalogue.DEFAULT, quiet)
    catalogue.find_default()
    tell(f"{why}: using {default.title}, which is small")


def _fetch_with_bar(name: str, quiet: bool) -> Path:
    """Put a model of the catalogue into the cache, with a bar on a terminal. Raises as `catalogue.fetch`."""
    model = catalogue.find(name)
    tell(f"{name}: {model.title}, {model.size_bytes / _GIB:.1f} GiB, licence {model.licence}")
    with Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        disable=quiet or not get_console().is_terminal, transient=True,
    ) as bars:  # fmt: skip
        bar = bars.add_task("", total=model.size_bytes)
        return catalogue.fetch(name, lambda size_bytes: bars.advance(bar, size_bytes))


def _warn_of_silent(search: Search) -> None:
    """Warn where something listens but did not answer in time."""
    for kind in search.silent:
        warn(f"something listens at {kind.base_url} but did not answer: not used ({kind.name}?)")


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[fetch]",
    short_help="List the available models, and others worth fetching.",
)
@click.option("--json", "as_json", is_flag=True, help="print a JSON object")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List available models: the default, those on local servers, and GGUF files that were fetched.

    Then list others worth fetching that fit this machine's memory: a suggestion as of November 2026, not a
    measurement.
    """
    if context.invoked_subcommand:
        return
    search = asyncio.run(look_around()) if load_settings().engine.discover else Search()
    _warn_of_silent(search)
    cache, memory, fetched = list_cached(), memory_bytes(), catalogue.list_cached()
    worth = suggest_models(memory, {model.name.rpartition(":")[0] for model in cache})
    if not as_json:
        say("\n".join([*_lines(search, fetched, cache), *_suggestions(memory, worth)]))
        return
    servers = [
        {"name": server.kind.name, "base_url": server.kind.base_url, "models": server.models}
        for server in search.servers
    ]
    say_json(
        {
            "default": catalogue.DEFAULT,
            "servers": servers,
            "fetched": [asdict(model) for model in fetched],
            "cache": [asdict(model) for model in cache],
            "memory_bytes": memory,
            "worth_fetching": worth,
        }
    )


def suggest_models(memory: int | None, there: set[str]) -> list[str]:
    """The models that fit into `memory` bytes and are not `there`, largest first."""
    room = (memory or 0) * _SHARE - _BESIDE_BYTES
    return [name for name, (_, _, size) in reversed(_WORTH.items()) if size <= room and name not in there]


def _lines(search: Search, fetched: list[CachedModel], cache: list[CachedModel]) -> Iterator[str]:
    cached = catalogue.find_cached(catalogue.DEFAULT)
    yield f"default: {catalogue.DEFAULT}" + ("" if cached else ", not fetched yet: memagent models fetch")
    for server in search.servers:
        yield f"{server.kind.name} at {server.kind.base_url}: {', '.join(server.models)}"
    if not search.servers:
        yield "servers on this machine: none found"
    for where, models in (("fetched", fetched), ("in the hub's cache", cache)):
        for model in models:
            yield f"{where}: {model.name}, {model.size_bytes / _GIB:.1f} GiB"


def _suggestions(memory: int | None, worth: Sequence[str]) -> Iterator[str]:
    if worth:
        known = "unknown memory" if memory is None else f"{memory / _GIB:.0f} GiB of memory"
        yield f"worth fetching with {known} (a suggestion as of {_AS_OF}):"
    for name in worth:
        called, licence, size_bytes = _WORTH[name]
        yield f"  --model {name}  {size_bytes / _GIB:.1f} GiB, {called}, {licence}"


@command.command(short_help="Get a small model that follows instructions.", epilog=_NAMES)
@click.argument("name", default=catalogue.DEFAULT)
@click.option("--quiet", is_flag=True, help="no progress on stderr")
def fetch(name: str, quiet: bool) -> None:
    """Get the model NAME, by default qwen2.5-coder-0.5b, or a GGUF of the hub (hf:ORG/REPO).

    It is kept in the cache: `--model NAME` then reads with it, offline too.
    """
    hosted = name.startswith(hub.PREFIX)
    say(str(hub.fetch(name, bars=not quiet) if hosted else _fetch_with_bar(name, quiet)))
