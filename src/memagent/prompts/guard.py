"""Text as data inside a prompt: what could pass for the prompt's structure gets a mark, and loses it again.

A mark is a `·` behind the first character of a forged delimiter or turn token: `<·/memory>`,
`<·|im_start|>`. No tokenizer then reads it as a token, and no reader as a delimiter. Marks are added one
at a time, also behind marks that stand there already, so that taking one away gives back the very text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

MARK = "·"

_MARKS = f"{MARK}*+"
_UNSENDABLE = re.compile("[\0\ud800-\udfff]")
"""Surrogates have no UTF-8, and some servers end a prompt at a NUL."""

# Slashes and right brackets, each with the other shapes that a model takes for the same.
_RIGHT, _SLASH = "[>＞﹥]", r"/\\／⁄∕"
# Characters without a width, which hide in a word.
_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
)
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_BLANK = re.compile(rf"[\s{_HIDDEN}]")

_ROLE = "(?:[Ss]ystem|SYSTEM|[Uu]ser|USER|[Aa]ssistant|ASSISTANT|[Hh]uman|HUMAN|[Bb]ot|[Tt]ool)"

# `<s>` and `</s>` are HTML's strike-through as well: they open or close a turn only before one.
_BEFORE_A_TURN = (
    rf"\s*+(?:<{_MARKS}s>\s*+)?+"
    rf"(?:\[{_MARKS}/?INST\]|<{_MARKS}<SYS>|<{_MARKS}\|\w|{_ROLE}[ \t]*+(?:[:\n]|\Z))"
)

_AFTER_ANGLE = (
    r"\|[A-Za-z][\w.:▁-]{2,63}\|>",  # ChatML, Llama 3, Phi, Command-R, Granite, gpt-oss, Kimi, GLM, Hunyuan, Yi
    r"/?｜[^\s<>｜]{1,64}｜",  # DeepSeek, Hunyuan
    r"\|(?:turn|channel|think|tool|tool_call|tool_response)>",  # Gemma 4
    r"(?:turn|channel|tool|tool_call|tool_response)\|>",
    r"(?:start|end)_of_turn>",  # Gemma 2 and 3
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


@dataclass(frozen=True, slots=True)
class Guard:
    """Marks what could pass for a prompt's structure, and takes the marks away again."""

    structure: re.Pattern[str]

    def neutralise(self, text: str) -> str:
        """`text` with a mark in each place that could pass for structure; the rest stays as it is.

        What cannot be sent, lone surrogates and NUL, becomes U+FFFD.
        """
        return self.structure.sub(
            lambda place: place.group() + MARK if _counts(place, text) else place.group(),
            text := _UNSENDABLE.sub("\ufffd", text),
        )

    def restore(self, text: str) -> str:
        """The text as it was before `neutralise`, also inside a reply that quotes it."""
        if MARK not in text:
            return text
        return self.structure.sub(
            lambda place: place.group().removesuffix(MARK) if _counts(place, text) else place.group(), text
        )


@lru_cache(maxsize=64)
def guard_of(names: frozenset[str], mark: str, turns: bool) -> Guard:
    """The guard of a prompt that uses tags of these names.

    A name that holds the `mark` stands in no other text, so each occurrence counts. Of other names only
    what closes a tag counts, and what opens one at the beginning of a line: `#include <memory>` is code.
    With `turns` the turn tokens of chat templates count, too.
    """
    marked = frozenset(name for name in names if mark and mark in name)
    blank, blank_or_slash = rf"[\s{_HIDDEN}]*+", rf"[\s{_HIDDEN}{_SLASH}]*+"
    ours, unknowable = _any_spelling(names), _any_spelling(marked)
    tags = (
        rf"{blank}[{_SLASH}]{blank_or_slash}{ours}(?![\w-])",
        rf"{blank}{unknowable}(?![\w-])",
        rf"(?P<opening>{blank}{_any_spelling(names - marked)}(?:{blank_or_slash}|\s[^<>＜＞﹤﹥]*+){_RIGHT})",
    )
    own = f"(?i:{'|'.join(tags)})"
    wide = own.replace("?P<opening>", "?P<wide>"), own.replace("?P<opening>", "?P<small>")
    never = ("(?!)",)
    rests = {
        "<": (*(_AFTER_ANGLE if turns else ()), own),
        r"\[": _AFTER_SQUARE if turns else never,
        r"\]": _AFTER_RIGHT_SQUARE if turns else never,
        "＜": wide[:1],
        "﹤": wide[1:],
    }
    return Guard(re.compile("|".join(f"{head}{_MARKS}(?={'|'.join(rest)})" for head, rest in rests.items())))


def _counts(place: re.Match[str], text: str) -> bool:
    """Whether a match is structure: an opening tag is one only where nothing precedes it on its line."""
    if place.lastgroup is None:
        return True
    at = place.start()
    while at and text[at - 1] not in _LINE_ENDS and _BLANK.match(text[at - 1]):
        at -= 1
    return at == 0 or text[at - 1] in _LINE_ENDS


def _any_spelling(names: Iterable[str]) -> str:
    """A pattern for the names, also in full-width letters or with hidden characters between."""
    between = f"[{_HIDDEN}]*+"
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return f"(?:{'|'.join(between.join(map(_letter, name)) for name in longest_first) or '(?!)'})"


def _letter(character: str) -> str:
    wide = chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else ""
    return f"[{re.escape(character)}{wide}]"
