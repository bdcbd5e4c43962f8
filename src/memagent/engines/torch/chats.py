"""Token ids of texts and of chats, as a Hugging Face tokenizer makes them.

Fast tokenizers are asked directly: what transformers puts around a call costs more than a short prompt does,
and changes the tokenizer's state, which other threads may not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from memagent.types import Message, TokenCounter

_REMEMBERED = 8  # tokenizers


def token_counter(tokenizer: PreTrainedTokenizerBase) -> TokenCounter:
    """What counts the tokens of a text, without any that the tokenizer puts around it."""
    encode = _encoder(tokenizer)
    return lambda text: len(encode(text))


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The token ids of a text, without any that the tokenizer puts around it."""
    return _encoder(tokenizer)(text)


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Iterable[Message]) -> list[int]:
    """The token ids of a chat up to where the assistant's turn begins.

    A special token that is spelled out within a message is text: its spelling is cut in two, and the pieces
    are no special token. Raises jinja2's `TemplateError`.
    """
    chat = [{"role": message.role, "content": message.content} for message in messages]
    text = "".join(message["content"] for message in chat)
    special, cut = _specials(tokenizer), ""
    if special and special.search(text):
        cut = next(sign for sign in map(chr, range(0xE000, 0xF900)) if sign not in text)
        for message in chat:
            message["content"] = special.sub(
                lambda it: it.group()[0] + cut + it.group()[1:], message["content"]
            )
    whole = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    encode = _encoder(tokenizer)
    return [number for piece in (whole.split(cut) if cut else [whole]) for number in encode(piece)]


@lru_cache(maxsize=_REMEMBERED)
def _specials(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """What finds the special tokens in a text; None where there are none."""
    names = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names))) if names else None


@lru_cache(maxsize=_REMEMBERED)
def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    """What makes a text's ids."""
    if not getattr(tokenizer, "is_fast", False):
        return lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return lambda text: list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
