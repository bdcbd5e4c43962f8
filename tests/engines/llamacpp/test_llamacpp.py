"""The engine in this process, with a real model. Its answers are never judged."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from memagent.engines import open_engine as open_any
from memagent.engines.gguf import catalogue
from memagent.engines.gguf.files import read_window
from memagent.engines.llamacpp.engine import LlamaCppEngine, Loopback, open_llamacpp
from memagent.engines.llamacpp.machine import available_cores
from memagent.engines.refusals import RefusedError
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.prompts import GATED
from memagent.settings import EngineSettings
from memagent.types import Message, Sampling
from smollm2 import MODEL, needs_smollm2, write_lora

pytestmark = needs_smollm2

STORY = (Path(__file__).parents[3] / "examples" / "blue_carbuncle.txt").read_text("utf-8")
ENDLESS = Sampling(900, 2.0, seed=0)  # at this temperature the end is as rare as any of 49,152 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model under a short name, which tells that names come from the file."""
    named = tmp_path_factory.mktemp("model") / "smollm2.gguf"
    named.symlink_to(MODEL)
    return named


def user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


@asynccontextmanager
async def opened(model: Path, **settings: Any) -> Any:
    values = {"window_tokens": 1024, "threads": 1, "retries": 0} | settings
    engine = await open_llamacpp(EngineSettings(model=str(model), **values))
    try:
        yield engine
    finally:
        await engine.aclose()


