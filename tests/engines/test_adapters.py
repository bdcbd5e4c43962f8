"""The setting `adapter`: who takes which kind, how it is named, and that it is really on. No torch here."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from memagent import (
    EngineSettings,
    Message,
    Sampling,
    SettingsError,
    open_engine,
    text_document,
)
from memagent.cli import main
from memagent.engines.adapters import find_adapter, name_with, read_adapter, read_trained
from memagent.reading.read import Read
from memagent.types import Completion, Trained
from smollm2 import MODEL, needs_smollm2, write_lora


def peft(folder: Path, content: str = "{}") -> Path:
    """What tells a PEFT folder."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(content)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


async def opened(settings: EngineSettings) -> None:
    async with open_engine(settings):
        pass


def refused(**settings: Any) -> str:
    """The message of the error that opening must end in."""
    with pytest.raises(SettingsError) as caught:
        asyncio.run(opened(EngineSettings(**settings)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def path_for(settings: EngineSettings, engine: str) -> Path | None:
    adapter = find_adapter(settings, engine)
    return adapter and adapter.path


def test_each_engine_takes_the_kinds_it_knows(tmp_path: Path) -> None:
    file, folder = write_lora(tmp_path / "one.gguf"), peft(tmp_path / "two")
    for engine in ("openai", "llamacpp", "transformers"):
        assert path_for(EngineSettings(), engine) is None
    assert path_for(EngineSettings(adapter=str(file)), "llamacpp") == file
    assert path_for(EngineSettings(adapter=str(folder)), "transformers") == folder
    assert path_for(EngineSettings(adapter=str(file)), "transformers") == file
    with pytest.raises(SettingsError, match=r"is a PEFT folder, llama\.cpp takes a GGUF"):
        find_adapter(EngineSettings(adapter=str(folder)), "llamacpp")
    for engine in ("llamacpp", "transformers"):
        with pytest.raises(SettingsError, match=f"there is no adapter {tmp_path}"):
            find_adapter(EngineSettings(adapter=str(tmp_path)), engine)


def test_budgets_of_an_adapter_that_tells_none(tmp_path: Path) -> None:
    assert read_trained(write_lora(tmp_path / "one.gguf")) == Trained()
    (tmp_path / "bad.gguf").write_bytes(b"no GGUF")
    assert read_trained(tmp_path / "bad.gguf") == read_trained(tmp_path / "missing") == Trained()


_TEMPLATES = 'update = "{problem}{chunk}{memory}"\nanswer = "{problem}{memory}"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgets = 3", "budgets is 3: it must be a table"),
        ("[budgets]\nchunk_tokens = 'a'", "budgets.chunk_tokens is 'a': it must be a whole number"),
        ("[budgets]\nchunk_tokens = -5", "budgets.chunk_tokens is -5: it must be above 0"),
        ("[budgets]\nchunks = 3", "budgets: unknown setting 'chunks'"),
        ("workflow = 3", "workflow is 3: it must be text"),
        ("workflow = ['gated']", "it must be text"),
        (_TEMPLATES, "templates, but no workflow"),
        ("half =", "not valid TOML"),
    ],
)
def test_settings_that_contradict_an_adapter_are_errors(text: str, message: str, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(message)) as refused:
        read_trained(adapter)
    assert "a.toml" in str(refused.value)
    (tmp_path / "a.toml").write_text(f"workflow = 'gated'\n{_TEMPLATES}[budgets]\nchunk_tokens = 77\n")
    trained = read_trained(adapter)
    assert trained.workflow == "gated" and trained.budgets == {"chunk_tokens": 77}


def test_a_missing_adapter_is_reported_before_a_model_is_loaded(tmp_path: Path) -> None:
    message = refused(model=str(tmp_path / "no.gguf"), adapter=str(tmp_path / "none.gguf"))
    assert message.startswith(f"there is no adapter {tmp_path / 'none.gguf'}")
    assert "`adapter`" in message


