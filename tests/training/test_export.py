"""Policies out of training: every form gives what the policy gives, in torch and in llama.cpp."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from memagent.engines import open_engine  # noqa: E402
from memagent.engines.adapters import name_with, read_adapter, read_trained  # noqa: E402
from memagent.engines.gguf.files import requantise  # noqa: E402
from memagent.engines.llamacpp import engine as llamacpp  # noqa: E402
from memagent.engines.requests import Requests  # noqa: E402
from memagent.engines.torch.chats import chat_ids  # noqa: E402
from memagent.engines.torch.engine import TransformersEngine, open_transformers  # noqa: E402
from memagent.engines.torch.lora import with_adapter  # noqa: E402
from memagent.errors import SettingsError  # noqa: E402
from memagent.settings import EngineSettings  # noqa: E402
from memagent.training.export import export_policy  # noqa: E402
from memagent.types import Completion, Message, Sampling, Trained  # noqa: E402
from smollm2 import MODEL, needs_smollm2  # noqa: E402

pytestmark = needs_smollm2

TOKENS = 2048
ROUNDED = 0.05  # how far a log-probability may be off with an adapter, whose weights are F16
# Pieces of characters, without blank and newline: llama.cpp's server leaves such tokens out of its record.
BYTES = [token for token in range(111, 252) if token not in (198, 216)]
MESSAGES = (Message("user", "Name three birds, and where each of them lives."),)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


@pytest.fixture(scope="module")
def wheel() -> Path:
    """SmolLM2 as it is installed."""
    return MODEL


@pytest.fixture(scope="module")
def vocabulary(wheel: Path) -> list[tuple[Any, ...]]:
    """The fields of SmolLM2's tokenizer cut to its first tokens, for models that are quick to load."""
    singles = 252  # the tokens that no merge makes; after them both are in the same order
    fields = []
    for field in gguf.GGUFReader(wheel).fields.values():
        if field.name.startswith("tokenizer."):
            value = field.contents()
            if isinstance(value, list):
                value = value[: TOKENS - singles * field.name.endswith("merges")]
            items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            fields.append((field.name, value, field.types[0], items))
    return fields


@pytest.fixture(scope="module")
def blank(vocabulary: list[tuple[Any, ...]]) -> Callable[[Path, Any], Path]:
    return partial(write_blank, vocabulary)


@pytest.fixture(scope="module")
def tokenizer(blank: Callable[[Path, Any], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """That of the tiny models."""
    file = blank(tmp_path_factory.mktemp("tokenizer") / "tiny.gguf", tiny())
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@pytest.fixture(scope="module")
def whole_tokenizer(wheel: Path) -> Any:
    """That of SmolLM2."""
    return AutoTokenizer.from_pretrained(str(wheel.parent), gguf_file=wheel.name)


@pytest.fixture(scope="module")
def smollm(wheel: Path) -> Any:
    """SmolLM2 with a LoRA on all its layers, strong enough to change what it says."""
    model = AutoModelForCausalLM.from_pretrained(str(wheel.parent), gguf_file=wheel.name, dtype=torch.float32)
    return with_lora(model, strength=0.004)


def nudged(model: Any) -> Any:
    """The model as if all its weights had been trained."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn(values.shape, generator=generator) * 0.01)
    return model


def with_lora(model: Any, strength: float = 0.05, **overrides: Any) -> Any:
    """A LoRA whose both matrices are random: PEFT begins with zeros, which are any layout's."""
    options = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | overrides
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, values in adapted.named_parameters():
            if "lora_" in name:
                values.copy_(torch.randn(values.shape, generator=generator) * strength ** ("lora_B" in name))
    return adapted


def tiny(family: str = "llama", **changed: Any) -> Any:
    """A random model with a part of SmolLM2's vocabulary, whose attention and choices are far from even."""
    config = SMALL | {"vocab_size": TOKENS, "tie_word_embeddings": False} | changed
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config)).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.copy_(
                1 + torch.randn(values.shape) / 10 if "norm" in name else torch.randn(values.shape) / 5
            )
    return model


