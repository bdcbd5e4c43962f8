"""The transformers engine, on a tiny random Llama with a byte-level tokenizer; nothing is fetched."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tokenizers  # noqa: E402
from tokenizers import AddedToken, decoders, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from memagent import (  # noqa: E402
    Completion,
    ContextOverflowError,
    EngineError,
    Message,
    Sampling,
    SettingsError,
    aread,
    open_engine,
    text_document,
)
from memagent.engines.gguf import catalogue  # noqa: E402
from memagent.engines.kinds import TRANSFORMERS  # noqa: E402
from memagent.engines.torch.chats import text_ids, token_counter  # noqa: E402
from memagent.engines.torch.decoding import (  # noqa: E402
    DecodingRow,
    Draws,
    next_batch,
    nucleus,
    sample,
)
from memagent.engines.torch.engine import TransformersEngine, open_transformers  # noqa: E402
from memagent.settings import EngineSettings, load_settings  # noqa: E402
from smollm2 import MODEL, needs_smollm2, write_lora  # noqa: E402

SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")
END = 2
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEXTS = ("a", "the cat sat on the mat", "forty-two and a half, " * 6, "why?")
VERDICT = Sampling(1, verdict=True)
GREEDY = Sampling(max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a Llama whose next token depends on all before it, every byte a token."""
    path = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: number for number, token in enumerate((*SPECIALS, *letters))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.4,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def engine(model: Any, tokenizer: Any) -> TransformersEngine:
    return TransformersEngine(model, tokenizer)