def test_an_endpoint_is_refused_before_it_is_called(tmp_path: Path) -> None:
    file = write_lora(tmp_path / "one.gguf")
    message = refused(base_url="http://127.0.0.1:9/v1", model="m", adapter=str(file))
    assert f"the adapter {file} cannot be sent to an endpoint" in message
    assert "`model`" in message


def test_the_name_goes_by_the_content(tmp_path: Path) -> None:
    first, second = write_lora(tmp_path / "reader.gguf"), write_lora(tmp_path / "other.gguf", seed=1)
    assert name_with("smollm2", None) == "smollm2"
    name = name_with("smollm2", read_adapter(first))
    assert name.startswith("smollm2 + reader@")
    assert len(name) == len("smollm2 + reader@") + 12
    second.rename(first)  # as a new training run would leave it
    assert name_with("smollm2", read_adapter(first)) != name
    folder = peft(tmp_path / "step-1.5")
    name = name_with("m", read_adapter(folder))
    assert name.startswith("m + step-1.5@")
    (folder / "README.md").write_text("of no consequence")
    assert name_with("m", read_adapter(folder)) == name
    (folder / "adapter_config.json").write_text('{"lora_alpha": 64}')
    assert name_with("m", read_adapter(folder)) != name


UNFIT: dict[str, dict[str, Any]] = {
    "architecture": {"architecture": "qwen2"},
    "layer": {"name": "blk.99.ffn_down.weight"},
    "inner": {"inner": 64},
    "outer": {"outer": 64},
}


@needs_smollm2
@pytest.mark.parametrize("case", UNFIT)
def test_an_adapter_of_another_model(case: str, tmp_path: Path) -> None:
    model, file = str(MODEL), write_lora(tmp_path / "other.gguf", **UNFIT[case])
    message = refused(model=model, adapter=str(file), window_tokens=256, threads=1)
    assert f"the adapter {file} may be damaged, or made for another model" in message


@needs_smollm2
@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 100])
def test_a_file_that_is_not_an_adapter(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    message = refused(model=str(MODEL), adapter=str(file), window_tokens=256)
    assert f"the adapter {file} may be damaged" in message


async def reading(settings: EngineSettings) -> tuple[Completion, str, str]:
    """A greedy completion, the name of the model, and the header of a read's journal."""
    async with open_engine(settings) as engine:
        completion = await engine.complete((Message("user", "Why is the sky blue?"),), Sampling(12))
        read = Read("Why?", text_document("Because."), engine)
        return completion, engine.model.name, (await read.identity())["model"]


@needs_smollm2
def test_the_adapter_is_on_and_on_record(tmp_path: Path) -> None:
    plain = EngineSettings(model=str(MODEL), window_tokens=512, threads=1)
    readings = []
    for number, strength in enumerate((0.2, 0.0)):
        file = write_lora(tmp_path / f"{number}.gguf", strength=strength)
        readings.append(
            asyncio.run(
                reading(EngineSettings(model=plain.model, adapter=str(file), window_tokens=512, threads=1))
            )
        )
    without = asyncio.run(reading(plain))
    (strong, name, header), (idle, _, _) = readings
    assert strong.text != without[0].text
    assert idle.text == without[0].text  # an adapter of nothing changes nothing
    assert name == header == name_with("SmolLM2-135M-Instruct.Q4_1", read_adapter(tmp_path / "0.gguf"))
    assert without[1:] == ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct.Q4_1")


def test_doctor_names_the_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    flags = ["--model", str(tmp_path / "m.gguf"), "--adapter"]
    file = write_lora(tmp_path / "one.gguf")
    assert main(["doctor", *flags, str(file)]) == 0
    assert f"adapter: {file}\n" in capsys.readouterr().out
    assert main(["doctor", *flags, str(tmp_path / "none")]) == 2
    assert "wrong: there is no adapter" in capsys.readouterr().out