def write_blank(vocabulary: list[tuple[Any, ...]], path: Path, model: Any) -> Path:
    """A GGUF for a tiny model as another program would write it, but with zeros for weights."""
    config = model.config
    family = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, family)
    for name, value, kind, items in vocabulary:
        writer.add_key_value(name, value, kind, sub_type=items)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes = {"token_embd.weight": (config.vocab_size, hidden), "output_norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        own: dict[str, tuple[int, ...]] = {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
        own |= {"attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden)}
        own |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        own["attn_output"] = (hidden, queries)
        if family == "qwen3":
            own |= {"attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,)}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
        if family == "qwen2" or config.to_dict().get("attention_bias"):
            own = {"attn_q": (queries,), "attn_k": (keys,), "attn_v": (keys,)}
            own |= {"attn_output": (hidden,)} if family == "llama" else {}
            shapes |= {f"blk.{layer}.{name}.bias": shape for name, shape in own.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def completed(model: Path, adapter: Path | None = None) -> Completion:
    """What llama.cpp makes of the messages, with the ids and log-probabilities."""
    settings = EngineSettings(
        model=str(model), adapter=adapter and str(adapter), threads=1, window_tokens=256
    )

    async def run() -> Completion:
        engine = await llamacpp.open_llamacpp(settings)
        extra = {**(engine._engine.connection.extra or {}), "logit_bias": dict.fromkeys(BYTES, -100)}
        connection = replace(engine._engine.connection, record=True, extra=extra)
        engine._engine.connection, engine._engine.requests = connection, Requests(connection)
        try:
            return await engine.complete(MESSAGES, Sampling(10))
        finally:
            await engine.aclose()

    return asyncio.run(run())


def logits_of(model: Any, tokenizer: Any) -> Any:
    """The logits of the messages `(tokens, vocabulary)`."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([chat_ids(tokenizer, MESSAGES)])).logits[0].float()


def disagreement(completion: Completion, model: Any, tokenizer: Any) -> float:
    """The largest difference between the completion's log-probabilities and those that a model gives it."""
    prompt = chat_ids(tokenizer, MESSAGES)
    assert completion.usage.prompt_tokens == len(prompt)
    assert len(completion.completion_ids) == len(completion.logprobs) == completion.usage.completion_tokens
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion.completion_ids]])).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)
    ours = logprobs.gather(-1, torch.tensor(completion.completion_ids)[:, None])[:, 0]
    return float((ours - torch.tensor(completion.logprobs)).abs().max())


def agree(left: Any, right: Any) -> bool:
    # Logits here reach 34. Computed in float32 they are 7e-5 off those in float64, on each side, and merged
    # weights, which are rounded once more, give 2e-5: together 1e-4 was measured.
    return bool((left - right).abs().max() < 2e-4)


def refused(folder: Path, model: Any, tokenizer: Any, to: str, *more: Any) -> str:
    """The message of the error that an export must end in, leaving nothing behind."""
    with pytest.raises(SettingsError) as caught:
        export_policy(model, tokenizer, to, folder / "out", *more)
    assert not [name for name in os.listdir(folder) if "out" in name]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Hugging Face folders


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_merged_gives_what_the_adapter_gives(family: str, tmp_path: Path, tokenizer: Any) -> None:
    policy = with_lora(tiny(family))
    before = {name: values.clone() for name, values in policy.state_dict().items()}
    export_policy(policy, tokenizer, "merged", tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    wanted = logits_of(policy, tokenizer)
    assert agree(logits_of(merged, tokenizer), wanted)
    with policy.disable_adapter():
        assert (logits_of(policy, tokenizer) - wanted).abs().max() > 1
    after = policy.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], values) for name, values in before.items())
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "all weights"])
def test_merged_from_a_gguf(
    lora: bool, tmp_path: Path, wheel: Path, whole_tokenizer: Any, smollm: Any
) -> None:
    tokenizer = whole_tokenizer
    policy = smollm if lora else nudged(copy.deepcopy(smollm).unload())
    assert hasattr(policy.config, "quantization_config")  # which save_pretrained refuses
    export_policy(policy, tokenizer, "merged", tmp_path / "out")
    live = TransformersEngine(policy.get_base_model() if lora else policy, tokenizer)

    async def run() -> None:
        async with open_engine(EngineSettings(model=str(tmp_path / "out"), threads=1)) as engine:
            assert isinstance(engine, TransformersEngine)
            assert agree(logits_of(engine._network, engine._tokenizer), logits_of(policy, tokenizer))
            theirs, ours = [await candidate.complete(MESSAGES, Sampling(8)) for candidate in (engine, live)]
            assert theirs.prompt_ids == ours.prompt_ids
            assert theirs.text == ours.text
            assert engine._stop_ids() == live._stop_ids()

    asyncio.run(run())