def chat(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def in_time(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it, and fail rather than hang."""
    return asyncio.run(asyncio.wait_for(main, 30))


def complete(
    engine: TransformersEngine, texts: Sequence[str], sampling: Sampling | Sequence[Sampling]
) -> list[Completion]:
    """The completions of all texts, asked for at once."""
    samplings = [sampling] * len(texts) if isinstance(sampling, Sampling) else sampling

    async def run() -> list[Completion]:
        calls = [engine.complete(chat(text), each) for text, each in zip(texts, samplings, strict=True)]
        return await asyncio.gather(*calls)

    return in_time(run())


def watch(model: Any) -> list[tuple[int, int]]:
    """The shape `(sequences, tokens)` of each forward pass from here on."""
    shapes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def generate(model: Any, completion: Completion, tokens: int) -> tuple[int, ...]:
    """What transformers' own greedy decoding makes of the prompt."""
    prompt = torch.tensor([completion.prompt_ids])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens
    )
    return tuple(output[0, prompt.shape[1] :].tolist())


def logprobs_of(model: Any, completion: Completion, temperature: float) -> list[float]:
    """The log-probabilities of the completion's tokens, from one forward pass without a cache."""
    ids = torch.tensor([[*completion.prompt_ids, *completion.completion_ids]])  # (1, tokens)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, :-1] / temperature, dim=-1)
    picked = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
    return picked[len(completion.prompt_ids) - 1 :].tolist()


def test_greedy_batch_is_what_transformers_generates_one_by_one(
    engine: TransformersEngine, model: Any
) -> None:
    shapes = watch(model)
    heads: list[int] = []
    model.lm_head.register_forward_hook(lambda _module, _args, logits: heads.append(logits[..., 0].numel()))
    together = complete(engine, TEXTS, GREEDY)
    assert heads == [rows for rows, _ in shapes]  # logits of the last token of each row, and of no other
    widest = max(len(completion.prompt_ids) for completion in together)
    assert shapes[0] == (4, widest)
    assert all(tokens == 1 for _, tokens in shapes[1:])
    assert len({completion.completion_ids for completion in together}) == 4
    for text, completion in zip(TEXTS, together, strict=True):
        assert completion.completion_ids == generate(model, completion, 12)
        assert completion.completion_ids == complete(engine, [text], GREEDY)[0].completion_ids


def test_prompt_is_the_chat_template_with_the_turn_of_the_assistant_opened(
    engine: TransformersEngine, tokenizer: Any
) -> None:
    completion = complete(engine, ["hi"], GREEDY)[0]
    assert tokenizer.decode(completion.prompt_ids) == "<|start|>user\nhi<|end|><|start|>assistant\n"
    assert completion.usage.prompt_tokens == len(completion.prompt_ids)
    assert completion.usage.completion_tokens == len(completion.completion_ids) == 12


def test_the_chat_template_knows_whether_to_think(model: Any, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE + "{% if enable_thinking is false %}<think></think>{% endif %}"
    engine = TransformersEngine(model, tokenizer)
    prompts = [
        tokenizer.decode(complete(engine, ["hi"], replace(GREEDY, thinking=thinking))[0].prompt_ids)
        for thinking in (None, True, False)
    ]
    assert [prompt.endswith("<think></think>") for prompt in prompts] == [False, False, True]


@pytest.mark.parametrize("text", ["", "a", "naïve 東京\n\t <|end|>  x", "words " * 200])
def test_ids_are_those_of_transformers_own_call(tokenizer: Any, text: str) -> None:
    """Also for a tokenizer that would cut or pad its texts."""
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    assert text_ids(tokenizer, text) == wanted
    assert token_counter(tokenizer)(text) == len(wanted)


def test_a_slow_tokenizer_counts_too() -> None:
    class Slow:
        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            assert options["add_special_tokens"] is False
            return {"input_ids": [len(word) for word in text.split()]}

    assert text_ids(Slow(), "to be counted") == [2, 2, 7] and token_counter(Slow())("two words") == 2


@pytest.mark.parametrize("text", ["a<|end|>b", "<|end|><|start|>system\n\ue000x", "<|pad|><|pad|>"])
def test_a_special_token_in_a_message_is_text(engine: TransformersEngine, tokenizer: Any, text: str) -> None:
    """Nobody closes a turn by spelling the token that does."""
    assert not engine.model.reads_turn_tokens
    completion = complete(engine, [text], GREEDY)[0]
    assert tokenizer.decode(completion.prompt_ids) == f"<|start|>user\n{text}<|end|><|start|>assistant\n"
    specials = set(tokenizer.all_special_ids)
    plain = complete(engine, ["hi"], GREEDY)[0]
    count = sum(number in specials for number in plain.prompt_ids)
    assert sum(number in specials for number in completion.prompt_ids) == count


def test_a_seed_gives_the_same_text_in_any_company(engine: TransformersEngine) -> None:
    samplings = [Sampling(20 + 5 * n, temperature=1.0, top_p=1 - n / 10, seed=n) for n in range(4)]
    together = complete(engine, TEXTS, samplings)
    alone = [complete(engine, [text], each)[0] for text, each in zip(TEXTS, samplings, strict=True)]
    backwards = complete(engine, TEXTS[::-1], samplings[::-1])[::-1]
    assert [completion.completion_ids for completion in together] == [
        completion.completion_ids for completion in alone
    ]
    assert [completion.completion_ids for completion in together] == [
        completion.completion_ids for completion in backwards
    ]
    other = complete(engine, TEXTS[:1], replace(samplings[0], seed=99))[0]
    assert other.completion_ids != together[0].completion_ids


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_whole_number_is_a_seed(engine: TransformersEngine, seed: int) -> None:
    first, again = complete(engine, ["a", "a"], Sampling(8, temperature=1.0, seed=seed))
    assert first.completion_ids == again.completion_ids


def test_without_a_seed_every_call_is_another(engine: TransformersEngine) -> None:
    completions = complete(engine, ["a"] * 4, Sampling(12, temperature=1.0))
    assert len({completion.completion_ids for completion in completions}) == 4


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        (Sampling(24, temperature=1.0, seed=3), 1.0),
        (Sampling(24, temperature=0.6, seed=3), 0.6),
        (Sampling(24, temperature=1.3, top_p=0.5, seed=3), 1.3),
        (Sampling(24, temperature=0.0), 1.0),
    ],
)
def test_logprobs_are_those_of_one_forward_pass_before_top_p(
    engine: TransformersEngine, model: Any, sampling: Sampling, temperature: float
) -> None:
    for completion in complete(engine, TEXTS, sampling):
        assert len(completion.logprobs) == len(completion.completion_ids) > 0
        wanted = logprobs_of(model, completion, temperature)
        assert completion.logprobs == pytest.approx(wanted, abs=1e-4)


def test_a_verdict_comes_with_its_alternatives(engine: TransformersEngine, model: Any) -> None:
    plain, verdict = complete(engine, TEXTS[:1], Sampling(1))[0], complete(engine, TEXTS[:1], VERDICT)[0]
    assert (plain.alternatives, verdict.completion_ids) == ({}, plain.completion_ids)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([verdict.prompt_ids])).logits[0, -1], dim=-1)
    likeliest = logprobs.topk(20).values.tolist()
    assert max(verdict.alternatives.values()) == pytest.approx(likeliest[0], abs=1e-4)
    assert min(verdict.alternatives.values()) >= likeliest[-1] - 1e-4


