"""LoRA adapters, a GGUF file or (transformers only) a PEFT folder; and how models were trained to read.

An adapter is found once, when an engine is opened: its path, its name for the record, and how it was trained.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from memagent.errors import SettingsError
from memagent.settings import EngineSettings, Positive, read_toml
from memagent.storage import file_digest, write_whole
from memagent.strict import StrictModel, build
from memagent.types import Trained

_PUBLISHED = "rl-memoryagent-"
_PEFT_CONFIG = "adapter_config.json"
_PEFT_TOML = "memagent.toml"
_PEFT_FILES = (_PEFT_CONFIG, "adapter_model.safetensors", "adapter_model.bin")


class _TrainedBudgets(StrictModel):
    """The budgets that an adapter was trained with, in tokens."""

    problem_tokens: Positive | None = None
    chunk_tokens: Positive | None = None
    memory_tokens: Positive | None = None
    answer_tokens: Positive | None = None


class _TrainedFile(StrictModel):
    """The TOML file beside an adapter, without its templates."""

    workflow: str | None = None
    budgets: _TrainedBudgets = Field(default_factory=_TrainedBudgets)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter at `path`; its `name` ends in a digest of its content, since file names are reused."""

    path: Path
    name: str
    trained: Trained


def find_adapter(settings: EngineSettings, engine: str) -> Adapter | None:
    """Find the adapter that an engine should use, or None. Blocks.

    Raises `SettingsError` for an adapter that does not exist or that the engine cannot use, and what
    `read_trained` raises.
    """
    if not settings.adapter:
        return None
    path = Path(settings.adapter).expanduser()
    is_folder = (path / _PEFT_CONFIG).is_file()
    if engine == "openai":
        raise SettingsError(
            f"the adapter {path} cannot be sent to an endpoint: load it where the model is served, "
            "and set `model` to the name it is served under"
        )
    if not is_folder and not path.is_file():
        raise SettingsError(
            f"there is no adapter {path}: with `adapter`, name a GGUF adapter or a folder with {_PEFT_CONFIG}"
        )
    if engine == "llamacpp" and is_folder:
        raise SettingsError(
            f"the adapter {path} is a PEFT folder, llama.cpp takes a GGUF adapter: "
            "set `engine` to transformers, or export it again with `to` gguf-adapter"
        )
    return read_adapter(path)


def read_adapter(path: Path) -> Adapter:
    """Read an adapter's name and how it was trained. Blocks. Raises what `read_trained` raises."""
    files = [path / name for name in _PEFT_FILES] if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(file_digest(file))
    name = f"{path.resolve().name.removesuffix('.gguf')}@{digest.hexdigest()[:12]}"
    return Adapter(path, name, read_trained(path))


def name_with(model: str, adapter: Adapter | None) -> str:
    """The model's name for the record, with that of its adapter."""
    return f"{model} + {adapter.name}" if adapter else model


def read_trained(adapter: str | Path | None) -> Trained:
    """The budgets, workflow and templates that an adapter says it was trained with; empty for none.

    A TOML file holds them: `reader.toml` beside `reader.gguf`, or `memagent.toml` in a PEFT folder. Raises
    `SettingsError` for one that cannot be read, and for invalid values.
    """
    if adapter is None:
        return Trained()
    beside = trained_file(Path(adapter))
    templates = read_toml(beside) if beside.is_file() else {}
    others: dict[str, object] = {
        name: templates.pop(name) for name in ("workflow", "budgets") if name in templates
    }
    trained = build(_TrainedFile, others, str(beside))
    if templates and not trained.workflow:
        raise SettingsError(f"{beside}: there are templates, but no workflow for them: add one")
    budgets = trained.budgets.model_dump(exclude_none=True)
    return Trained(budgets, workflow=trained.workflow, templates=templates)


def write_trained(adapter: Path, trained: Trained) -> None:
    """Write what an adapter was trained with where `read_trained` finds it; if it is empty, write no file.

    Raises `OSError`.
    """
    texts = {"workflow": trained.workflow, **trained.templates}
    lines = [
        f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in texts.items() if text is not None
    ]
    if trained.budgets:
        lines += ["", "[budgets]", *(f"{name} = {tokens}" for name, tokens in trained.budgets.items())]
    if lines:
        write_whole(trained_file(adapter), "\n".join(lines) + "\n")


def trained_file(adapter: Path) -> Path:
    """The TOML file that says what an adapter was trained with."""
    return adapter / _PEFT_TOML if adapter.is_dir() else adapter.with_suffix(".toml")


def find_trained(model: str, adapter: Adapter | None = None) -> Trained:
    """How a model was trained to read: as its adapter says, or by its name; empty if neither says so.

    Args:
        model: a name as a server, a hub or a file has it, such as `BytedTsinghua-SIA/RL-MemoryAgent-7B` or
            `RL-MemoryAgent-14B-Q4_K_M`.
        adapter: the adapter that it is used with.

    The published readers known are MemAgent's own (arXiv 2507.02259), by the settings of their quickstart.
    Their prompts are their authors' and come from the user's own file: see docs/published-readers.md.
    """
    if adapter is not None:
        return adapter.trained
    name = model.rstrip("/").rpartition("/")[2]
    if not name.lower().startswith(_PUBLISHED):
        return Trained()
    return Trained(
        {"problem_tokens": 1024, "chunk_tokens": 5000, "memory_tokens": 1024, "answer_tokens": 1024},
        workflow="overwrite",
        settings={"temperature": 0.7, "top_p": 0.95, "chunk_ends": "exact"},
        published=name,
    )