def refused(model: Path, **settings: Any) -> str:
    """The message of the error that opening must end in."""
    with pytest.raises(SettingsError) as caught:
        asyncio.run(open_llamacpp(EngineSettings(model=str(model), **settings)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_said_of_the_model(model: Path) -> None:
    size = model.stat().st_size

    async def run() -> None:
        async with open_any(EngineSettings(model=str(model))) as engine:
            assert isinstance(engine, LlamaCppEngine)
            assert engine.model.name == "smollm2"
            assert engine.model.window_tokens == 8192
            assert engine.model.tokenizer == f"smollm2.gguf, {size} bytes"

    asyncio.run(run())


def test_a_completion_is_cut_at_max_tokens(model: Path) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            completion = await engine.complete(user("Write a long story about a goose."), Sampling(5))
            assert completion.finish_reason == "length"
            assert completion.usage.completion_tokens == 5
            assert completion.text.strip()

    asyncio.run(run())


def test_token_counts_are_those_of_the_prompt(model: Path) -> None:
    first, more = "One", f" goose and two hats.\n\n{STORY[:3000]} ‹tag› 鵝 🪿"

    async def run() -> None:
        async with opened(model, window_tokens=2048) as engine:
            short, long = [
                (await engine.complete(user(text), Sampling(1))).usage.prompt_tokens
                for text in (first, first + more)
            ]
            count = engine.model.count_tokens
            assert count("") == 0
            assert long - short == count(first + more) - count(first) > 500
            assert count("<|im_end|>") > 1  # text, not the token that ends a turn
            assert count("a lone \ud800 surrogate") > 3

    asyncio.run(run())


def test_counting_survives_lost_connections_and_many_threads(model: Path) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            texts = [STORY[start : start + 400] for start in range(0, 8000, 400)]
            expected = [engine.model.count_tokens(text) for text in texts]
            engine._loopback._connection.sock.shutdown(socket.SHUT_RDWR)  # as the server does after 5 s
            assert engine.model.count_tokens(texts[0]) == expected[0]
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(engine.model.count_tokens, texts * 10)) == expected * 10

    asyncio.run(run())


def test_too_long_a_prompt(model: Path) -> None:
    async def run() -> None:
        async with opened(model, window_tokens=512) as engine:
            with pytest.raises(ContextOverflowError):
                await engine.complete(user(STORY[:4000]), Sampling(8))
            completion = await engine.complete(user(STORY[:1200]), Sampling(8))  # it still works
            assert completion.usage.completion_tokens == 8

    asyncio.run(run())


def test_what_prompts_have_in_common_is_computed_once(model: Path) -> None:
    """Also after other prompts: a second question about a document finds its chunks."""
    questions = [
        ("Who lost a hat?", 0),
        ("Who sold the goose?", 0),
        ("Who lost a hat?", 9000),
        ("Who is Ryder?", 0),
    ]

    async def run() -> None:
        async with opened(model) as engine:
            prompts = [
                GATED.fill("update", problem=problem, chunk=STORY[at : at + 1500], memory="")
                for problem, at in questions
            ]
            usages = [(await engine.complete(prompt, Sampling(1))).usage for prompt in prompts]
            chunk = engine.model.count_tokens(STORY[:1500])
            first, next_question, other_chunk, later_question = [usage.cached_tokens for usage in usages]
            assert first < 10
            assert next_question >= chunk
            assert other_chunk < chunk / 2
            assert later_question >= chunk

    asyncio.run(run())


@pytest.mark.parametrize("concurrency", [1, 2])
def test_calls_side_by_side_share_the_beginning_that_one_has_computed(model: Path, concurrency: int) -> None:
    async def run() -> None:
        async with opened(model, concurrency=concurrency) as engine:
            problems = ("Who lost a hat?", "Who sold the goose?", "Who is Ryder?", "Where is the stone?")
            first, *others = [
                GATED.fill("update", problem=problem, chunk=STORY[:1500], memory="") for problem in problems
            ]
            await engine.complete(first, Sampling(1))
            done = await asyncio.gather(*(engine.complete(prompt, Sampling(1)) for prompt in others))
            chunk = engine.model.count_tokens(STORY[:1500])
            computed = sum(
                completion.usage.prompt_tokens - completion.usage.cached_tokens for completion in done
            )
            assert computed < chunk * (
                concurrency + 1
            )  # each slot computes the chunk once at most, and what follows

    asyncio.run(run())


def test_a_forwarded_chat_is_answered_in_the_models_name(model: Path) -> None:
    prompt = user("Who lost a hat?")
    body = {"model": "any", "messages": [asdict(message) for message in prompt], "max_tokens": 1}

    async def run() -> None:
        async with opened(model) as engine:
            first = await engine.complete(prompt, Sampling(1))
            async with engine.forward(body) as chat:
                reply = json.loads(b"".join([piece async for piece in chat.pieces]))
            assert reply["usage"]["prompt_tokens"] == first.usage.prompt_tokens
            assert reply["model"] == engine.model.name  # not the path of its file

    asyncio.run(run())


def test_a_forwarded_picture_is_refused_with_its_cause(model: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    turns = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}]

    async def run() -> None:
        async with opened(model, window_tokens=256) as engine:
            with pytest.raises(RefusedError, match=r"completes texts only: .*image_url") as caught:
                async with engine.forward({"messages": turns}):
                    pass
            assert caught.value.refusal.status == 400
            turns[0]["content"] = [{"type": "text", "text": "What is this?"}]
            async with engine.forward({"messages": turns, "max_tokens": 1}) as chat:
                assert json.loads(b"".join([piece async for piece in chat.pieces]))["usage"]

    asyncio.run(run())


def test_calls_side_by_side_have_a_window_each(model: Path) -> None:
    async def run() -> None:
        async with opened(model, window_tokens=512, concurrency=2) as engine:
            prompts = [user(STORY[:1500]), user(STORY[2000:3500])]
            done = await asyncio.gather(*(engine.complete(prompt, Sampling(32)) for prompt in prompts))
            for completion in done:
                assert completion.usage.completion_tokens > 0
                assert completion.usage.prompt_tokens > 256
            assert done[0].text != done[1].text

    asyncio.run(run())


