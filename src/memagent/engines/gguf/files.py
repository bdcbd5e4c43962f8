"""GGUF files: read the numbers in a header, and copy a file with new weights. k-quants are not written."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = Callable[[str], NDArray[np.float32] | None]
    """From the name of a tensor to new values for it, or None to keep it as it is."""

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by GGUF type
_WHOLE = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING, _ARRAY = 8, 9


def read_window(path: Path) -> int | None:
    """The context length of a model, in tokens; None where its header has none. Raises as `whole_numbers`."""
    return next((value for key, value in whole_numbers(path) if key.endswith(".context_length")), None)


def whole_numbers(path: Path) -> Iterator[tuple[str, int]]:
    """The integer fields of a GGUF's header as key and value, in file order.

    The `gguf` package would take longer for this than llama.cpp takes to load a small model. Raises
    `OSError`, and `ValueError`, `KeyError` or `struct.error` for a file that is not a GGUF.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("no GGUF")
        _version, _tensors, pairs = _unpack(file, "<IQQ")
        for _ in range(pairs):
            key = file.read(min(_unpack(file, "<Q")[0], 65535))
            (kind,) = _unpack(file, "<I")
            if form := _WHOLE.get(kind):
                yield key.decode("utf-8", "replace"), _unpack(file, form)[0]
            else:
                _skip(file, kind)


def _skip(file: BinaryIO, kind: int, count: int = 1) -> None:
    if kind in _SIZES:
        file.seek(_SIZES[kind] * count, os.SEEK_CUR)
        return
    for _ in range(count):
        if kind == _ARRAY:
            _skip(file, *_unpack(file, "<IQ"))
        elif kind == _STRING:
            file.seek(_unpack(file, "<Q")[0], os.SEEK_CUR)
        else:
            raise ValueError(f"unknown type {kind}")


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def requantise(source: Path, target: Path, quantisation: str, weights: Weights) -> None:
    """Copy a GGUF with the values from `weights`; metadata and other tensors are kept.

    `quantisation` is one that the `gguf` package can write, such as Q8_0, F16 or F32. Raises `OSError`.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    types = gguf.GGMLQuantizationType
    kind = types[quantisation]
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
            if (values := weights(tensor.name)) is not None:
                whole = values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0  # rows of whole blocks
                form = types.F32 if values.ndim == 1 else kind if whole else types.F16  # as llama.cpp wants
                data = gguf.quants.quantize(values, form)
            writer.add_tensor(tensor.name, data, raw_dtype=form)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
