"""With nothing said, all but measurements use a server of this machine, and say so; `models` lists all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.cli.models import suggest_models
from memagent.engines import discovery
from memagent.engines.discovery import ServerKind
from server import Server

pytestmark = pytest.mark.usefixtures("gated")


@pytest.fixture
def vllm(serve: Serve, monkeypatch: Patch) -> Server:
    """A server with two models where vLLM usually listens; nothing listens at the other places."""
    models = [{"id": name, "object": "model", "max_model_len": 8192} for name in ("reader-7b", "other-3b")]
    server = serve(listed=models)
    port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
    monkeypatch.setattr(discovery, "SERVER_KINDS", (ServerKind("Ollama", 9), ServerKind("vLLM", port)))
    monkeypatch.setattr(discovery, "SECONDS", 20.0)
    monkeypatch.delenv("MEMAGENT_DISCOVER")
    return server


@pytest.fixture
def story(tmp_path: Path) -> str:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "story.txt").write_text("FACT-1: lamp", "utf-8")
    return str(tmp_path / "docs" / "story.txt")


def asked_models(server: Server) -> set[str]:
    return {body["model"] for body in server.asked}


def test_ask_uses_what_it_finds_and_says_so(
    vllm: Server, story: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "top-secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert main(["ask", "Which facts?", story, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("FACT-1: lamp")
    assert f"using reader-7b (one of 2) of vLLM at {vllm.base_url}" in err and "--no-discover" in err
    assert asked_models(vllm) == {"reader-7b"}
    assert not any("authorization" in request.headers for request in vllm.requests)


def test_each_uses_what_it_finds(vllm: Server, story: str, tmp_path: Path) -> None:
    out = str(tmp_path / "table.csv")
    assert main(["ask", "--each", "Which facts?", str(Path(story).parent), "--out", out]) == 0
    assert asked_models(vllm) == {"reader-7b"}


def test_notebooks_use_what_they_find(vllm: Server, story: str, tmp_path: Path) -> None:
    flags = ["--notebooks", str(tmp_path / "kept")]
    assert main(["notes", "new", "facts", "--about", "Which facts?", *flags]) == 0
    assert vllm.requests == []
    assert main(["notes", "add", "facts", story, *flags]) == 0
    calls = len(vllm.asked)
    assert asked_models(vllm) == {"reader-7b"}
    assert main(["notes", "ask", "facts", "Which facts?", *flags]) == 0
    assert len(vllm.asked) == calls + 1 and asked_models(vllm) == {"reader-7b"}


def test_a_named_model_is_looked_for_by_its_name(vllm: Server, story: str, capsys: Capture) -> None:
    assert main(["ask", "Which facts?", story, "--model", "other-3b"]) == 0
    assert asked_models(vllm) == {"other-3b"} and "using other-3b of vLLM" in capsys.readouterr().err
    assert main(["ask", "Which facts?", story, "--model", "nobody-has-it"]) == 2
    err = capsys.readouterr().err
    assert "memagent models lists what is available" in err
    assert f"vLLM at {vllm.base_url} lists reader-7b, other-3b" in err
    assert main(["ask", "Which facts?", story, "--model", "gone.gguf"]) == 2
    assert "gone.gguf" in capsys.readouterr().err and asked_models(vllm) == {"other-3b"}


def test_what_is_said_wins(vllm: Server, serve: Serve, story: str, monkeypatch: Patch) -> None:
    mine = serve()
    assert main(["ask", "Which facts?", story, "--base-url", mine.base_url]) == 0
    monkeypatch.setenv("OPENAI_BASE_URL", mine.base_url)
    assert main(["ask", "Which facts?", story]) == 0
    assert len(mine.asked) == 4 and vllm.requests == []


def test_it_can_be_turned_off(vllm: Server, story: str, nobody: Path, monkeypatch: Patch) -> None:
    assert main(["ask", "Which facts?", story, "--no-discover"]) == 2
    monkeypatch.setenv("MEMAGENT_DISCOVER", "false")
    assert main(["ask", "Which facts?", story]) == 2
    assert vllm.requests == []


def test_doctor_lists_what_it_finds(vllm: Server, capsys: Capture) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"servers on this machine: vLLM at {vllm.base_url} (reader-7b, other-3b)" in out
    assert "model: reader-7b at" in out and "window: 8192" in out
    assert "engine: openai, because a server with the model was found on this machine" in out
    assert [body["max_tokens"] for body in vllm.asked] == [1], "whether it tells probabilities"
    assert main(["doctor", "--no-discover", "--base-url", vllm.base_url, "--model", "reader-7b"]) == 0
    assert "servers on this machine" not in capsys.readouterr().out


def test_models_lists_what_is_at_hand(vllm: Server, capsys: Capture) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert (
        "default: qwen2.5-coder-0.5b, not fetched yet: memagent models fetch\n" in out
        and f"vLLM at {vllm.base_url}: reader-7b, other-3b" in out
    )
    assert main(["models", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["servers"] == [
        {"name": "vLLM", "base_url": vllm.base_url, "models": ["reader-7b", "other-3b"]}
    ]
    assert listing["cache"] == []


def test_what_is_worth_fetching_fits_the_memory() -> None:
    gib = 2**30
    assert suggest_models(None, set()) == suggest_models(2 * gib, set()) == []
    assert [name.split("/")[1] for name in suggest_models(5 * gib, set())] == [
        "Qwen3.5-2B-GGUF",
        "Qwen3.5-0.8B-GGUF",
    ]
    most = suggest_models(64 * gib, set())
    assert len(most) == 9 and suggest_models(64 * gib, {most[0]}) == most[1:]


def test_a_model_worth_fetching_is_named_with_its_maker_and_licence(
    vllm: Server, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("memagent.cli.models.memory_bytes", lambda: 64 * 2**30)
    assert main(["models"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "--model hf:" in line]
    assert len(rows) == 9
    assert [
        "--model",
        "hf:LiquidAI/LFM2.5-8B-A1B-GGUF",
        "4.8",
        "GiB,",
        "LFM2.5-8B-A1B,",
        "LFM",
        "Open",
        "License",
    ] in rows
