"""What reaches stdout and stderr: nothing that a terminal obeys, no defect where a disk is full."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import memagent
from cli.terminal import on_terminal
from fixtures import Capture, Serve
from memagent.cli import _memagent, _signals_as_interrupts, main
from memagent.cli.messages import flags, harmless, with_flags
from memagent.settings import settings_by_name
from server import Server, facts_document
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("gated")

EVIL = "red \x1b[31m alert \x07 \x9b2J \u202eend"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(facts_document(chunks=4), "utf-8")
    return path


def command(server: Server, story: Path, *more: str) -> list[str]:
    return ["ask", "Which facts?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100", *more]


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "memagent", *words], text=True, **{"stderr": subprocess.PIPE, **options}
    )


def test_controls_are_written_out() -> None:
    assert harmless("a\x1b[2Jb\tc\nd\r\x9b\u202e") == r"a\x1b[2Jb" + "\tc\nd" + r"\r\x9b\u202e"


@pytest.mark.slow
def test_a_terminal_never_gets_the_controls_of_a_model(serve: Serve, story: Path, tmp_path: Path) -> None:
    server, trace = serve(lambda messages: EVIL), str(tmp_path / "trace.jsonl")
    code, ask_output = on_terminal(*command(server, story, "--trace", trace))
    assert code == 0 and r"red \x1b[31m alert \x07 \x9b2J \u202eend" in ask_output
    code, show_output = on_terminal("show", trace)
    # Our own colours are obeyed.
    assert code == 0 and r"\x1b[31m" in show_output and "\x1b[1manswer: red" in show_output
    for text in (ask_output, show_output):
        assert "\x1b[31m alert" not in text and "\x07" not in text and "\u202e" not in text


def test_pipes_and_json_get_an_answer_whole(serve: Serve, story: Path, capsys: Capture) -> None:
    server = serve(lambda messages: EVIL)
    assert main(command(server, story)) == 0
    out, err = capsys.readouterr()
    assert out == EVIL + "\n" and "\x1b" not in err
    assert main(command(server, story, "--json")) == 0
    line = capsys.readouterr().out
    assert json.loads(line)["answer"] == EVIL and "\x9b" not in line and "\u202e" not in line


def test_errors_that_quote_a_server_are_harmless(serve: Serve, story: Path, capsys: Capture) -> None:
    assert main(["ask", "who?", f"no\x1b[31m{story}", "--base-url", serve().base_url]) == 4
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["data", "list"], pytest.param(["doctor"], marks=pytest.mark.slow)])
def test_a_full_disk_under_stdout_is_not_a_defect(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(*words, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_closed_pipe_is_not_an_error(serve: Serve, story: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    fact = re.findall(r"FACT-\d+: \w+", story.read_text("utf-8"))[0]
    done = run(*command(serve(lambda messages: fact), story, "--quiet"), stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_stdout_is_said() -> None:
    words = [sys.executable, "-m", "memagent", "doctor"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], text=True, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 2 and "cannot write to standard output" in done.stderr


@pytest.mark.parametrize(
    ("number", "ignored"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, False, marks=pytest.mark.slow),
    ],
)
def test_signals_end_a_read_that_can_be_resumed(
    number: signal.Signals, ignored: bool, serve: Serve, story: Path, tmp_path: Path
) -> None:
    """Scripts start what runs in the background with SIGINT ignored: it must still heed SIGTERM."""
    server, trace, places = serve(latency_seconds=1.0), tmp_path / "trace.jsonl", tmp_path / "tmp"
    places.mkdir()
    words = [
        "ask",
        "Which?",
        "-",
        "--base-url",
        server.base_url,
        "--chunk-tokens",
        "60",
        "--trace",
        str(trace),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(places)},
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
    )  # fmt: skip
    assert process.stdin
    process.stdin.write(story.read_text("utf-8"))
    process.stdin.close()
    process.stdin = None
    wait_for(lambda: len(server.paid) >= 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == "" and "--resume" in err and "Traceback" not in err
    assert list(places.iterdir()) == [], "no copy of stdin is left"
    server.latency_seconds, calls_before = 0.0, len(server.paid)
    done = run(*words, "--resume", input=story.read_text("utf-8"), stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stdout.startswith("FACT-")
    assert len(server.paid) < 2 * calls_before + 8 and len(set(server.paid)) >= len(server.paid) - 1


def test_a_second_signal_does_not_disturb_the_end() -> None:
    """A session that closes sends several."""
    with _signals_as_interrupts() as received:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]


def test_settings_that_the_library_names_are_named_as_flags() -> None:
    message = with_flags(
        "raise `answer_tokens`, or try another `model`; `ollama run x` and memory_tokens stay"
    )
    assert message == "raise --answer-tokens, or try another --model; `ollama run x` and memory_tokens stay"


OF_PIP = {"--disable-pip-version-check", "--quiet", "--no-deps", "--only-binary", "--dest", "--python"}
OF_PIP |= {"--force-reinstall", "--no-cache-dir"}


def named_flags(source: str) -> Iterator[str]:
    """The flags in the texts of a module, docstrings left out; `--` where a text is put together."""
    tree = ast.parse(source)
    docstring_ids = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined_part_ids = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstring_ids:
            ending = "|$" if id(node) in joined_part_ids else ""
            yield from re.findall(rf"(?<![\w-])--(?:[a-z][a-z-]*{ending})", node.value)


def test_the_library_names_no_flags() -> None:
    """From Python a setting has a name; only the terminal has flags."""
    violations = {
        (str(path), flag)
        for path in Path(memagent.__path__[0]).rglob("*.py")
        if "cli" not in path.parts
        for flag in named_flags(path.read_text("utf-8"))
        if flag not in OF_PIP
    }
    assert not violations


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """The flags of a command and of all below it."""
    for parameter in command.params:
        yield from parameter.opts
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        if below := command.get_command(context, name):  # type: ignore[attr-defined]
            yield from options(below, context)


def test_flags_named_in_messages_exist() -> None:
    own = {flag for name, flag in flags().items() if name not in settings_by_name()}
    assert own <= {*options(_memagent, click.Context(_memagent))}
    assert with_flags("`workflows`, `allow_origin` and `2wiki`") == "--workflow, --allow-origin and --2wiki"
