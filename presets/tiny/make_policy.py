"""Write presets/tiny/policy: the configuration and tokenizer of a two-layer model over single characters.

python presets/tiny/make_policy.py
"""

import json
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "policy"
CHARACTERS = [*string.ascii_lowercase, *"012345", *"?->="]
END, UNKNOWN = "<end>", "<unknown>"


def main() -> None:
    """Write the folder."""
    vocabulary = {token: number for number, token in enumerate([END, UNKNOWN, *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token=END, unk_token=UNKNOWN)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(FOLDER)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=vocabulary[END], tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(FOLDER)
    print(json.dumps({"folder": str(FOLDER), "vocabulary": len(vocabulary)}))


if __name__ == "__main__":
    main()