def test_sampling_is_from_the_whole_distribution(model: Path) -> None:
    async def run() -> None:
        async with opened(model, window_tokens=256) as engine:
            draws = [await engine.complete(user("A"), Sampling(1, 2.0, seed=seed)) for seed in range(48)]
            assert len({draw.text for draw in draws}) > 40  # the most that llama.cpp's top_k of 40 allows
            again = await engine.complete(user("A"), Sampling(1, 2.0, seed=7))
            assert again.text == draws[7].text

    asyncio.run(run())


def test_a_proxy_does_not_see_the_text(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def run() -> None:
        async with opened(model) as engine:
            assert (await engine.complete(user("Hello."), Sampling(2))).text
            assert engine.model.count_tokens("Hello.") == 2

    asyncio.run(run())


def test_nobody_else_can_use_the_server(model: Path) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            address = engine._engine.connection.base_url.removeprefix("http://").removesuffix("/v1")
            assert address.startswith("127.0.0.1:")
            stranger = Loopback(address=f"http://{address}", key="guessed")
            with pytest.raises(EngineError, match="401"):
                stranger.count("text")
            stranger.close()

    asyncio.run(run())


def test_closed_is_closed(model: Path) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            address = engine._engine.connection.base_url.removeprefix("http://127.0.0.1:").removesuffix("/v1")
            await engine.aclose()
            await engine.aclose()
            with pytest.raises(EngineError, match="closed"):
                await engine.complete(user("Hello."), Sampling(2))
            with pytest.raises(EngineError, match="closed"):
                engine.model.count_tokens("Hello.")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(address)))

    asyncio.run(run())


def test_a_cancelled_call_leaves_the_engine_usable(model: Path) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            call = asyncio.create_task(engine.complete(user("A"), ENDLESS))
            await asyncio.sleep(0.3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await engine.complete(user("Hello."), Sampling(2))).text

    asyncio.run(run())


