"""The plug-in of llm, through llm's own command line and its own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

llm = pytest.importorskip("llm")
pytest.importorskip("llm_memagent")

QUESTION = "Who is the captain?"
FILLER = "The sea was calm and the wind was low on that day. " * 20
NOTE = "The captain is called Ahab."
REPORT = f"{FILLER}\n\n{NOTE}\n\n{FILLER}\n\n{FILLER}"


def reply(messages: Any) -> str:
    """Notes the captain's name where it is told; what is asked in a small chat comes back."""
    content = messages[-1]["content"]
    if "<" not in content:
        return f"{len(messages)} turns"
    return f"{NOTE} He likes pears." if NOTE in content else "UNCHANGED"


@pytest.fixture
def address(serving: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A server's address, where the plug-in finds it; llm has a home of its own."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("LLM_LOAD_PLUGINS", "llm-memagent")
    address = serving(reply, "--workflow", "gated")
    monkeypatch.setenv("LLM_MEMAGENT_URL", address)
    return address


def run(*words: str) -> Any:
    """What `llm` prints."""
    from click.testing import CliRunner
    from llm.cli import cli

    return CliRunner().invoke(cli, [*words], catch_exceptions=False)


def test_a_fragment_is_read_and_cited(address: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(REPORT, "utf-8")
    done = run("-m", "memagent", "-f", str(tmp_path / "log.txt"), "-o", "cite", "1", QUESTION)
    start = REPORT.index(NOTE)
    cited = f"log.txt, characters {start}-{start + len(NOTE)}: {NOTE}"
    assert done.stdout == f"{NOTE} He likes pears.\n\n{cited}\n"
    assert done.stderr.startswith("Read chunk 1 of about")


def test_the_line_of_a_nearest_passage_says_that_it_is_one() -> None:
    from llm_memagent import _sources

    passage = {"file": "log.txt", "page": None, "start": 5, "end": 32, "excerpt": NOTE}
    statements = [
        {"text": "Ahab is their captain.", "source": None, "nearest": [passage]},
        {"text": "He likes pears.", "source": None},
    ]
    assert _sources(statements) == f"\n\nnearest passage, other words: log.txt, characters 5-32: {NOTE}"


def test_an_attachment_is_read_and_leaves_nothing_on_the_server(address: str, tmp_path: Path) -> None:
    import httpx2

    (tmp_path / "log.html").write_text(f"<!DOCTYPE html><html><body><p>{REPORT}</p></body></html>", "utf-8")
    model = llm.get_model("memagent")
    response = model.prompt(
        QUESTION, attachments=[llm.Attachment(path=str(tmp_path / "log.html"))], cite=True
    )
    assert response.text().startswith(f"{NOTE} He likes pears.\n\nlog.html, ")
    assert response.usage().input > 500
    (cited,) = [
        statement["source"] for statement in response.response_json["statements"] if statement["source"]
    ]
    assert (cited["file"], cited["excerpt"]) == ("log.html", NOTE)
    assert httpx2.get(f"{address}/files", trust_env=False).json()["data"] == []


def test_a_conversation_without_documents_goes_through(address: str) -> None:
    conversation = llm.get_model("memagent").conversation()
    assert conversation.prompt("Hello?", system="Be brief.").text() == "2 turns"
    assert conversation.prompt("And now?").text() == "4 turns"


def test_a_follow_up_asks_about_the_same_documents(address: str, tmp_path: Path) -> None:
    conversation = llm.get_model("memagent").conversation()
    response = conversation.prompt(QUESTION, fragments=[REPORT + FILLER * 8])
    assert NOTE in response.text()
    assert NOTE in conversation.prompt("What is he called?").text()


def test_errors_say_what_to_do(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(REPORT, "utf-8")
    arguments = ["-m", "memagent", "-f", str(tmp_path / "log.txt"), QUESTION]
    wrong = run(*arguments, "-o", "workflow", "guessing")
    assert wrong.exit_code == 1 and "status 400: " in wrong.stderr and "guessing" in wrong.stderr
    monkeypatch.setenv("LLM_MEMAGENT_URL", "http://127.0.0.1:9/v1")
    assert "start memagent serve, or set LLM_MEMAGENT_URL" in run(*arguments).stderr


def test_it_is_listed(address: str) -> None:
    assert "memagent" in run("models").stdout
