"""`memagent ask`: what goes to stdout, what to stderr, and which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memagent.cli import main
from server import Server, facts_document, lasting_fault, refusal

FIELDS = [
    "answer", "memory", "problem", "workflow", "model", "chunks", "document_tokens", "calls", "cut",
    "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "seconds", "trace",
    "stopped_early", "sources",
]  # fmt: skip


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(facts_document(chunks=4), "utf-8")
    return path


def test_the_answer_alone_goes_to_stdout(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    code = main(["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"])
    out, err = capsys.readouterr()
    assert code == 0
    assert out.startswith("FACT-") and out.count("\n") == 1
    assert "chunk 2 of" in err and "memory: FACT-" in err and "answered in" in err


def test_quiet_says_nothing_on_stderr(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "Which facts?", str(story), "--base-url", serve().base_url, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_json_has_just_the_documented_fields(
    serve: Callable[..., Server], story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, trace = serve(), tmp_path / "trace.jsonl"
    code = main(
        ["ask", "Which facts?", str(story), "--json", "--base-url", server.base_url, "--trace", str(trace),
         "--chunk-tokens", "100"]
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert list(result) == FIELDS
    assert result["trace"] == str(trace) and result["sources"] == [str(story)]
    assert result["calls"] == result["chunks"] + 1 == len(server.paid)
    assert result["stopped_early"] is False


def test_several_questions_are_read_over_one_document(
    serve: Callable[..., Server], story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(lambda messages: f"about {'cats' if 'cats?' in messages[-1]['content'] else 'dogs'}")
    arguments = ["ask", "-q", "cats?", "-q", "dogs?", str(story), "--base-url", server.base_url]
    assert main([*arguments, "--trace", str(tmp_path / "t.jsonl")]) == 0
    assert capsys.readouterr().out == "cats?\nabout cats\n\ndogs?\nabout dogs\n\n"
    assert (tmp_path / "t-1.jsonl").exists() and (tmp_path / "t-2.jsonl").exists()
    assert main([*arguments, "--json"]) == 0
    assert [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()] == [
        "about cats",
        "about dogs",
    ]


def test_one_failed_question_leaves_the_other_answered(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(lambda messages: "" if "cats?" in messages[-1]["content"] else "about dogs")
    code = main(["ask", "-q", "cats?", "-q", "dogs?", str(story), "--base-url", server.base_url])
    out, err = capsys.readouterr()
    assert code == 3
    assert "about dogs" in out and "empty answer" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask"], 2, "what is the question"),
        (["ask", "", "{story}"], 2, "the problem is empty"),
        (["ask", "what?", "{story}", "--temperature", "9"], 2, "temperature is 9"),
        (["ask", "what?", "{story}", "--config", "no.toml"], 2, "no.toml"),
        (["ask", "what?", "{story}", "--templates", "no.toml"], 2, "no.toml"),
        (["ask", "what? " * 2000, "{story}"], 2, "--problem-tokens"),
        (["ask", "what?", "no-such-file"], 4, "no-such-file"),
        (["ask", "what?", "{story}", "--model", "no-such.gguf", "--engine", "llamacpp"], 2, "no-such.gguf"),
        (["show", "no-such-journal"], 2, "no-such-journal"),
    ],
)
def test_errors_have_their_exit_code_and_name_the_thing(
    serve: Callable[..., Server],
    story: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve().base_url)
    assert main([argument.replace("{story}", str(story)) for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and words in err.partition("error: ")[2]


def test_a_path_may_come_after_flags(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = serve().base_url
    assert main(["ask", "Which facts?", "--base-url", address, str(story), "--quiet", str(story)]) == 0
    assert capsys.readouterr().out.startswith("FACT-")
    assert main(["ask", "Which facts?", "--base-url", address, str(story), "--quite", str(story)]) == 2
    assert "No such option '--quite'. Did you mean '--quiet'" in capsys.readouterr().err


def test_a_wrong_flag_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "what?", "file", "--chunk-tokens", "many"]) == 2
    assert "--chunk-tokens" in capsys.readouterr().err


def test_a_failed_engine_says_how_to_go_on(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(faults=lasting_fault(refusal(503, "on fire"), spared=2))
    arguments = ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    assert main([*arguments, "--retries", "1"]) == 3
    err = capsys.readouterr().err
    assert "on fire" in err and "--resume" in err
    server.faults = lambda digest, attempt: None
    paid = len(server.paid)
    assert main([*arguments, "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(server.paid) == result["calls"] and paid == 2


def test_resume_goes_on_with_the_journal_of_the_same_settings(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    command = ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    assert main([*command, "--max-calls", "2"]) == 3
    assert main([*command, "--workflow", "overwrite"]) == 0
    server.faults = lasting_fault(refusal(401, "whose key?"))
    assert main(command) == 3, "its journal holds nothing"
    server.faults, paid = (lambda digest, attempt: None), len(server.paid)
    capsys.readouterr()
    assert main([*command, "--resume", "--json"]) == 0
    assert len(server.paid) - paid == json.loads(capsys.readouterr().out)["calls"] - 2


def test_resume_without_a_journal_says_so(
    serve: Callable[..., Server], story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "what?", str(story), "--base-url", serve().base_url, "--resume"]) == 2
    assert "no journal of this document and problem" in capsys.readouterr().err


def test_left_out_files_and_bad_bytes_are_named(
    serve: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "text.txt").write_bytes(b"one bad byte: \xff. " + "A naïve café. ".encode() * 50)
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(32)) * 20)
    (folder / "broken.docx").write_bytes(bytes(range(256)) * 9)  # which is seen only when it is converted
    assert main(["ask", "what?", str(folder), "--base-url", serve().base_url, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [line.split(":")[1].split()[0] for line in err.splitlines() if line.startswith("left out")] == [
        str(folder / "picture.png"),
        str(folder / "broken.docx"),
    ]
    assert "1 characters could not be decoded" in err
    assert json.loads(out)["sources"] == [str(folder / "text.txt")]


def test_an_interrupt_ends_with_130_and_can_be_resumed(serve: Callable[..., Server], story: Path) -> None:
    server = serve(latency_seconds=1.5)
    command = [sys.executable, "-m", "memagent", "ask", "Which facts?", str(story), "--chunk-tokens", "60",
               "--base-url", server.base_url]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    while len(server.paid) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and "--resume" in err and "Traceback" not in err
    server.latency_seconds = 0.0
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0 and done.stdout.startswith("FACT-")


def test_standard_input_is_a_document(serve: Callable[..., Server]) -> None:
    command = [
        sys.executable,
        "-m",
        "memagent",
        "ask",
        "Which?",
        "-",
        "--json",
        "--base-url",
        serve().base_url,
    ]
    done = subprocess.run(
        command, input=facts_document(chunks=2), capture_output=True, text=True, env=os.environ, check=True
    )
    result = json.loads(done.stdout)
    assert result["sources"] == ["stdin"] and "FACT-" in result["answer"]
