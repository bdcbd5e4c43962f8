"""Put a LoRA on a transformers model, from a PEFT folder or from a GGUF adapter.

Training keeps it apart from the weights, since rounding to bfloat16 would lose its small steps. The engine
merges it: reading in bfloat16 takes 0.6 of the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from memagent.errors import SettingsError, extra_hint


def with_adapter(model: Any, adapter: Path, trainable: bool = False) -> Any:
    """A `PeftModel`: a transformers model with a LoRA in its layers.

    Args:
        model: the transformers model that the LoRA was made for.
        adapter: a PEFT folder, or a GGUF adapter of a Llama, Mistral, Qwen2 or Qwen3 model.
        trainable: whether the LoRA needs gradients.

    Raises `SettingsError` if peft is missing, or the adapter does not fit the model.
    """
    try:
        import peft
    except ImportError as error:
        raise SettingsError(f"{error}: an adapter needs peft, {extra_hint('train')}") from error
    try:
        adapted, kept = (_from_folder if adapter.is_dir() else _from_gguf)(model, adapter, trainable)
        # PEFT ignores weights that the model has no place for, and only warns of missing ones.
        used = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        if odd := {name for name in kept.keys() ^ used.keys() if ".lora_" in name}:
            raise ValueError(f"{len(odd)} of its weights are for other layers, such as {min(odd)}")
    except Exception as error:  # a bad adapter can raise the errors of several libraries
        raise SettingsError(
            f"the adapter {adapter} cannot be used with {model.name_or_path} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): name the model that it was made for"
        ) from error
    return adapted


def _from_folder(model: Any, folder: Path, trainable: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    from peft import PeftModel
    from peft.utils import load_peft_weights

    adapted = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
    return adapted, load_peft_weights(str(folder), device="cpu")


def _from_gguf(model: Any, file: Path, trainable: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    """Fold llama.cpp's scale, alpha / rank, into b, so that training continues with a scale of 1."""
    from gguf import GGUFReader, Keys
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    from memagent.engines.torch.gguf_layout import layout_of

    reader, layout = GGUFReader(file), layout_of(model.config)
    alpha = reader.fields[Keys.Adapter.LORA_ALPHA].contents()
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    state: dict[str, torch.Tensor] = {}
    ranks: dict[str, int] = {}
    for path, layer in model.named_modules():
        name = layout.name(f"{path}.weight") if isinstance(layer, torch.nn.Linear) else ""
        if f"{name}.lora_a" not in tensors:
            continue
        a, b = tensors.pop(f"{name}.lora_a"), tensors.pop(f"{name}.lora_b")
        ranks[path] = len(a)
        b = layout.restore(f"{path}.weight", b) * alpha / len(a)
        state[f"base_model.model.{path}.lora_A.weight"] = torch.tensor(a, dtype=torch.float32)
        state[f"base_model.model.{path}.lora_B.weight"] = b
    if tensors:
        raise ValueError(f"it is for other layers, such as {min(tensors)}")
    most = max(ranks.values())
    others = {path: rank for path, rank in ranks.items() if rank != most}
    config = LoraConfig(
        r=most,
        lora_alpha=most,
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=list(ranks),
        task_type="CAUSAL_LM",
        inference_mode=not trainable,
    )
    adapted = get_peft_model(model, config)
    set_peft_model_state_dict(adapted, state)
    return adapted, state
