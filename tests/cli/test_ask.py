"""`memagent ask`: what goes to stdout, what to stderr, and which exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from server import Fault, facts_document, lasting_fault, refusal

pytestmark = pytest.mark.usefixtures("gated")

FIELDS = [
    "answer", "memory", "problem", "workflow", "model", "chunks", "document_tokens", "calls",
    "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "estimated", "cut", "seconds", "trace",
    "stopped_early", "sources", "statements", "refused", "critical_path", "passed_over", "unused", "found",
    "doubtful", "given_up", "table",
]  # fmt: skip


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(facts_document(chunks=4), "utf-8")
    return path


def said_in(story: Path) -> str:
    """Words that a document says."""
    return re.findall(r"FACT-\d+: \w+", story.read_text("utf-8"))[0]


def test_the_answer_alone_goes_to_stdout(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve()
    code = main(["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"])
    out, err = capsys.readouterr()
    assert code == 0
    assert out.startswith("FACT-") and out.count("\n") == 1
    assert "chunk 2 of" in err and "memory: FACT-" in err and "answered in" in err


def test_quiet_says_nothing_on_stderr(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(lambda messages: said_in(story))
    assert main(["ask", "Which facts?", str(story), "--base-url", server.base_url, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_without_usage_the_cost_is_an_estimate_and_said_to_be(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    def silent(completion: dict[str, Any]) -> None:
        del completion["usage"]

    trace = story.with_suffix(".jsonl")
    words = ["ask", "Which facts?", str(story), "--json", "--prompt-price", "1", "--trace", str(trace)]
    words += ["--base-url", serve(faults=lasting_fault(Fault(spoil=silent))).base_url]
    assert main(words) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["estimated"] and result["prompt_tokens"] > 0
    assert result["cost"] == pytest.approx(result["prompt_tokens"] / 1e6)
    assert "reports no token usage" in err and "(estimated)" in err
    assert main([*words, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["estimated"], "the journal says so too"


def test_a_journal_is_not_part_of_the_document(serve: Serve, story: Path, capsys: Capture) -> None:
    words = ["ask", "Which facts?", str(story.parent), "--base-url", serve().base_url]
    assert main([*words, "--trace", str(story.parent / "t.jsonl")]) == 2
    assert "would be part of the document" in capsys.readouterr().err
    assert not (story.parent / "t.jsonl").exists()


def test_json_has_just_the_documented_fields(
    serve: Serve, story: Path, tmp_path: Path, capsys: Capture
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
    serve: Serve, story: Path, tmp_path: Path, capsys: Capture
) -> None:
    server = serve(lambda messages: f"about {'cats' if 'cats?' in messages[-1]['content'] else 'dogs'}")
    arguments = ["ask", "-q", "cats?", "-q", "dogs?", str(story), "--base-url", server.base_url]
    assert main([*arguments, "--trace", str(tmp_path / "t.jsonl")]) == 0
    assert capsys.readouterr().out == "cats?\nabout cats\n\ndogs?\nabout dogs\n"
    assert (tmp_path / "t-1.jsonl").exists() and (tmp_path / "t-2.jsonl").exists()
    assert main([*arguments, "--json"]) == 0
    assert [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()] == [
        "about cats",
        "about dogs",
    ]


def test_one_failed_question_leaves_the_other_answered(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(lambda messages: "" if "cats?" in messages[-1]["content"] else "about dogs")
    code = main(["ask", "-q", "cats?", "-q", "dogs?", str(story), "--base-url", server.base_url])
    out, err = capsys.readouterr()
    assert code == 3
    assert "about dogs" in out and "empty" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask"], 2, "what is the question"),
        (["ask", "", "{story}"], 2, "the problem is empty"),
        (["ask", "what?", "{story}", "--config", "no.toml"], 2, "no.toml"),
        (["ask", "what? " * 2000, "{story}"], 2, "--problem-tokens"),
        (["ask", "what?", "no-such-file"], 4, "no-such-file"),
        (["ask", "what?", "{story}", "--model", "no-such.gguf", "--engine", "llamacpp"], 2, "no-such.gguf"),
        (["show", "no-such-journal"], 2, "no-such-journal"),
    ],
)
def test_errors_have_their_exit_code_and_name_the_thing(
    serve: Serve,
    story: Path,
    capsys: Capture,
    monkeypatch: Patch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve().base_url)
    assert main([argument.replace("{story}", str(story)) for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and words in err.partition("error: ")[2]


def test_a_path_may_come_after_flags(serve: Serve, story: Path, capsys: Capture) -> None:
    address = serve().base_url
    assert main(["ask", "Which facts?", "--base-url", address, str(story), "--quiet", str(story)]) == 0
    assert capsys.readouterr().out.startswith("FACT-")
    assert main(["ask", "Which facts?", "--base-url", address, str(story), "--quite", str(story)]) == 2
    assert "No such option '--quite'. (Did you mean one of: " in capsys.readouterr().err


def test_a_wrong_flag_is_usage(capsys: Capture) -> None:
    assert main(["ask", "what?", "file", "--chunk-tokens", "many"]) == 2
    assert "--chunk-tokens" in capsys.readouterr().err


def test_a_failed_engine_says_how_to_continue(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(faults=lasting_fault(refusal(503, "on fire"), spared=2))
    arguments = ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    assert main([*arguments, "--retries", "1"]) == 3
    err = capsys.readouterr().err
    assert "on fire" in err and "--resume" in err
    server.faults = lambda digest, attempt: None
    calls_before = len(server.paid)
    assert main([*arguments, "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(server.paid) == result["calls"] and calls_before == 2


def test_resume_continues_the_journal_of_the_same_settings(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    server = serve()
    command = ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    assert main([*command, "--max-calls", "2"]) == 3
    assert main([*command, "--workflow", "overwrite"]) == 0
    server.faults = lasting_fault(refusal(401, "whose key?"))
    assert main(command) == 3, "its journal holds nothing"
    server.faults, calls_before = (lambda digest, attempt: None), len(server.paid)
    capsys.readouterr()
    assert main([*command, "--resume", "--json"]) == 0
    assert len(server.paid) - calls_before == json.loads(capsys.readouterr().out)["calls"] - 2


def test_resume_without_a_journal_says_so(serve: Serve, story: Path, capsys: Capture) -> None:
    assert main(["ask", "what?", str(story), "--base-url", serve().base_url, "--resume"]) == 2
    assert "no journal of this document and problem" in capsys.readouterr().err


def test_left_out_files_and_bad_bytes_are_named(serve: Serve, tmp_path: Path, capsys: Capture) -> None:
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


def test_standard_input_is_a_document(serve: Serve) -> None:
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


def test_questions_of_a_file_are_asked_one_a_line(
    serve: Serve, story: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "questions.txt").write_bytes("\ufeffcats?\n\n  dogs?  \r\n".encode())
    server = serve(lambda messages: f"about {'cats' if 'cats?' in messages[-1]['content'] else 'dogs'}")
    arguments = [
        "ask",
        "--questions",
        str(tmp_path / "questions.txt"),
        str(story),
        "--base-url",
        server.base_url,
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "cats?\nabout cats\n\ndogs?\nabout dogs\n"
    (tmp_path / "questions.txt").write_text(" \n")
    assert main(arguments) == 2
    assert "questions.txt: the file has no question" in capsys.readouterr().err
    (tmp_path / "questions.txt").write_bytes(b"\xff\xfe\x00")
    assert main(arguments) == 2
    assert "questions.txt is not text in UTF-8" in capsys.readouterr().err


def test_answers_are_printed_as_they_come(serve: Serve, story: Path, tmp_path: Path, capsys: Capture) -> None:
    """The third question fails; the first two are there by then, and the order is that of the questions."""
    questions = [word for name in "abc" for word in ("-q", f"{name}?")]
    server = serve(lambda messages: "" if "c?" in messages[-1]["content"] else "yes")
    assert main(["ask", *questions, str(story), "--base-url", server.base_url, "--retries", "0"]) == 3
    assert capsys.readouterr().out == "a?\nyes\n\nb?\nyes\n"


def test_several_questions_resume_with_those_that_were_begun(
    serve: Serve, story: Path, tmp_path: Path, capsys: Capture
) -> None:
    server, questions = serve(), ["-q", "first?", "-q", "second?", "--questions", str(tmp_path / "q.txt")]
    (tmp_path / "q.txt").write_text("third?")
    more = [str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    for trace in ([], ["--trace", str(tmp_path / "t.jsonl")]):
        assert main(["ask", *questions[:4], *more, *trace]) == 0
        calls_before = len(server.paid)
        capsys.readouterr()
        assert main(["ask", *questions, *more, *trace, "--resume", "--json"]) == 0
        calls = [json.loads(line)["calls"] for line in capsys.readouterr().out.splitlines()]
        assert len(calls) == 3 and len(server.paid) == calls_before + calls[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["{story}", "Who is it?"],
            "there is no file 'Who is it?'; a question comes first and in quotes",
        ),
        (["Who", "has", "it", "{story}"], "there is no file 'has'; a question comes first and in quotes"),
        (["-q", "Who?", "Where is it?", "{story}"], "there is no file 'Where is it?'; a question"),
        (["what?", "{story}", "--out", "a.csv"], "--out is for --each: add it, or drop --out"),
        (["what?", "{story}", "--max-cost", "1"], "--max-cost is 1, but nothing has a price"),
        (["what?", "{story}", "--workflow", "full", "--screen"], "--screen is for workflows that read chunk"),
        (["{story}"], "what is the question?"),
        (["what?", "{story}", "--resume", "--trace", "none.jsonl"], "there is no journal none.jsonl"),
        (
            ["what?", "{story}", "--workflow", "gatde"],
            "'gatde' is not one of 'auto', 'evidence'",
        ),
        (["what?", "{story}", "--modle", "m"], "No such option '--modle'. Did you mean '--model'?"),
    ],
)
def test_mistakes_of_a_new_user_are_explained(
    serve: Serve,
    story: Path,
    words: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve().base_url)
    assert main(["ask", *(word.replace("{story}", str(story)) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message.replace("{story}", str(story)) in err


def test_a_cache_that_cannot_be_written_leads_to_another_place_for_the_journal(
    serve: Serve,
    story: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: Patch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    words = ["ask", "Who?", str(story), "--base-url", serve().base_url]
    assert main(words) == 2
    assert "--trace names another place" in capsys.readouterr().err
    assert main([*words, "--trace", str(tmp_path / "trace.jsonl")]) == 0


def test_a_mistyped_command_gets_a_suggestion(capsys: Capture) -> None:
    assert main(["aks", "what?", "story.txt"]) == 2
    assert "No such command 'aks'. Did you mean 'ask'?" in capsys.readouterr().err


def test_cut_replies_are_counted(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(lambda messages: "A memory that is far longer than what its budget allows it. " * 3)
    arguments = ["ask", "Which?", str(story), "--base-url", server.base_url, "--memory-tokens", "9", "--json"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cut"] == 1 and "1 of 2 replies were cut at their token budget" in err


def test_a_dry_run_asks_no_model(serve: Serve, story: Path, capsys: Capture, nobody: Path) -> None:
    server = serve(listed=[{"id": "reader-7b", "max_model_len": 8192}])
    arguments = ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    arguments += ["--memory-tokens", "60", "--workflow", "gated"]
    prices = ["--prompt-price", "1000000", "--completion-price", "1000000"]
    assert main([*arguments, "--dry-run", "--json", *prices]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert server.asked == [] and not (nobody / "memagent" / "journals").exists(), "nor is a journal begun"
    assert main([*arguments, "--dry-run"]) == 0
    output = capsys.readouterr().out
    characters = len(story.read_text("utf-8"))
    assert f"{story}: {characters:,} characters of text" in output and "token counts are estimates" in output
    assert "reader-7b, window 8,192 tokens" in output
    assert plan["cost"] == pytest.approx(plan["prompt_tokens"] + plan["completion_tokens"])

    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for name in ("chunks", "document_tokens", "workflow", "model"):
        assert plan[name] == result[name]
    assert plan["calls"] == result["calls"]
    template = 64 * result["calls"]  # the server has none
    assert 0.8 < (plan["prompt_tokens"] - template) / result["prompt_tokens"] < 1.7
    assert f"at most: {result['calls']} calls, " in output


@pytest.mark.parametrize(
    "words",
    [[], ["--model", "qwen2.5-coder-0.5b"], ["--model", "hf:a/b"], ["--base-url", "http://127.0.0.1:9/v1"]],
)
@pytest.mark.parametrize("each", [[], ["--each", "--out", "table.csv"]])
def test_a_dry_run_estimates_where_there_is_no_model(
    story: Path,
    words: list[str],
    each: list[str],
    capsys: Capture,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setenv("MEMAGENT_RETRIES", "0")
    assert main(["ask", "Which facts?", str(story), "--dry-run", *words, *each]) == 0
    out, err = capsys.readouterr()
    assert "calls, " in out and "token counts are estimates" in out
    assert "estimated for a model with a window of 8,192 tokens" in err
    assert ("nothing listens" if "--base-url" in words else "no model is fetched yet") in err


def test_a_dry_run_does_not_pass_over_a_wrong_model(story: Path, capsys: Capture) -> None:
    assert main(["ask", "Which facts?", str(story), "--dry-run", "--model", "gone.gguf"]) == 2
    assert "gone.gguf" in capsys.readouterr().err


def test_a_dry_run_says_whether_the_allowed_calls_suffice(serve: Serve, story: Path, capsys: Capture) -> None:
    arguments = ["ask", str(story), "--base-url", serve().base_url, "--chunk-tokens", "100", "--dry-run"]
    for questions in (["-q", "what?"], ["-q", "what?", "-q", "who?"]):
        many = len(questions) // 2
        assert main([*arguments, *questions, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        most = plan["calls"] // many
        for allowed, warning in ((most - 1, "may stop it"), (most, "")):
            assert main([*arguments, *questions, "--max-calls", str(allowed)]) == 0
            last = capsys.readouterr().out.splitlines()[-1]
            assert last == f"--max-calls {allowed} {warning}" if warning else "--max-calls" not in last


def test_a_dry_run_counts_all_questions(serve: Serve, story: Path, capsys: Capture) -> None:
    arguments = ["ask", str(story), "--base-url", serve().base_url, "--dry-run", "--json"]
    assert main([*arguments, "-q", "what?"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main([*arguments, "-q", "what?", "-q", "who?"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 2 * one["calls"]


def test_a_dry_run_finds_the_passages_of_each_question(serve: Serve, story: Path, capsys: Capture) -> None:
    story.write_text("An apple:" + " 1" * 1000 + ".\n\nPears and bananas.", "utf-8")
    arguments = ["ask", str(story), "--base-url", serve().base_url, "--workflow", "rag", "--json"]
    arguments += ["--passages", "1", "--passage-tokens", "1550"]
    arguments += ["-q", "apple?", "-q", "Are there any pears or bananas, or what else?"]
    assert main([*arguments, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(result["prompt_tokens"] for result in results) <= plan["prompt_tokens"]


def test_what_was_passed_over_is_always_said(serve: Serve, story: Path, capsys: Capture) -> None:
    story.write_text(
        "The lamp is green. " + "So it goes on. " * 60 + "FACT-1: Ada has the key. " + "And so on. " * 60
    )
    command = ["ask", "Who has the key?", str(story), "--base-url", serve().base_url, "--chunk-tokens", "50"]
    assert main([*command, "--screen", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert 0 < result["passed_over"] == result["chunks"] - (result["calls"] - 1)
    assert f"{result['passed_over']} of {result['chunks']} chunks were passed over (--screen)" in err
    assert main([*command, "--screen", "--quiet"]) == 0
    assert "chunks were passed over" in capsys.readouterr().err
    table = story.with_name("table.jsonl")
    assert main([*command, "--each", "--screen", "--out", str(table)]) == 0
    row = json.loads(table.read_text("utf-8"))
    assert "chunks were passed over (`screen`)" in row["warnings"][-1]
    assert main([*command, "--screen", "--workflow", "parallel"]) == 2
    assert "not for parallel" in capsys.readouterr().err


def test_evidence_shows_its_sources_and_tells_what_was_refused(
    serve: Serve, tmp_path: Path, capsys: Capture
) -> None:
    story = tmp_path / "story.txt"
    story.write_text("It rained. The black hat was lost in Vienna.", "utf-8")
    server = serve(
        lambda messages: (
            "ADD The black hat was lost in Vienna.\nADD The hat was red."
            if "<chunk" in messages[-1]["content"]
            else "The black hat [E1]."
        )
    )
    arguments = ["ask", "Which hat?", str(story), "--base-url", server.base_url, "--workflow", "evidence"]
    assert main([*arguments, "--cite"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("The black hat.\n\n- The black hat.\n")
    assert "characters 11 to 44: 'The black hat was lost in Vienna.'" in out
    assert "the document does not have them: 1 passages of replies" in err
    assert main(arguments) == 0
    assert capsys.readouterr().out == "The black hat.\n", "the sources were not asked for"


def test_cite_tells_where_each_statement_stands(serve: Serve, tmp_path: Path, capsys: Capture) -> None:
    story = tmp_path / "story.txt"
    story.write_text("It rained. The black hat was lost in Vienna. It was late.", "utf-8")
    server = serve(
        lambda messages: "The black hat was lost in Vienna. Nobody ever found the golden key again."
    )
    arguments = ["ask", "Which hat?", str(story), "--base-url", server.base_url, "--workflow", "overwrite"]
    assert main([*arguments, "--cite"]) == 0
    out = capsys.readouterr().out
    source = f"  {story}, characters 11 to 44: 'The black hat was lost in Vienna.'"
    assert f"- The black hat was lost in Vienna.\n{source}\n" in out
    assert "- Nobody ever found the golden key again.\n  the document does not say so, and no passage" in out
    assert main(arguments) == 0
    assert "does not say so" not in capsys.readouterr().out


def test_cite_shows_the_nearest_passage_of_an_answer_in_other_words(
    serve: Serve, tmp_path: Path, capsys: Capture
) -> None:
    story = tmp_path / "story.txt"
    story.write_text("It rained. The black hat was lost in Vienna. It was late.", "utf-8")
    server = serve(lambda messages: "Someone lost the black hat while in Vienna.")
    arguments = ["ask", "Which hat?", str(story), "--base-url", server.base_url]
    assert main([*arguments, "--cite"]) == 0
    out, err = capsys.readouterr()
    passage = f"{story}, characters 11 to 44: 'The black hat was lost in Vienna.'"
    assert out.endswith(
        f"- Someone lost the black hat while in Vienna.\n  nearest passage, other words: {passage}\n"
    )
    assert "the document does not say this in these words: compare the nearest passage" in err
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "nearest" not in out and "(--cite shows it)" in err


def test_a_dry_run_names_the_files_that_it_leaves_out(serve: Serve, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("One chunk.", "utf-8")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nonsense")
    assert main(["ask", "What?", str(tmp_path), "--base-url", serve().base_url, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "1 chunk," in out and "left out: " in err and "broken.pdf" in err


@pytest.mark.parametrize("flag", ["--questions", "--templates"])
def test_a_file_that_is_missing_is_named_once(serve: Serve, flag: str, story: Path, capsys: Capture) -> None:
    words = ["What?"] if flag == "--templates" else []
    assert main(["ask", *words, str(story), flag, "no.such", "--base-url", serve().base_url]) == 2
    err = capsys.readouterr().err
    assert "no.such cannot be read: No such file or directory" in err and "Errno" not in err


@pytest.mark.parametrize(
    ("text", "encoding", "guess"),
    [
        ("안녕하세요. 모자를 잃었다.", "euc_kr", True),
        ("Le café est fermé à midi.", "cp1252", True),
        ("Le café est fermé à midi.", "utf-8", False),
        ("Le café est fermé à midi.", "utf-16", False),
        ("Le café est fermé à midi, et la forêt était déjà brûlée. " * 40, "cp1252", False),
        ("Nothing but ASCII.", "ascii", False),
    ],
)
def test_a_guess_of_an_encoding_is_said(
    serve: Serve,
    tmp_path: Path,
    capsys: Capture,
    text: str,
    encoding: str,
    guess: bool,
) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(text.encode(encoding))
    assert main(["ask", "What?", str(path), "--base-url", serve(lambda messages: "yes").base_url]) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert ("(a guess): if characters are wrong, save it as UTF-8" in message) == guess
