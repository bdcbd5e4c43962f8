"""Write presets/small/policy: the configuration and tokenizer of a model of about a million weights.

    python presets/small/make_policy.py

The tokenizer is trained on the shipped essays, the words that needles are made of, and the tasks' own
sentences. Every digit is a token, so a number can be copied but not be known by heart.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config

from memagent.prompts import load_prompts
from memagent.tasks.corpora import SAMPLE, Corpora
from memagent.tasks.words import compound
from memagent.training.data import load_function

HERE = Path(__file__).parent
FOLDER = HERE / "policy"
TOKENS = 1280
END = "<|end|>"


def texts() -> Iterator[str]:
    """What the tokenizer is trained on."""
    source = random.Random(0)
    yield " ".join(Corpora((("essays", SAMPLE / "essays.txt.gz"),)).essays().words)  # whatever was fetched
    yield " ".join(f"{compound(source)}" for _ in range(4000))
    names, notes_of, kinds = (
        load_function(f"{HERE / 'data.py'}:{name}") for name in ("names", "notes_of", "kinds")
    )
    yield from [" " + " ".join(names())] * 200
    for make in [*kinds().values()] * 300:
        problem, facts = make(source)
        notes = "\n".join(notes_of("\n".join(facts)))
        yield "\n".join((problem, *facts, f"<think>{notes}</think>", notes))
    for name in ("gated", "overwrite"):
        prompts = load_prompts(HERE / f"{name}.toml")
        for text in (prompts.update, prompts.answer, prompts.empty_memory):
            yield from [text] * 200
    yield "\n".join(["UNCHANGED", "The memory does not hold the answer."] * 200)


def main() -> None:
    """Write the folder."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    pieces.train_from_iterator(texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token=END)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(FOLDER)
    config = Qwen2Config(
        vocab_size=pieces.get_vocab_size(), hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, initializer_range=0.05,
        bos_token_id=None, eos_token_id=0, tie_word_embeddings=True, architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(FOLDER)
    print(json.dumps({"folder": str(FOLDER), "vocabulary": pieces.get_vocab_size()}))


if __name__ == "__main__":
    main()