def test_an_adapter_folder_on_its_base(tmp_path: Path, tokenizer: Any) -> None:
    base = tiny()
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    without = logits_of(base, tokenizer)
    policy = with_lora(base)
    trained = Trained({"chunk_tokens": 200}, {"update": 'say "{chunk}"\n'}, "overwrite")
    export_policy(policy, tokenizer, "adapter", tmp_path / "out", trained=trained)
    wanted = logits_of(policy, tokenizer)
    assert (wanted - without).abs().max() > 1
    settings = EngineSettings(model=str(tmp_path / "base"), adapter=str(tmp_path / "out"), threads=1)

    async def run() -> None:
        async with open_engine(settings) as engine:
            assert isinstance(engine, TransformersEngine)
            assert engine.model.name == name_with(str(tmp_path / "base"), read_adapter(tmp_path / "out"))
            assert engine.model.tokenizer == str(tmp_path / "base")
            assert engine.model.trained == trained
            assert agree(logits_of(engine._network, tokenizer), wanted)
            completion = await engine.complete(MESSAGES, Sampling(8))
            assert disagreement(completion, policy, tokenizer) < 1e-4

    asyncio.run(run())
    again = with_adapter(tiny(), tmp_path / "out", trainable=True)
    assert agree(logits_of(again, tokenizer), wanted)
    assert {name for name, values in again.named_parameters() if values.requires_grad} == {
        name for name, values in policy.named_parameters() if "lora_" in name
    }


@pytest.mark.parametrize("changed", [{"num_hidden_layers": 1}, {"num_hidden_layers": 3}, {"hidden_size": 32}])
def test_an_adapter_folder_on_another_base(changed: dict[str, int], tmp_path: Path, tokenizer: Any) -> None:
    policy = with_lora(tiny(), target_modules=["q_proj", "v_proj"])
    export_policy(policy, tokenizer, "adapter", tmp_path / "out")
    with pytest.raises(SettingsError, match="name the model that it was made for") as caught:
        with_adapter(tiny(**changed), tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changed", [{"num_hidden_layers": 1}, {"hidden_size": 32}])
def test_a_gguf_adapter_on_another_base(changed: dict[str, int], tmp_path: Path, tokenizer: Any) -> None:
    export_policy(with_lora(tiny()), tokenizer, "gguf-adapter", tmp_path / "out.gguf")
    with pytest.raises(SettingsError, match="name the model that it was made for"):
        with_adapter(tiny(**changed), tmp_path / "out.gguf")


def test_the_adapter_folder_must_be_one(tmp_path: Path) -> None:
    settings = EngineSettings(engine="transformers", model=str(tmp_path), adapter=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="there is no adapter"):
        asyncio.run(open_transformers(settings))


# GGUF

FAMILIES = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biased": {"attention_bias": True},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_gguf_of_each_family(name: str, tmp_path: Path, blank: Any, tokenizer: Any) -> None:
    policy = tiny(name.split(",")[0], **FAMILIES[name])
    base = blank(tmp_path / "base.gguf", policy)
    export_policy(policy, tokenizer, "gguf", tmp_path / "out.gguf", base, "F32")
    assert disagreement(completed(tmp_path / "out.gguf"), policy, tokenizer) < 0.02


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_adapter_of_each_family(name: str, tmp_path: Path, blank: Any, tokenizer: Any) -> None:
    plain = tiny(name.split(",")[0], **FAMILIES[name])
    base = blank(tmp_path / "blank.gguf", plain)
    export_policy(plain, tokenizer, "gguf", tmp_path / "base.gguf", base, "F32")
    policy = with_lora(plain)
    export_policy(policy, tokenizer, "gguf-adapter", tmp_path / "out.gguf")
    assert disagreement(completed(tmp_path / "base.gguf", tmp_path / "out.gguf"), policy, tokenizer) < ROUNDED
    assert disagreement(completed(tmp_path / "base.gguf"), policy, tokenizer) > 1
    again = with_adapter(tiny(name.split(",")[0], **FAMILIES[name]), tmp_path / "out.gguf")
    assert (logits_of(again, tokenizer) - logits_of(policy, tokenizer)).abs().mean() < ROUNDED / 5


@pytest.mark.parametrize("options", [
    {"use_rslora": True},
    {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 40}},
    {"target_modules": ["q_proj", "k_proj"]},
    {"target_modules": ["lm_head", "v_proj"]},
], ids=str)  # fmt: skip
def test_a_gguf_adapter_of_each_kind(
    options: dict[str, Any], tmp_path: Path, blank: Any, tokenizer: Any
) -> None:
    plain = tiny()
    export_policy(plain, tokenizer, "gguf", tmp_path / "base.gguf", blank(tmp_path / "b", plain), "F32")
    policy = with_lora(plain, **{"strength": 0.15} | options)
    export_policy(policy, tokenizer, "gguf-adapter", tmp_path / "out.gguf")
    assert disagreement(completed(tmp_path / "base.gguf", tmp_path / "out.gguf"), policy, tokenizer) < ROUNDED
    assert disagreement(completed(tmp_path / "base.gguf"), policy, tokenizer) > 0.3
    again = with_adapter(tiny(), tmp_path / "out.gguf", trainable=True)
    assert (logits_of(again, tokenizer) - logits_of(policy, tokenizer)).abs().mean() < ROUNDED / 5
    export_policy(again, tokenizer, "gguf-adapter", tmp_path / "again.gguf")
    assert (
        disagreement(completed(tmp_path / "base.gguf", tmp_path / "again.gguf"), policy, tokenizer) < ROUNDED
    )


