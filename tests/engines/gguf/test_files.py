"""Copies of GGUF files with new weights: what is given is quantised, all else stays."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from memagent.engines.gguf.files import requantise

Q4_1, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0"))


def small_model(path: Path) -> Path:
    """A GGUF with the kinds of tensors and metadata that the real one has, in 20 KB."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_tags(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list(["one", "two", "drei", "四"])
    writer.add_token_types([1, 1, 3, 1])
    weights = random.normal(size=(64, 256)).astype(np.float32)
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(weights, Q8_0), raw_dtype=Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(weights, Q4_1), raw_dtype=Q4_1)
    writer.add_tensor("blk.0.attn_norm.weight", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_without_new_weights_only_the_file_type_changes(tmp_path: Path) -> None:
    source = small_model(tmp_path / "source.gguf")
    requantise(source, tmp_path / "made.gguf", "Q8_0", lambda name: None)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "made.gguf")
    changed = {
        name
        for name in before.fields.keys() | after.fields.keys()
        if before.fields[name].contents() != after.fields[name].contents()
        or before.fields[name].types != after.fields[name].types
    }
    assert changed == {"general.file_type"}
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert (old.name, [*old.shape], old.tensor_type) == (new.name, [*new.shape], new.tensor_type)
        assert np.array_equal(old.data, new.data)


@pytest.mark.parametrize("name", ["Q8_0", "F16", "F32"])
def test_other_weights_take_the_place_of_a_tensors(name: str, tmp_path: Path) -> None:
    source = small_model(tmp_path / "source.gguf")
    random = np.random.default_rng(1)
    weights = {"token_embd.weight": random.normal(size=(64, 256)).astype(np.float32),
               "blk.0.attn_norm.weight": random.normal(size=256).astype(np.float32)}  # fmt: skip
    requantise(source, tmp_path / "made.gguf", name, weights.get)
    after = gguf.GGUFReader(tmp_path / "made.gguf")
    forms = {tensor.name: tensor.tensor_type.name for tensor in after.tensors}
    assert [*forms.values()] == [name, "Q4_1", "F32"]
    file_type = {"Q8_0": "MOSTLY_Q8_0", "F16": "MOSTLY_F16", "F32": "ALL_F32"}[name]
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType[file_type]
    for tensor in after.tensors:
        if tensor.name in weights:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert (
                np.abs(values - weights[tensor.name]).max() < {"Q8_0": 0.02, "F16": 2e-3, "F32": 1e-9}[name]
            )


def test_rows_that_are_no_whole_blocks_are_f16(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    writer.add_tensor("odd.weight", np.zeros((4, 48), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = {"odd.weight": np.ones((4, 48), np.float32)}
    requantise(tmp_path / "source.gguf", tmp_path / "made.gguf", "Q8_0", weights.get)
    (tensor,) = gguf.GGUFReader(tmp_path / "made.gguf").tensors
    assert tensor.tensor_type.name == "F16"
    assert (tensor.data == 1).all()
