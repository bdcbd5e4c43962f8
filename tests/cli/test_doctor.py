"""`memagent doctor`: which model would be used and why, and what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.engines.gguf import catalogue


def test_an_endpoint_is_asked_for_its_model(serve: Serve, capsys: Capture, monkeypatch: Patch) -> None:
    server = serve(listed=[{"id": "reader-7b", "max_model_len": 8192}])
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "top-secret")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "reader-7b" in out and "8192" in out and "because the endpoint" in out
    assert "top-secret" not in out
    assert "verdicts: none, since it tells no log-probabilities" in out


def test_a_judge_has_to_be_one(serve: Serve, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve(listed=[{"id": "reader-7b"}]).base_url)
    judge = tmp_path / "judge.gguf"
    writer = gguf.GGUFWriter(judge, "llama")
    writer.add_context_length(8192)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert main(["doctor", "--judge", str(judge)]) == 2
    assert "which was not trained to give verdicts: name a model that was" in capsys.readouterr().out
    known = catalogue.MODELS[catalogue.DEFAULT]
    monkeypatch.setitem(
        catalogue.MODELS, "ours", replace(known, file=judge.name, size_bytes=judge.stat().st_size)
    )
    assert main(["doctor", "--judge", str(judge)]) == 0
    out = capsys.readouterr().out
    assert f"verdicts: by {judge}" in out and "model: reader-7b" in out


def test_a_dead_endpoint_is_wrong(capsys: Capture) -> None:
    assert main(["doctor", "--base-url", "http://127.0.0.1:9/v1"]) == 2
    assert "wrong: " in capsys.readouterr().out


DEAD = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    "command", [["doctor"], ["ask", "What?", "a.txt"], ["ask", "--each", "What?", "a.txt", "--out", "t.csv"]]
)
@pytest.mark.parametrize("setter", ["OPENAI_BASE_URL", "MEMAGENT_BASE_URL", "--base-url", "config.toml"])
def test_what_set_a_dead_address_is_said(
    setter: str,
    command: list[str],
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("A hat.")
    Path("config.toml").write_text(f'base_url = "{DEAD}"')
    monkeypatch.setenv("MEMAGENT_RETRIES", "0")
    flags = {"--base-url": ["--base-url", DEAD], "config.toml": ["--config", "config.toml"]}.get(setter, [])
    if setter.isupper():
        monkeypatch.setenv(setter, DEAD)
    assert main([*command, *flags]) in (2, 3)
    output = " ".join("".join(capsys.readouterr()).split())
    how = {"--base-url": "leave it out", "config.toml": "remove it there"}.get(setter, f"unset {setter}")
    where = f"base_url in {setter}" if setter == "config.toml" else setter
    assert (
        f"nothing listens at {DEAD}" in output
        and f"the address is set by {where}: correct it, or {how}" in output
    )
    assert "a model found on this machine" in output and "offers to fetch" in output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "named"], "127.0.0.1:9"),
        (["--base-url", "{server}", "--model", "other"], "other at"),
        (["--base-url", "{server}", "--templates", "none.toml"], "none.toml"),
        (
            ["--base-url", "{server}", "--chunk-tokens", "100000", "--window-tokens", "8192"],
            "the budgets need",
        ),
    ],
)
def test_what_would_fail_every_read_is_wrong(
    serve: Serve, flags: list[str], message: str, capsys: Capture
) -> None:
    address = serve(listed=[{"id": "reader-7b"}]).base_url
    code = main(["doctor", *(flag.replace("{server}", address) for flag in flags)])
    out = capsys.readouterr().out
    assert message in out
    if "other" in flags:  # some servers take any name
        assert code == 0 and "it lists reader-7b" in out
    else:
        assert code == 2 and "wrong: " in out


def test_a_missing_file_is_wrong(capsys: Capture) -> None:
    assert main(["doctor", "--model", "nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().out


def test_a_model_that_fits_no_engine_is_wrong(capsys: Capture) -> None:
    assert main(["doctor", "--model", "some-name"]) == 2
    assert "--base-url" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_is_wrong(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["doctor"]) == 2
    assert "wrong: the cache" in (out := capsys.readouterr().out) and "set XDG_CACHE_HOME" in out


def test_an_unknown_setting_in_the_users_file_is_wrong(nobody: Path, capsys: Capture) -> None:
    folder = nobody / "memagent"
    folder.mkdir()
    (folder / "config.toml").write_text("chunk_token = 5\n")
    assert main(["doctor"]) == 2
    assert (
        "config.toml: unknown setting 'chunk_token', did you mean 'chunk_tokens'?" in capsys.readouterr().err
    )


def test_what_every_extra_needs_is_looked_for(capsys: Capture) -> None:
    main(["doctor", "--base-url", "http://127.0.0.1:9/v1"])
    out = capsys.readouterr().out
    assert "\nthe base: chardet " in out and "\n[hub]: huggingface-hub " in out and "[dev]" not in out
