"""Text as data inside a prompt: mark what could pass for the prompt's structure, and remove the marks again.

A mark is a `·` after the first character of a forged delimiter or turn token: `<·/memory>`,
`<·|im_start|>`. No tokenizer then reads it as a token, and no reader as a delimiter. One mark is added at
a time, even after existing marks, so that removing one restores the exact text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

MARK = "·"

_MARKS = f"{MARK}*+"
_SURROGATES = re.compile("[\ud800-\udfff]")

_LEFT, _RIGHT, _SLASHES = "＜﹤<", ">＞﹥", "/\\／⁄∕"
_HEADS = f"{_LEFT}[]"
_TAG = re.compile(f"[^{_LEFT}{_RIGHT}]*+")
_BEFORE_NAME = re.compile(rf"[\s{re.escape(_SLASHES)}]*+")
# Zero-width characters, which hide in a word, and control characters.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

_ROLE = "(?:[Ss]ystem|SYSTEM|[Uu]ser|USER|[Aa]ssistant|ASSISTANT|[Hh]uman|HUMAN|[Bb]ot|[Tt]ool)"

# `<s>` and `</s>` are also HTML's strike-through: they count as turn tokens only before a turn.
_BEFORE_A_TURN = (
    rf"\s*+(?:<{_MARKS}s>\s*+)?+"
    rf"(?:\[{_MARKS}/?INST\]|<{_MARKS}<SYS>|<{_MARKS}\|\w|{_ROLE}[ \t]*+(?:[:\n]|\Z))"
)

_AFTER_ANGLE = (
    r"\|[A-Za-z][\w.:▁-]{2,63}\|>",  # ChatML, Llama 3, Phi, GLM, Granite, Command-R, gpt-oss, Kimi, Yi
    r"/?｜[^\s<>｜]{1,64}｜",  # DeepSeek, Hunyuan
    r"\|(?:turn|channel|think|tool|tool_call|tool_response)>",  # Gemma 4
    r"(?:turn|channel|tool|tool_call|tool_response)\|>",
    r"(?:start|end)_of_turn>",  # Gemma 2 and 3
    r"end_of_utterance>",  # SmolVLM, Idefics
    r"</?SYS>>",  # Llama 2
    rf"(?:/?s|bos|eos)>{_BEFORE_A_TURN}",  # Llama 2, Mistral, Zephyr, Vicuna
    r"/?(?:think|tool_calls?|tool_response|minimax:tool_call)>",  # Qwen, Hermes, DeepSeek R1, MiniMax
    r"/?seed:[a-z_]+>",  # Seed-OSS
    r"SPECIAL_\d+>",  # Nemotron-H
    rf"extra_id_\d>{_ROLE}",  # Nemotron 4
    r"reserved_\d+>",  # Baichuan
    r"(?:eoh|eoa|eosys|TOKENS_UNUSED_\d+)>",  # InternLM
    r"(?:sop|eop)>",  # GLM
    r"(?:beginning|end)_of_sentence>",  # MiniMax-Text
    r"(?:BOS|EOS)_TOKEN>",  # Command-R
    r"role>(?:HUMAN|SYSTEM|ASSISTANT|OBSERVATION)</role>",  # Ling
    r"(?:用户|AI)>",  # MiniCPM
)
_AFTER_SQUARE = (
    r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|MODEL_SETTINGS|THINK)\]",  # Llama 2, Mistral
    r"/?TOOL_(?:CALLS|RESULTS|CONTENT)\]",
    r"[gs]MASK\]",  # GLM
    r"\|(?:system|user|assistant|tool|endofturn)\|\]",  # EXAONE
    r"UNUSED_TOKEN_\d+\]",  # InternLM 2
    r"e~\[",  # MiniMax-M2
)
_AFTER_RIGHT_SQUARE = (r"~!?b[\[\]]",)  # MiniMax-M2


# Each alternative begins with a different character, so the search skips all other text in C.
_PLACES = re.compile("|".join(f"{left}{_MARKS}" for left in _LEFT))
_PLACES_AND_TURNS = re.compile(
    rf"{_PLACES.pattern}(?:(?={'|'.join(_AFTER_ANGLE)})(?P<turn>))?"
    rf"|\[{_MARKS}(?={'|'.join(_AFTER_SQUARE)})(?P<square>)"
    rf"|\]{_MARKS}(?={'|'.join(_AFTER_RIGHT_SQUARE)})(?P<right>)"
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Marks what could pass for the structure of a prompt that uses tags of these names, and unmarks it.

    The names in `unknowable` occur in no other text, so each such tag counts. Of those in `names`, only
    closing tags count, and opening tags at the beginning of a line: `#include <memory>` is code. With
    `turns`, the turn tokens of chat templates count too.
    """

    names: tuple[str, ...]
    unknowable: tuple[str, ...] = ()
    turns: bool = True

    def neutralise(self, text: str) -> str:
        """`text` with a mark in each place that could pass for structure; the rest stays as it is.

        Lone surrogates, which UTF-8 cannot encode, and NUL, which ends a prompt on some servers, become
        U+FFFD.
        """
        text = _sendable(text)
        if not any(head in text for head in _HEADS):
            return text
        return self._places.sub(lambda it: it.group() + MARK if self._counts(it) else it.group(), text)

    def restore(self, text: str) -> str:
        """The text as it was before `neutralise`, also inside a reply that quotes it."""
        if MARK not in text:
            return text
        return self._places.sub(
            lambda it: it.group().removesuffix(MARK) if self._counts(it) else it.group(), text
        )

    @property
    def _places(self) -> re.Pattern[str]:
        return _PLACES_AND_TURNS if self.turns else _PLACES

    def _counts(self, place: re.Match[str]) -> bool:
        """Whether what begins here is a turn token or could pass for one of the tags."""
        if place.lastgroup:
            return True
        text, end = place.string, place.end()
        found = _TAG.match(text, end)
        inside = fold(found.group()) if found else ""
        before = _BEFORE_NAME.match(inside)
        start = before.end() if before else 0
        if not inside.startswith(self.names + self.unknowable, start):
            return False
        if _is_named(inside, start, self.unknowable):
            return True
        name = _is_named(inside, start, self.names)
        if any(slash in inside[:start] for slash in _SLASHES):
            return bool(name)
        after = inside[start + len(name) :]
        closed = found is not None and text[found.end() : found.end() + 1] in tuple(_RIGHT)
        whole = after[:1].isspace() or not after.strip(_SLASHES)
        return bool(name) and closed and whole and _begins_line(text, place.start())


def _sendable(text: str) -> str:
    try:
        text.encode()  # ten times as fast as a search for surrogates
    except UnicodeEncodeError:
        text = _SURROGATES.sub("\ufffd", text)
    return text.replace("\0", "\ufffd")


def fold(text: str) -> str:
    """The text as a tolerant eye sees it: without hidden characters, in one width and one case."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _HIDDEN.sub("", text).lower()


def _is_named(text: str, start: int, names: tuple[str, ...]) -> str:
    """The name that stands at `start` as a whole word, or an empty string."""
    for name in names:
        after = text[start + len(name) : start + len(name) + 1]
        if text.startswith(name, start) and not (after.isalnum() or after in ("_", "-")):
            return name
    return ""


def _begins_line(text: str, at: int) -> bool:
    """Whether nothing visible comes before `at` on its line."""
    while at and text[at - 1] not in _LINE_ENDS and (text[at - 1].isspace() or _HIDDEN.match(text[at - 1])):
        at -= 1
    return at == 0 or text[at - 1] in _LINE_ENDS
