"""Copy a GGUF file with new weights, in another quantisation. Not supported: k-quants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGMLQuantizationType
    from numpy.typing import NDArray

    Weights = Callable[[str], NDArray[np.float32] | None]
    """From the name of a tensor to new values for it, or None to keep it as it is."""


def requantise(source: Path, target: Path, quantisation: str, weights: Weights) -> None:
    """Copy a GGUF with the values from `weights`; metadata and other tensors are kept.

    `quantisation` is one that the `gguf` package can write, such as Q8_0, F16 or F32. Raises `OSError`.
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
            if (values := weights(tensor.name)) is not None:
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