INTERRUPTED = """
import asyncio, sys
from memagent.settings import EngineSettings
from memagent.engines.llamacpp.engine import open_llamacpp
from memagent.types import Message, Sampling

async def run():
    engine = await open_llamacpp(EngineSettings(model=sys.argv[1], threads=1))
    try:
        print("reading", flush=True)
        await engine.complete((Message("user", sys.argv[2]),), Sampling(4000, 2.0, seed=0))
    finally:
        await engine.aclose()
        print("closed", flush=True)

asyncio.run(run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["A", STORY[:20000]], ids=["writing", "reading"])
def test_an_interrupt_ends_the_process(model: Path, text: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(model), text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert output == "closed\n"
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.slow
def test_it_writes_nothing_even_if_a_file_is_cut_short(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        async with opened(model) as engine:
            await engine.complete(user("Hello."), Sampling(2))
            with pytest.raises(ContextOverflowError):
                await engine.complete(user(STORY), Sampling(2))

    asyncio.run(run())
    (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:5_000_000])
    message = refused(tmp_path / "cut.gguf")
    assert f"cannot load {tmp_path / 'cut.gguf'}: the file may be cut short or damaged" in message
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert (
        refused(tmp_path / "no.gguf")
        == f"there is no file {tmp_path / 'no.gguf'}: name a .gguf file with `model`"
    )
    assert "there is no file" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"hello", b"GGUF" + b"\xff" * 100])
def test_a_file_that_is_not_gguf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    assert f"{tmp_path / 'bad.gguf'} is not a GGUF file, or is damaged" in refused(tmp_path / "bad.gguf")


def test_a_model_that_llama_cpp_does_not_know(tmp_path: Path) -> None:
    refused_model = header_only(tmp_path / "new.gguf", "an-architecture-of-2040")
    message = refused(refused_model)
    assert "newer than xllamacpp" in message
    assert "`window_tokens`" in message


def test_too_long_a_window(model: Path) -> None:
    assert "window_tokens is 8193" in refused(model, window_tokens=8193)
    assert "was trained for 8192" in refused(model, window_tokens=8193)


def header_only(path: Path, architecture: str = "llama", window: int | None = 4096) -> Path:
    """A GGUF whose context length comes after values of every kind."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("a name")
    writer.add_tags(["one", "two", ""])
    writer.add_bool("x.bool", True)
    writer.add_float64("x.float64", 0.5)
    writer.add_uint16("x.uint16", 5)
    writer.add_array("x.numbers", [1, 2, 3])
    writer.add_uint32("x.rope.scaling.original_context_length", 7)
    if window:
        writer.add_context_length(window)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_verdict_is_given_with_the_adapter_for_verdicts_and_all_else_without(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, plain = user("Is rain wet? Reply Yes or No."), Sampling(4)

    async def ask() -> tuple[bool, dict[str, float], str]:
        async with opened(model) as engine:
            verdict = await engine.complete(prompt, Sampling(1, verdict=True))
            return (
                engine.model.judges,
                dict(verdict.alternatives),
                (await engine.complete(prompt, plain)).text,
            )

    judges, before, text = asyncio.run(ask())
    assert not judges
    assert len(before) == 20
    assert 0.1 < sum(map(math.exp, before.values())) < 1.001
    known = next(iter(catalogue.MODELS.values()))
    ours = replace(
        known, file=model.name, size_bytes=model.stat().st_size,
        verdicts=str(write_lora(tmp_path / "verdicts.gguf")),
    )  # fmt: skip
    monkeypatch.setitem(catalogue.MODELS, "ours", ours)
    judges, after, same = asyncio.run(ask())
    assert judges
    assert after != before
    assert same == text


def test_a_judge_is_a_model_that_was_trained_to_give_verdicts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = tmp_path / "judge.gguf"
    judge.symlink_to(model.resolve())
    settings = EngineSettings(model=str(model), judge=str(judge), window_tokens=1024)

    async def ask() -> tuple[str, int | None, int]:
        async with open_any(settings) as engine:
            verdict = await engine.complete(user("Is rain wet?"), Sampling(1, verdict=True))
        with pytest.raises(EngineError, match="of judge is closed"):
            await engine.complete(user("Is rain wet?"), Sampling(1, verdict=True))
        return engine.model.judges, engine.model.window_tokens, verdict.usage.prompt_tokens

    with pytest.raises(SettingsError, match=r"`judge` is .*, which was not trained to give verdicts"):
        asyncio.run(ask())
    known = next(iter(catalogue.MODELS.values()))
    adapter = write_lora(tmp_path / "verdicts.gguf")
    size = judge.stat().st_size
    ours = replace(known, file=judge.name, size_bytes=size, verdicts=str(adapter))
    monkeypatch.setitem(catalogue.MODELS, "ours", ours)
    assert asyncio.run(ask()) == (str(adapter.name), 1024, 0)


def test_the_window_is_read_from_the_header(tmp_path: Path, model: Path) -> None:
    assert read_window(header_only(tmp_path / "one.gguf")) == 4096
    assert read_window(header_only(tmp_path / "two.gguf", window=None)) is None
    assert read_window(model) == 8192


@pytest.mark.slow
def test_threads_sleep_while_they_wait() -> None:
    code = "import os; from memagent.engines.llamacpp.engine import import_xllamacpp; import_xllamacpp()"
    code += "; print('OMP_WAIT_POLICY' in os.environ)"

    def loaded(**policy: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        environment |= {"OMP_DISPLAY_ENV": "verbose"} | policy
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    ours, theirs = loaded(), loaded(OMP_WAIT_POLICY="active")
    if "GOMP_SPINCOUNT" not in ours.stderr:
        pytest.skip("llama.cpp was built without GNU OpenMP here")
    assert "GOMP_SPINCOUNT = '0'" in ours.stderr
    assert "GOMP_SPINCOUNT = '0'" not in theirs.stderr
    assert (ours.stdout, theirs.stdout) == ("False\n", "True\n")  # what was set stays, nothing is added


def test_no_more_threads_than_cores() -> None:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert 1 <= available_cores() <= allowed