def test_an_adapter_for_verdicts_changes_nothing_else(model: Any, tokenizer: Any) -> None:
    peft = pytest.importorskip("peft")
    alone = TransformersEngine(model, tokenizer)
    samplings = [VERDICT, GREEDY, VERDICT, GREEDY]
    before = complete(alone, TEXTS, samplings)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:
                value.add_(torch.randn_like(value))
    always = TransformersEngine(model, tokenizer)
    judge = TransformersEngine(model, tokenizer, judges="lora", without_adapter=adapted.disable_adapter)
    with_it, after = complete(always, TEXTS, samplings), complete(judge, TEXTS, samplings)
    for sampling, base, everywhere, row in zip(samplings, before, with_it, after, strict=True):
        assert base.logprobs != pytest.approx(everywhere.logprobs, abs=1e-3)
        assert row.logprobs == pytest.approx((everywhere if sampling.verdict else base).logprobs, abs=1e-4)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_token_ends_a_row_and_is_kept(engine: TransformersEngine, model: Any, as_list: bool) -> None:
    free = complete(engine, TEXTS, GREEDY)
    assert {completion.finish_reason for completion in free} == {"stop", "length"}
    stop = free[1].completion_ids[4]
    model.generation_config.eos_token_id = [0, stop] if as_list else stop
    shapes = watch(model)
    stopped = complete(engine, TEXTS, GREEDY)
    for before, after in zip(free, stopped, strict=True):
        whole = before.completion_ids
        cut = whole[: whole.index(stop) + 1] if stop in whole else whole
        assert after.completion_ids == cut
        assert after.finish_reason == ("stop" if cut[-1] in (stop, END) else "length")
    assert len(stopped[1].completion_ids) <= 5
    assert shapes[0][0] == 4
    assert shapes[-1][0] < 4  # the rows that ended are no longer computed


def test_the_end_of_a_turn_ends_the_text_but_is_not_in_it(
    engine: TransformersEngine, model: Any, tokenizer: Any
) -> None:
    free = complete(engine, ["a"], GREEDY)[0]
    model.generation_config.eos_token_id = None  # only the tokenizer tells
    with torch.no_grad():  # the head's row of the third token becomes that of the turn's end
        third = free.completion_ids[2]
        model.lm_head.weight[[END, third]] = model.lm_head.weight[[third, END]]
    ended = complete(engine, ["a"], GREEDY)[0]
    assert ended.completion_ids == (*free.completion_ids[:2], END)
    assert ended.finish_reason == "stop"
    assert ended.text == tokenizer.decode(free.completion_ids[:2])


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p() -> None:
    row = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64)
    top_p = torch.tensor([[0.5], [0.51], [0.8], [0.95], [2.0], [0.0]])
    wanted = [
        [0, 0.5, 0, 0],
        [0, 0.5, 0, 0.25],
        [0, 0.5, 0.15, 0.25],
        [0.1, 0.5, 0.15, 0.25],
        [0.1, 0.5, 0.15, 0.25],
        [0, 0.5, 0, 0],
    ]
    assert nucleus(row.expand(6, 4), top_p).tolist() == wanted


def test_tokens_are_drawn_by_their_shares_of_the_unit_interval() -> None:
    logits = torch.tensor([0.5, 0.2, 0.3]).log().repeat(8, 1)
    # With top_p 0.6 the first and the third stay, with shares 5/8 and 3/8; squared, they are 25 : 4 : 9.
    # A number of exactly 0 falls on the first token that has a share at all.
    uniforms = torch.tensor([[0.0], [0.49], [0.51], [0.71], [0.62], [0.63], [0.65], [0.67]]).double()
    logits[0, 0] = -torch.inf
    draws = Draws(
        temperature=torch.tensor([[1.0]] * 6 + [[0.5]] * 2),
        greedy=torch.zeros(8, dtype=torch.bool),
        top_p=torch.tensor([[2.0]] * 4 + [[0.6]] * 2 + [[2.0]] * 2),
        uniforms=uniforms,
    )
    token_ids, logprobs = sample(logits, draws, torch.zeros(len(logits), dtype=torch.long))
    assert token_ids.tolist() == [1, 0, 1, 2, 0, 2, 0, 1]
    shares = [0.4, 0.5, 0.2, 0.3, 0.5, 0.3, 25 / 38, 4 / 38]
    assert logprobs.exp().tolist() == pytest.approx(shares, abs=1e-6)


