"""Export a run's policy as a PEFT adapter, merged weights, a whole GGUF model or a GGUF adapter.

Each is written to a temporary path and moved to its own once complete. Not supported: GGUF files with
k-quants (use llama.cpp's `llama-quantize`), and GGUF files of models that did not start from one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from memagent.engines.adapters import read_trained, trained_file, write_trained
from memagent.engines.gguf.files import requantise
from memagent.engines.torch.lora import layout_of
from memagent.errors import SettingsError, reason
from memagent.reading.budgets import given_budgets
from memagent.reading.workflows import choose_workflow
from memagent.storage import write_in_place
from memagent.strict import build
from memagent.training.optimization.policy import Policy, load_policy
from memagent.training.run import load_checkpoint, newest_checkpoint
from memagent.training.settings import TrainingSettings
from memagent.types import Trained


def export_policy(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    to: Literal["adapter", "merged", "gguf", "gguf-adapter"],
    out: Path,
    base_gguf: Path | None = None,
    quantisation: Literal["F32", "F16", "Q8_0"] = "Q8_0",
    trained: Trained | None = None,
) -> None:
    """Write a policy to `out`, which must not exist yet. The policy itself is not changed.

    Args:
        model: a transformers model, or a `PeftModel` with a LoRA on one.
        tokenizer: the model's.
        to: the form; both forms of GGUF are for Llama, Mistral, Qwen2 and Qwen3 models.
        out: the file or folder to write.
        base_gguf: for "gguf", the file that the policy started from, or another of the same model:
            everything but the weights, above all the tokenizer, comes from there.
        quantisation: for "gguf".
        trained: for adapters, what the policy was trained to read with. Reads with the adapter take it from
            a TOML file: `memagent.toml` in a PEFT folder, or one beside a GGUF adapter.

    Raises `SettingsError` if the policy has no such form, or if `out` cannot be written.
    """
    trained = trained or Trained()
    if "adapter" in to and not hasattr(model, "get_base_model"):
        raise SettingsError(
            "the policy has no LoRA because all its weights were trained: export it as merged or gguf"
        )
    for path in (out, trained_file(out)) if to == "gguf-adapter" else (out,):
        if path.exists():
            raise SettingsError(f"{path} exists already: delete it, or name another place")
    try:
        with write_in_place(out) as path:
            match to:
                case "adapter":
                    # Otherwise PEFT asks the hub about the base model's embeddings.
                    model.save_pretrained(path, save_embedding_layers=False)
                    write_trained(path, trained)
                case "merged":
                    _strip_quantisation(_merge_lora(model)).save_pretrained(path)
                    tokenizer.save_pretrained(path)
                case "gguf":
                    _write_gguf(_merge_lora(model), path, base_gguf, quantisation)
                case "gguf-adapter":
                    _write_gguf_adapter(model, path)
        if to == "gguf-adapter":
            write_trained(out, trained)
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"{out} cannot be written: {reason(error)}") from error


def _merge_lora(model: Any) -> PreTrainedModel:
    """A copy of the transformers model with the LoRA merged into it; without a LoRA, the model itself."""
    has_lora = hasattr(model, "get_base_model")
    merged: PreTrainedModel = copy.deepcopy(model).merge_and_unload() if has_lora else model
    return merged


def _strip_quantisation(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that is not marked as quantised.

    A model loaded from a GGUF has plain weights, but its mark as quantised prevents saving it.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):  # allocates no weights
        plain: PreTrainedModel = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _write_gguf(model: PreTrainedModel, path: Path, base_gguf: Path | None, quantisation: str) -> None:
    if base_gguf is None:
        raise SettingsError(
            "only a policy that started from a GGUF file can be exported as one: export this one as "
            "merged, and convert that with llama.cpp's convert_hf_to_gguf.py"
        )
    layout = layout_of(model.config)
    weights = {layout.name(weight): (weight, values) for weight, values in model.state_dict().items()}
    written: set[str] = set()

    def values_of(name: str) -> NDArray[np.float32] | None:
        written.add(name)
        return layout.arrange(*weights[name]) if name in weights else None

    requantise(base_gguf, path, quantisation, values_of)
    tied = {"output.weight"} if model.config.tie_word_embeddings else set()
    if missing := weights.keys() - written - tied:
        raise SettingsError(f"{base_gguf} lacks {min(missing)}: name the GGUF that the policy started from")


def _write_gguf_adapter(model: Any, path: Path) -> None:
    layout = layout_of(model.config)
    writer = gguf.GGUFWriter(path, layout.architecture)
    try:
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        # llama.cpp multiplies by alpha / rank. The scale may differ between layers, so b holds all of it.
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 1.0)
        for weight, a, b in _iterate_lora(model):
            name = layout.name(weight)
            if name == "output.weight" and model.config.tie_word_embeddings:
                raise SettingsError(
                    "a LoRA on an output that is tied to the embeddings has no GGUF form: use merged"
                )
            writer.add_tensor(f"{name}.lora_a", a.detach().half().cpu().numpy())
            writer.add_tensor(f"{name}.lora_b", layout.arrange(weight, b).astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _iterate_lora(model: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The LoRA: each weight's name in the plain model, a `(rank, in)`, and b `(out, rank)` times alpha.

    Raises `SettingsError` for an adapter that is more than pairs of matrices.
    """
    from peft import get_peft_model_state_dict

    adapter = model.active_adapter
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    for key, a in state.items():
        path, _, part = key.rpartition(".lora_")
        layer = model.get_submodule(path) if path else None
        if part not in ("A.weight", "B.weight") or layer is None or layer.lora_variant:
            raise SettingsError(
                f"the adapter is not a plain LoRA ({key}) and has no GGUF form: export it as merged"
            )
        if part == "A.weight":
            scale = layer.scaling[adapter] * a.shape[0]
            b = state[f"{path}.lora_B.weight"].float() * scale
            yield f"{path.removeprefix('base_model.model.')}.weight", a, b


def load_trained_policy(folder: Path) -> tuple[Policy, TrainingSettings, int]:
    """The policy of a run's newest checkpoint, the run's settings, and the steps it has taken.

    Raises `SettingsError` if the run has no checkpoint.
    """
    path = newest_checkpoint(folder)
    if path is None:
        raise SettingsError(f"{folder} has no checkpoint: is it a folder of memagent train?")
    state = load_checkpoint(path)
    settings = build(TrainingSettings, state["settings"], str(path))
    # Merging a LoRA into bfloat16 weights would round part of it away.
    whole = settings.policy.replace(dtype="float32")
    if not (whole.lora_rank or whole.adapter):  # the checkpoint has all weights
        whole = whole.replace(prepare=None)
    policy = load_policy(whole, settings.rollout.temperature, settings.seed, device="cpu")
    policy.load_weights(state["weights"])
    return policy, settings, state["position"]["step"]


def describe_training(settings: TrainingSettings) -> Trained:
    """What a policy was trained to read with, to be stored with its adapter."""
    before = read_trained(settings.policy.adapter)
    name, workflow = choose_workflow(settings.read, before)
    names = ("update", "answer", "system", "empty_memory", "replies")
    # A policy trained on templates replies as they ask, so no reply needs a follow-up question.
    prompts = workflow.prompts
    templates = {name: getattr(prompts, name) for name in names} | dict(prompts.own) | {"asks": False}
    return Trained({**before.budgets, **given_budgets(settings.read)}, templates, name)
