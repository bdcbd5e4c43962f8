"""GGUF models from the Hugging Face hub, downloaded into the hub's own cache.

`hf:ORG/REPO` is the repository's Q4_K_M, or the quantisation nearest to it; `hf:ORG/REPO:QUANT` is another.
A model in the cache is used without asking the hub. Needs the extra `hub`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.errors import EngineError, SettingsError, extra_hint, reason

PREFIX = "hf:"
DEFAULT_QUANT = "Q4_K_M"
_LIST_SECONDS = 30.0

_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?\Z", re.ASCII)
_QUANT = re.compile(
    r"(?i)(?:\A|[-_./])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4(?:_MOE)?))(?=[-_./]|\Z)"
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")
_NO_MODEL = re.compile(r"(?i)(?:\A|/)mmproj|imatrix|(?:\A|[-_.])lora(?:[-_.]|\Z)")
_BITS = re.compile(r"\d+")

Files = tuple[str, ...]
"""The files of one quantisation in a repository. Loading the first loads the others too."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A GGUF in a cache; `name` loads it."""

    name: str
    path: Path
    size_bytes: int


def fetch(name: str, bars: bool = True) -> Path:
    """The file of a model named `hf:...`, downloaded unless it is in the cache. Blocks.

    With `bars`, stderr shows the progress. Raises `SettingsError` for a model that does not exist or is not
    accessible, `EngineError` for a hub that fails.
    """
    repo, quant = _parse(name)
    if path := find_cached(name):
        return path
    hub = _hub()
    if not bars:
        hub.utils.disable_progress_bars()
    try:
        models = models_in(
            sibling.rfilename for sibling in hub.HfApi().model_info(repo, timeout=_LIST_SECONDS).siblings
        )
        paths = [Path(hub.hf_hub_download(repo, file)) for file in _pick(models, quant, repo)]
    except (SettingsError, EngineError):
        raise
    except Exception as error:  # from the library, HTTP or the system
        raise _explain(error, repo, hub) from error
    return paths[0]


def find_cached(name: str) -> Path | None:
    """The file of a model in the hub's cache, None unless all of it is there.

    If the name has no quantisation, any one will do.
    """
    repo, quant = _parse(name)
    folder = _snapshot(_hub(), repo)
    if folder is None or not (models := _whole_models(folder)):
        return None
    model = _find_quant(models, quant) if quant else _nearest(models)
    return folder / model[0] if model else None


def models_in(files: Iterable[str]) -> dict[str, Files]:
    """The models among the files of a repository, by quantisation; the parts of a model are in order."""
    groups: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.endswith(".gguf") and not _NO_MODEL.search(file):
            groups.setdefault(_PART.sub(".gguf", file), []).append(file)
    models: dict[str, Files] = {}
    for whole, parts in groups.items():
        labels = _QUANT.findall(whole.removesuffix(".gguf"))
        label = labels[-1].upper() if labels else Path(whole).stem
        if label in models:  # several models share a quantisation: use the file's name
            label = Path(whole).stem
        models[label] = tuple(parts)
    return models


def list_cached() -> list[CachedModel]:
    """The GGUF models in the hub's cache; none without the extra `hub`."""
    try:
        hub = _hub()
    except SettingsError:
        return []
    models = []
    for folder in sorted(Path(hub.constants.HF_HUB_CACHE).glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(hub, repo)
        if snapshot is None:
            continue
        for label, parts in _whole_models(snapshot).items():
            size = sum((snapshot / file).stat().st_size for file in parts)
            models.append(CachedModel(f"{PREFIX}{repo}:{label}", snapshot / parts[0], size))
    return models


def _snapshot(hub: Any, repo: str) -> Path | None:
    try:
        return Path(hub.snapshot_download(repo, local_files_only=True))
    except (hub.errors.LocalEntryNotFoundError, hub.errors.HFValidationError):
        return None


def _whole_models(snapshot: Path) -> dict[str, Files]:
    """The models in a snapshot of which no part is missing, by quantisation."""
    files = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.exists())
    return {
        label: parts
        for label, parts in models_in(files).items()
        if (last := _PART.search(parts[-1])) is None or len(parts) == int(last[2])
    }


def _parse(name: str) -> tuple[str, str | None]:
    match = _NAME.match(name)
    if match is None:
        raise SettingsError(f"{name!r} is not a hub model: write it as hf:ORG/REPO or hf:ORG/REPO:QUANT")
    return match["repo"], match["quant"]


def _pick(models: Mapping[str, Files], quant: str | None, repo: str) -> Files:
    if not models:
        raise SettingsError(f"{repo} has no GGUF file: look for a repository whose name ends in GGUF")
    if quant is None:
        return _nearest(models)
    if model := _find_quant(models, quant):
        return model
    raise SettingsError(f"{repo} has no {quant}: it has {', '.join(models)}")


def _find_quant(models: Mapping[str, Files], quant: str) -> Files | None:
    return next((files for label, files in models.items() if label.lower() == quant.lower()), None)


def _nearest(models: Mapping[str, Files]) -> Files:
    """Q4_K_M, or the nearest to it: by number of bits, rather more than fewer, K before others."""

    def distance(label: str) -> tuple[float, bool, str]:
        digits = _BITS.search(label)
        bits = int(digits[0]) if digits else 99
        return (abs(bits - 4) + 0.5 * (bits < 4), "_K" not in label, label)

    return models.get(DEFAULT_QUANT) or models[min(models, key=distance)]


def _explain(error: Exception, repo: str, hub: Any) -> SettingsError | EngineError:
    errors = hub.errors
    where = f"{hub.constants.ENDPOINT}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return SettingsError(
            f"{repo} is gated: accept its terms at {where}, then set HF_TOKEN to a token of your account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return SettingsError(
            f"there is no {where}; if it is private, set HF_TOKEN to a token that may read it"
        )
    offline = errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError
    if isinstance(error, offline) and hub.constants.HF_HUB_OFFLINE:
        return SettingsError(f"{repo} is not in the cache, and the hub is not asked: unset HF_HUB_OFFLINE")
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        return SettingsError(f"{repo} cannot be stored in {hub.constants.HF_HUB_CACHE}: {reason(error)}")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return EngineError(
        f"{where} cannot be fetched ({lines[0][:200]}): run the same command again to continue"
    )


def _hub() -> Any:
    """The library, which reads its settings from the environment when it is loaded."""
    try:
        for part in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{part}")
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise SettingsError(f"the model hf:... needs a package: {extra_hint('hub')}") from error
