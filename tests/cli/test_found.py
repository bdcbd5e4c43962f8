"""What `memagent ask` says if a document does not hold the answer, or was read in one prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import Capture, Serve
from memagent.cli import main
from memagent.reading.read import NO_ROOM, NOT_FOUND
from server import Messages

NOTES = ("--workflow", "notes")

SILENT = "Nothing is told of that."
SAID = "The black hat was lost in Vienna."


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(f"It rained. {SAID} It was late.\n\n" + "The lamp burned all night. " * 80, "utf-8")
    return path


def notes(answer: str, note: str = SAID) -> Callable[[Messages], str]:
    """A model that writes a note where the hat is told of, and gives this answer."""

    def reply(messages: Messages) -> str:
        prompt = messages[-1]["content"]
        if "<document-" in prompt:
            return answer
        return note if "hat" in prompt else SILENT

    return reply


def test_notes_answers_from_what_was_noted(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(notes("It was lost in Vienna.", "It says that the black hat was lost in Vienna."))
    words = ["ask", "Where was the black hat lost?", str(story), *NOTES, "--json"]
    assert main([*words, "--base-url", server.base_url]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["found"] and result["calls"] == result["chunks"] + 1 > 2
    assert result["memory"] == f'file "{story}"\nE1 "{SAID}" (11-44)'
    last = server.asked[-1]["messages"][-1]["content"]
    assert f"- {SAID}" in last and "not in the document" not in last


def test_no_answer_is_made_from_nothing(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(lambda messages: SILENT)
    words = ["ask", "Which surgeon sewed it?", str(story), *NOTES, "--base-url", server.base_url]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out == f"{NOT_FOUND}\n"
    assert "no answer was found: nothing was noted, so no model was asked" in err
    assert len(server.asked) > 1 and all("<text-" in body["messages"][-1]["content"] for body in server.asked)
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["found"], result["answer"], result["statements"], result["memory"]) == (
        False,
        NOT_FOUND,
        [],
        "",
    )


def test_what_the_memory_had_no_room_for_is_said(serve: Serve, story: Path, capsys: Capture) -> None:
    sentences = [f"The black hat number {number} was lost in Vienna." for number in range(9)]
    story.write_text(
        "\n\n".join(f"{sentence}\n\n{'The lamp burned all night. ' * 60}" for sentence in sentences), "utf-8"
    )
    server = serve(notes("It was lost in Vienna.", "Hats were lost."))
    words = ["ask", "Where was each black hat lost?", str(story), *NOTES, "--base-url", server.base_url]
    assert main([*words, "--memory-tokens", "100", "--json"]) == 0
    out, err = capsys.readouterr()
    given_up = json.loads(out)["given_up"]
    assert given_up and f"the memory had no room for {given_up} passages (--memory-tokens)" in err
    assert main([*words, "--memory-tokens", "12"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{NO_ROOM}\n" and "nothing was noted" not in err
    assert "no answer was found: what was noted found no room in the memory: raise --memory-tokens" in err


def test_a_model_may_say_that_doubtful_passages_do_not_answer(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    server = serve(notes("Not in the document."))
    question = "Which surgeon sewed the emperor's hat in Madrid, and when?"
    words = ["ask", question, str(story), *NOTES, "--base-url", server.base_url, "--json", "--cite"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert "reply: not in the document" in server.asked[-1]["messages"][-1]["content"]
    assert (result["found"], result["answer"], result["statements"]) == (False, NOT_FOUND, [])
    assert (
        SAID in result["memory"]
        and "no answer was found: the model says that what was noted does not hold it" in err
    )


def test_an_answer_that_the_document_does_not_say_is_marked(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    marked = "the document does not say this, and no passage comes near it: check it"
    words = ["ask", "Where was the black hat lost?", str(story), "--base-url"]
    assert main([*words, serve(notes("A thief took it to Paris.")).base_url]) == 0
    out, err = capsys.readouterr()
    assert out == "A thief took it to Paris.\n" and marked in err
    assert main([*words, serve(notes("The hat was lost in Vienna.")).base_url]) == 0
    assert main([*words, serve(notes(SAID)).base_url]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(f"{SAID}\n") and marked not in err.rpartition("answered in")[2]


def test_a_row_of_many_files_says_that_no_answer_was_found(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    table = story.with_name("table.jsonl")
    words = ["ask", "--each", "Who?", str(story), *NOTES, "--out", str(table)]
    assert main([*words, "--base-url", serve(lambda messages: SILENT).base_url]) == 0
    row = json.loads(table.read_text("utf-8"))
    assert (row["status"], row["answer"], row["statements"]) == ("answered", NOT_FOUND, [])
    assert row["warnings"] == ["no answer was found: nothing was noted, so no model was asked"]


def test_what_fits_one_prompt_is_read_in_one_and_it_is_said(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    server = serve(notes(SAID))
    words = ["ask", "Where was the black hat lost?", str(story), "--base-url", server.base_url, "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["workflow"], result["calls"], result["memory"], result["answer"]) == ("auto", 1, "", SAID)
    assert "read in one prompt: it takes less than half the window" in err
    server = serve(lambda messages: "Not in the document.")
    words = ["ask", "Which surgeon of Madrid sewed it?", str(story), "--base-url", server.base_url]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{NOT_FOUND}\n"


def test_an_answer_to_what_the_document_hardly_names_is_marked(
    serve: Serve, story: Path, capsys: Capture
) -> None:
    server = serve(lambda messages: "Vienna")
    for question, doubtful in (
        ("Who is president of France?", True),
        ("Where was the black hat lost?", False),
    ):
        assert main(["ask", question, str(story), "--json", "--base-url", server.base_url]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["doubtful"] == doubtful
        assert (
            "the document has little of what the question says, or lacks a name in it: check the answer"
            in err
        ) == doubtful