def test_an_overflow_is_reported_before_any_computing(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer, window_tokens=60)
    shapes = watch(model)
    fixed = len(complete(engine, ["a"], Sampling(1))[0].prompt_ids) - 1
    room = 60 - fixed - 10
    complete(engine, ["x" * room], Sampling(10))
    shapes.clear()
    with pytest.raises(ContextOverflowError, match=r"51 tokens and up to 10 .* has 60"):
        complete(engine, ["x" * (room + 1)], Sampling(10))
    with pytest.raises(EngineError, match="max_tokens is 0"):
        complete(engine, ["a"], Sampling(0))
    assert shapes == []


def test_a_failing_batch_fails_its_own_calls_only(model: Any, tokenizer: Any) -> None:
    engine = TransformersEngine(model, tokenizer, most_rows=2)

    def break_on_a_pound_sign(_module: Any, _args: Any, kwargs: Any) -> None:
        if (kwargs["input_ids"] == tokenizer("#")["input_ids"][0]).any():
            raise RuntimeError("no pound signs")

    model.register_forward_pre_hook(break_on_a_pound_sign, with_kwargs=True)

    async def run() -> list[Completion | BaseException]:
        calls = [engine.complete(chat(text), GREEDY) for text in ("a", "b", "#", "c", "d")]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert [isinstance(outcome, Completion) for outcome in outcomes] == [True, True, False, False, True]
    for failed in outcomes[2:4]:
        assert isinstance(failed, EngineError)
        assert isinstance(failed.__cause__, RuntimeError)
        assert "batch of 2 (RuntimeError: no pound signs)" in str(failed)
        frames = [frame for frame, _ in traceback.walk_tb(failed.__cause__.__traceback__)]
        held = [value for frame in frames for value in frame.f_locals.values()]
        assert not any(isinstance(value, torch.Tensor) for value in held)  # whoever keeps the error
    assert complete(engine, ["e"], GREEDY)