# llama.cpp rounds what it multiplies with Q8_0 weights: the plain SmolLM2 is off by 0.2 as well.
@pytest.mark.parametrize(("quantisation", "tolerance"), [("F16", 0.03), ("Q8_0", 0.6)])
def test_a_whole_gguf_of_a_real_model(
    quantisation: str, tolerance: float, tmp_path: Path, wheel: Path, whole_tokenizer: Any, smollm: Any
) -> None:
    out = tmp_path / "out.gguf"
    export_policy(smollm, whole_tokenizer, "gguf", out, wheel, quantisation)
    assert disagreement(completed(out), smollm, whole_tokenizer) < tolerance
    before, after = gguf.GGUFReader(wheel).fields, gguf.GGUFReader(out).fields
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name].contents() != after[name].contents()}
    assert changed == {"general.file_type"}
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_a_gguf_adapter_of_a_real_model(
    tmp_path: Path, wheel: Path, whole_tokenizer: Any, smollm: Any
) -> None:
    adapter, exact = tmp_path / "out.gguf", tmp_path / "exact.gguf"
    trained = Trained({"chunk_tokens": 200}, {"update": "read {chunk}"}, "overwrite")
    export_policy(smollm, whole_tokenizer, "gguf-adapter", adapter, trained=trained)
    assert read_trained(adapter) == trained
    tensors = gguf.GGUFReader(wheel).tensors
    weights = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors}
    requantise(wheel, exact, "F16", weights.get)
    completion = completed(exact, adapter)
    assert disagreement(completion, smollm, whole_tokenizer) < 0.1
    live = TransformersEngine(smollm.get_base_model(), whole_tokenizer)
    assert completion.text == asyncio.run(live.complete(MESSAGES, Sampling(10))).text
    assert disagreement(completed(wheel, adapter), smollm, whole_tokenizer) < 0.6
    assert disagreement(completed(wheel), smollm, whole_tokenizer) > 2


# What cannot be


def test_what_is_no_form(tmp_path: Path, tokenizer: Any) -> None:
    plain = tiny()
    for to in ("adapter", "gguf-adapter"):
        assert "the policy has no LoRA" in refused(tmp_path, plain, tokenizer, to)
    assert "only a policy that started from a GGUF" in refused(tmp_path, plain, tokenizer, "gguf")


def test_families_without_a_layout(tmp_path: Path, wheel: Path, tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    plain = AutoModelForCausalLM.from_config(config)
    for model, to in ((plain, "gguf"), (with_lora(plain), "gguf-adapter")):
        message = refused(tmp_path, model, tokenizer, to, wheel)
        assert "the policy is a gpt2, but only llama, mistral, qwen2, qwen3 can be written as GGUF" in message


def test_a_base_of_another_model(tmp_path: Path, blank: Any, tokenizer: Any) -> None:
    shallow = blank(tmp_path / "shallow.gguf", tiny(num_hidden_layers=1))
    assert "lacks blk.1." in refused(tmp_path, tiny(), tokenizer, "gguf", shallow)


@pytest.mark.parametrize("options", [
    {"use_dora": True},
    {"bias": "lora_only"},
    {"modules_to_save": ["lm_head"]},
    {"target_modules": ["embed_tokens", "q_proj"]},
], ids=str)  # fmt: skip
def test_adapters_that_are_more_than_matrices(
    options: dict[str, Any], tmp_path: Path, tokenizer: Any
) -> None:
    policy = with_lora(tiny(attention_bias=True), **options)
    assert "is not a plain LoRA" in refused(tmp_path, policy, tokenizer, "gguf-adapter")


def test_a_lora_on_a_tied_output(tmp_path: Path, tokenizer: Any) -> None:
    policy = with_lora(tiny(tie_word_embeddings=True), target_modules=["lm_head"])
    assert "tied to the embeddings" in refused(tmp_path, policy, tokenizer, "gguf-adapter")


def test_what_is_there_stays(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "out").write_text("dear")
    with pytest.raises(SettingsError, match="exists already"):
        export_policy(tiny(), tokenizer, "merged", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "dear"


def test_settings_beside_an_adapter_stay(tmp_path: Path, smollm: Any, whole_tokenizer: Any) -> None:
    (tmp_path / "out.toml").write_text("steps = 1")
    with pytest.raises(SettingsError, match=r"out\.toml exists already"):
        export_policy(smollm, whole_tokenizer, "gguf-adapter", tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["out.toml"]


def test_a_place_that_cannot_be_written(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        export_policy(tiny(), tokenizer, "merged", tmp_path / "file" / "out")