def test_broken_weights_are_an_error_not_a_text(engine: TransformersEngine, model: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    for sampling in (GREEDY, Sampling(4, temperature=1.0, seed=1)):
        with pytest.raises(EngineError, match="weights may be broken"):
            complete(engine, ["a"], sampling)


class Gate:
    """Holds the forward passes of a model: each waits until it is let through."""

    def __init__(self, model: Any) -> None:
        self.rows: list[int] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.hook = model.register_forward_pre_hook(self._enter, with_kwargs=True)

    def _enter(self, _module: Any, _args: Any, kwargs: Any) -> None:
        self.rows.append(kwargs["input_ids"].shape[0])
        self.entered.release()
        assert self.open.acquire(timeout=20)

    async def wait(self) -> None:
        """Until a forward pass has begun."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=20)


def test_cancelled_calls_are_dropped_while_they_wait_and_while_they_run(
    engine: TransformersEngine, model: Any
) -> None:
    alone = complete(engine, ["a"], GREEDY)[0]
    gate = Gate(model)

    async def run() -> None:
        stays, leaves = (asyncio.create_task(engine.complete(chat(text), GREEDY)) for text in ("a", "b"))
        await gate.wait()
        waits = asyncio.create_task(engine.complete(chat("c"), GREEDY))
        await asyncio.sleep(0)
        waits.cancel()
        leaves.cancel()
        await asyncio.sleep(0)
        gate.open.release(100)
        assert (await stays).completion_ids == alone.completion_ids
        assert gate.rows == [2] + [1] * 11
        assert (await engine.complete(chat("a"), Sampling(1))).completion_ids == alone.completion_ids[:1]
        assert gate.rows[12:] == [1]

    in_time(run())


def test_closing_fails_what_runs_and_what_waits_and_then_every_call(
    engine: TransformersEngine, model: Any
) -> None:
    gate = Gate(model)

    async def run() -> None:
        running = asyncio.create_task(engine.complete(chat("a"), GREEDY))
        await gate.wait()
        waiting = asyncio.create_task(engine.complete(chat("b"), GREEDY))
        await asyncio.sleep(0)
        closing = asyncio.create_task(engine.aclose())
        for call in (running, waiting):
            with pytest.raises(EngineError, match="closed before"):
                await call
        assert not closing.done()  # the model still computes
        gate.open.release(100)
        await closing
        assert len(gate.rows) == 1
        with pytest.raises(EngineError, match="open a new one"):
            await engine.complete(chat("c"), GREEDY)
        await engine.aclose()

    in_time(run())


def test_calls_that_come_during_a_batch_make_the_next_one(engine: TransformersEngine, model: Any) -> None:
    gate = Gate(model)

    async def run() -> None:
        first = asyncio.create_task(engine.complete(chat("a"), Sampling(1)))
        await gate.wait()
        others = [asyncio.create_task(engine.complete(chat(text), Sampling(1))) for text in ("b", "c", "d")]
        await asyncio.sleep(0)
        gate.open.release(100)
        await asyncio.gather(first, *others)

    in_time(run())
    assert gate.rows == [1, 3]


def later(
    engine: TransformersEngine, model: Any, first: Sequence[tuple[str, Sampling]], steps: int,
    others: Sequence[tuple[str, Sampling]],
) -> tuple[list[str], list[int]]:  # fmt: skip
    """The texts of calls in the order in which they came back, and how many rows each forward pass had.

    The `others` come after so many forward passes.
    """
    gate, back = Gate(model), list[str]()

    async def one(text: str, sampling: Sampling) -> None:
        await engine.complete(chat(text), sampling)
        back.append(text)

    async def run() -> None:
        calls = [asyncio.create_task(one(*call)) for call in first]
        for _ in range(steps - 1):
            await gate.wait()
            gate.open.release()
        await gate.wait()
        calls += [asyncio.create_task(one(*call)) for call in others]
        await asyncio.sleep(0)
        gate.open.release(1000)
        await asyncio.gather(*calls)

    in_time(run())
    gate.hook.remove()
    return back, gate.rows


LONG = ("the cat sat on the mat", Sampling(14, temperature=1.0, seed=5))


def test_an_answer_does_not_wait_for_the_rest_of_its_batch(engine: TransformersEngine, model: Any) -> None:
    back, rows = later(engine, model, [LONG, ("why?", Sampling(2))], 1, [])
    assert back == ["why?", LONG[0]] and rows[-1] == 1


def test_calls_just_answered_may_take_a_moment_to_ask_again(engine: TransformersEngine, model: Any) -> None:
    shapes = watch(model)

    async def caller(pauses: int) -> None:
        await engine.complete(chat(f"a{pauses}"), Sampling(1))
        for _ in range(pauses):
            await asyncio.sleep(0)
        await engine.complete(chat(f"b{pauses}"), Sampling(1))

    async def run() -> None:
        await asyncio.gather(*(caller(pauses) for pauses in (0, 2, 4)))

    in_time(run())
    assert [rows for rows, _ in shapes if rows > 1] == [3, 3]  # beside them, what the three begin with


CHUNKS = ("the gulls of the bay, " * 4, "forty-two lamps and a half, " * 3)
BEGUN = tuple(chunk + end for end in ("a", "one more", "and then?") for chunk in CHUNKS)


def test_beginnings_that_prompts_share_are_read_once_and_change_nothing(
    engine: TransformersEngine, model: Any
) -> None:
    samplings = [Sampling(6 + n, temperature=1.0, top_p=1 - n / 20, seed=n) for n in range(len(BEGUN))]
    alone = [complete(engine, [text], each)[0] for text, each in zip(BEGUN, samplings, strict=True)]
    shapes = watch(model)
    together = complete(engine, BEGUN, samplings)
    assert [rows for rows, _ in shapes[:2]] == [2, 6]  # the two chunks, then what is each call's own
    assert shapes[1][1] < shapes[0][1]
    assert [completion.prompt_ids for completion in together] == [
        completion.prompt_ids for completion in alone
    ]
    assert [completion.completion_ids for completion in together] == [
        completion.completion_ids for completion in alone
    ]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_prompts_are_read_without_a_mask(engine: TransformersEngine, model: Any) -> None:
    masks: list[Any] = []
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: masks.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    complete(engine, TEXTS, GREEDY)
    assert masks[0] is None and None not in masks[1:]


def test_a_prompt_that_several_calls_have_is_read_once(engine: TransformersEngine, model: Any) -> None:
    texts = ("the gulls", "forty-two lamps", "the gulls", "the gulls")
    samplings = [Sampling(5, temperature=1.0, seed=seed) for seed in range(4)]
    alone = [complete(engine, [text], each)[0] for text, each in zip(texts, samplings, strict=True)]
    shapes = watch(model)
    together = complete(engine, texts, samplings)
    assert max(rows for rows, tokens in shapes if tokens > 1) == 2 and (4, 1) in shapes
    assert [completion.completion_ids for completion in together] == [
        completion.completion_ids for completion in alone
    ]
    assert len({completion.completion_ids for completion in together}) == 4


async def announced(engine: TransformersEngine, text: str, calls: int, pauses: int = 0) -> None:
    """A caller that makes one call after another, each after some turns of the event loop."""
    with engine.caller():
        for _ in range(calls):
            for _ in range(pauses):
                await asyncio.sleep(0.002)
            await engine.complete(chat(text), Sampling(1))


def test_a_batch_starts_once_all_announced_callers_wait(engine: TransformersEngine, model: Any) -> None:
    shapes = watch(model)

    async def run() -> None:
        with engine.caller():
            early = [asyncio.create_task(announced(engine, text, 1)) for text in ("a", "why?" * 9)]
            await asyncio.sleep(0.05)
            assert shapes == []  # this one has announced itself, and makes no call yet
            await engine.complete(chat("the cat sat on the mat"), Sampling(1))
            await asyncio.gather(*early)

    in_time(run())
    assert max(rows for rows, _ in shapes) == 3


def test_a_caller_that_leaves_is_not_waited_for(engine: TransformersEngine, model: Any) -> None:
    shapes = watch(model)

    async def run() -> None:
        with engine.caller():
            waiting = asyncio.create_task(announced(engine, "a", 1))
            await asyncio.sleep(0.02)
            assert shapes == []
        await waiting

    in_time(run())
    assert len(shapes) == 1


SLOWNESS = ((0, 0, 0, 0), (0, 3, 1, 6), (9, 0, 2, 0))


async def map_concurrent(
    engine: TransformersEngine, texts: Sequence[str], calls: Sequence[int], pauses: Sequence[int]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for each in zip(texts, calls, pauses, strict=True):
            tasks.create_task(announced(engine, *each))


def test_the_same_callers_get_the_same_batches_however_slow_they_are(
    engine: TransformersEngine, model: Any
) -> None:
    shapes = watch(model)
    batches = []
    for pauses in SLOWNESS:
        in_time(map_concurrent(engine, "abcd", (3, 2, 3, 1), pauses))
        batches.append([rows for rows, tokens in shapes if rows > 1])
        shapes.clear()
    assert batches == [[4, 3, 2]] * 3  # a caller that is done leaves; beginnings are read in rows of one


def test_more_callers_than_rows_get_the_same_batches_however_slow_they_are(
    model: Any, tokenizer: Any
) -> None:
    engine = TransformersEngine(model, tokenizer, most_rows=2)
    shapes = watch(model)
    batches = set()
    for pauses in SLOWNESS:
        texts = ("a", "why? " * 4, "the gulls " * 9, "forty-two lamps " * 20)  # a pair tells by its width
        in_time(map_concurrent(engine, texts, (3, 2, 3, 1), pauses))
        batches.add(tuple(shapes))
        shapes.clear()
    assert len(batches) == 1


def test_a_batch_is_led_by_the_oldest_call_and_has_prompts_of_like_length() -> None:
    async def run() -> None:
        future = asyncio.get_running_loop().create_future

        def make_row(tokens: int) -> DecodingRow:
            return DecodingRow([1] * tokens, GREEDY, future())

        rows = [make_row(tokens) for tokens in (6000, 900, 5000, 3000, 2999, 8000, 10)]
        batch, rest = next_batch(rows, 16)
        assert [len(row.prompt_ids) for row in batch] == [6000, 5000, 3000, 8000]
        assert [len(row.prompt_ids) for row in rest] == [900, 2999, 10]
        assert [len(row.prompt_ids) for row in next_batch(rows, 2)[0]] == [6000, 5000]
        rows[0].finished.cancel()
        assert [len(row.prompt_ids) for row in next_batch(rows, 16)[0]] == [900]
        short = [make_row(tokens) for tokens in (5, 512, 513)]
        assert [len(row.prompt_ids) for row in next_batch(short, 16)[0]] == [5, 512]
        for row in rows:
            row.finished.cancel()
        assert next_batch(rows, 16) == ([], [])

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_reading_from_a_model_in_training_leaves_it_unchanged(
    engine: TransformersEngine, model: Any, tokenizer: Any
) -> None:
    plain = complete(engine, TEXTS, GREEDY)
    model.gradient_checkpointing_enable()
    model.train()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    modes: set[tuple[bool, bool]] = set()
    hook = model.register_forward_pre_hook(
        lambda *_: modes.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    again = complete(engine, TEXTS, GREEDY)
    hook.remove()
    # No graph is built; and none of inference mode's tensors, which refuse training, can stay behind.
    assert modes == {(False, False)}
    assert [completion.completion_ids for completion in again] == [
        completion.completion_ids for completion in plain
    ]
    assert model.training
    model(torch.tensor([plain[0].prompt_ids])).logits.sum().backward()
    with torch.no_grad():
        model.lm_head.weight.neg_()
    changed = complete(engine, TEXTS, GREEDY)
    assert [completion.completion_ids for completion in changed] != [
        completion.completion_ids for completion in plain
    ]


def learned_positions(vocabulary: int) -> Any:
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.4
    )
    return GPT2LMHeadModel(config)


SMALL: Any = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.4,
}  # fmt: skip


def linear_attention(vocabulary: int) -> Any:
    config = Qwen3NextConfig(
        vocab_size=vocabulary,
        **SMALL,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        mlp_only_layers=[0, 1],
        num_experts=0,
    )
    return Qwen3NextForCausalLM(config)


def sliding_window(vocabulary: int) -> Any:
    config = MistralConfig(
        vocab_size=vocabulary,
        **SMALL,
        sliding_window=8,
    )
    return MistralForCausalLM(config)


@pytest.mark.parametrize("build", [learned_positions, linear_attention, sliding_window])
def test_other_architectures_are_padded_and_drop_rows_too(
    build: Callable[[int], Any], tokenizer: Any
) -> None:
    torch.manual_seed(2)
    engine = TransformersEngine(build(len(tokenizer)).eval(), tokenizer)
    samplings = [Sampling(tokens) for tokens in (3, 1, 9, 5)]
    together = complete(engine, TEXTS, samplings)
    alone = [complete(engine, [text], each)[0] for text, each in zip(TEXTS, samplings, strict=True)]
    assert [completion.completion_ids for completion in together] == [
        completion.completion_ids for completion in alone
    ]
    back, _ = later(engine, engine._network, [LONG, ("a", Sampling(2))], 1, [("b", Sampling(1))])
    assert back == ["a", LONG[0], "b"]


@pytest.mark.parametrize("build", [learned_positions, linear_attention, sliding_window])
def test_other_architectures_may_share_beginnings_too(build: Callable[[int], Any], tokenizer: Any) -> None:
    """Padding between a beginning and its end must neither fill a window nor enter a state."""
    torch.manual_seed(2)
    model = build(len(tokenizer)).eval()
    for completion in complete(TransformersEngine(model, tokenizer), BEGUN, GREEDY):
        assert completion.logprobs == pytest.approx(logprobs_of(model, completion, 1), abs=1e-3)


def test_the_model_tells_its_name_window_and_tokens(folder: Path, model: Any, tokenizer: Any) -> None:
    description = TransformersEngine(model, tokenizer).model
    assert description.name == description.tokenizer == str(folder)
    assert description.window_tokens == 4096
    assert description.count_tokens is not None
    assert description.count_tokens("häh<|end|>") == 5
    model.config.max_position_embeddings = 131072
    assert TransformersEngine(model, tokenizer, name="it").model.window_tokens == 8192
    assert TransformersEngine(model, tokenizer, window_tokens=20000).model.window_tokens == 20000


def test_a_refused_role_is_an_error_that_says_what_to_do(engine: TransformersEngine) -> None:
    with pytest.raises(EngineError, match=r"refuses messages of system, user \(no system here\)"):
        asyncio.run(engine.complete((Message("system", "s"), *chat("u")), GREEDY))


def test_a_read_from_a_folder_end_to_end(folder: Path) -> None:
    settings = load_settings({
        "model": str(folder), "workflow": "overwrite", "chunk_tokens": 200, "memory_tokens": 24,
        "answer_tokens": 24, "window_tokens": 3000, "temperature": 1.0, "seed": 7, "concurrency": 2,
        "threads": 3,
    })  # fmt: skip
    document = text_document("The lighthouse keeper counts gulls. " * 15)
    threads = torch.get_num_threads()

    async def run() -> list[Any]:
        engine = await open_transformers(settings.engine)
        try:
            assert isinstance(engine, TransformersEngine)
            assert engine.model.window_tokens == 3000
            shapes = watch(engine._network)
            assert torch.get_num_threads() == 3
            reads = [aread("How many?", document, engine=engine, settings=settings) for _ in range(3)]
            trajectories = await asyncio.gather(*reads)
            assert {rows for rows, _ in shapes} == {1, 2}
            return trajectories
        finally:
            await engine.aclose()
            torch.set_num_threads(threads)

    first, *others = asyncio.run(run())
    assert [conversation.kind for conversation in first.conversations] == ["update"] * 3 + ["answer"]
    assert first.answer
    for conversation in first.conversations:
        completion = conversation.completion
        assert 0 < len(completion.completion_ids) == len(completion.logprobs) <= 24
    for other in others:  # the same seed
        assert [conversation.memory for conversation in other.conversations] == [
            conversation.memory for conversation in first.conversations
        ]


@pytest.mark.parametrize(("wanted", "expected"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_cpu_computes_in_bfloat16_only_if_asked(folder: Path, wanted: Any, expected: torch.dtype) -> None:
    settings = EngineSettings(engine="transformers", model=str(folder), dtype=wanted)

    async def run() -> tuple[torch.dtype, Completion]:
        engine = await open_transformers(settings)
        try:
            return engine._network.dtype, await engine.complete(chat("Who?"), Sampling(4))
        finally:
            await engine.aclose()

    dtype, completion = asyncio.run(run())
    assert dtype == (torch.bfloat16 if torch.cuda.is_available() else expected)
    assert completion.completion_ids


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "cannot be loaded .*name a folder with config.json"),
        (lambda path: (path / "model.safetensors").write_bytes(b"no"), "cannot be loaded"),
        (lambda path: (path / "chat_template.jinja").unlink(), "no chat template: use its instruct version"),
    ],
)
def test_a_spoilt_folder_is_a_settings_error(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    asyncio.run(open_transformers(EngineSettings(engine="transformers", model=str(tmp_path))))
    spoil(tmp_path)
    with pytest.raises(SettingsError, match=message) as caught:
        asyncio.run(open_transformers(EngineSettings(engine="transformers", model=str(tmp_path))))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"), [("no/such/folder", "OSError"), ("such/model.gguf", ".*there is no such file")]
)
def test_a_missing_model_is_a_settings_error(name: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"the model {name} cannot be loaded \({why}"):
        asyncio.run(open_transformers(EngineSettings(engine="transformers", model=name)))


def test_a_hub_out_of_reach_is_a_settings_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SettingsError, match=r"(?s)the model some/id cannot be loaded .*while it is in reach"):
        asyncio.run(open_transformers(EngineSettings(engine="transformers", model="some/id")))


def test_no_model_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="`model`"):
        asyncio.run(open_transformers(EngineSettings(engine="transformers")))


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_the_extra_the_error_says_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "memagent.engines.torch.engine")
    monkeypatch.delattr(importlib.import_module("memagent.engines.torch"), "engine")

    async def opened(settings: EngineSettings) -> None:
        async with open_engine(settings):
            """It does not come to that."""

    with pytest.raises(SettingsError, match=r"pip install -e '.\[train\]'"):
        asyncio.run(opened(EngineSettings(engine="transformers", model="x")))


@needs_smollm2
def test_a_real_model_from_a_gguf_file() -> None:
    engine = asyncio.run(open_transformers(EngineSettings(engine="transformers", model=str(MODEL))))
    assert isinstance(engine, TransformersEngine)
    completions = complete(engine, ["Name a colour.", "Say hello to the people of Paris."], Sampling(6))
    for completion in completions:
        assert completion.text.strip()
        assert completion.completion_ids == generate(engine._network, completion, 6)


@needs_smollm2
def test_a_model_that_has_an_adapter_for_verdicts_judges_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(engine="transformers", model=str(MODEL))
    plain = asyncio.run(open_transformers(settings))
    known = next(iter(catalogue.MODELS.values()))
    verdicts = str(write_lora(tmp_path / "verdicts.gguf"))
    ours = replace(known, file=MODEL.name, size_bytes=MODEL.stat().st_size, verdicts=verdicts)
    monkeypatch.setitem(catalogue.MODELS, "ours", ours)
    judge = asyncio.run(open_transformers(settings))
    assert TRANSFORMERS.preview
    names = plain.model.judges, judge.model.judges, TRANSFORMERS.preview(settings, None).judges
    assert names == ("", "verdicts.gguf", "verdicts.gguf")
    (untrained, before), (trained, after) = (
        complete(engine, TEXTS[:2], [VERDICT, GREEDY]) for engine in (plain, judge)
    )
    assert trained.alternatives != pytest.approx(untrained.alternatives, abs=1e-2)
    assert after.completion_ids == before.completion_ids
