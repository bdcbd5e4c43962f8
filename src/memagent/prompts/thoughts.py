"""The thought that a reasoning model puts before its reply, where the server leaves it there."""

from __future__ import annotations

import re

THOUGHTS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # Gemini, EXAONE
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel>thought", "<channel|>"),  # Gemma
    ("<|channel|>analysis", "<|channel|>final<|message|>"),  # gpt-oss
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)
"""How a thought begins and ends. In a document, both are dotted as turn tokens are: see `Guard`."""

_BLOCK = "|".join(
    rf"{opening}(?! [^\n]{{0,400}}{closing} \S)(?s:.*?)(?:{closing}|\Z)"
    for opening, closing in (map(re.escape, tags) for tags in THOUGHTS)
)
# Some chat templates open the block themselves: the reply then has only its end, right behind the thought,
# or alone on a line with a blank line after it. Elsewhere, with spaces around it, the tag is text.
_THOUGHT = re.compile(
    rf"\A(?:\s*+(?:{_BLOCK}))++"
    r"|\A(?!\W*MEMORY\b)(?:(?!<think>)(?s:.))*?"
    r"(?:(?<=[\w.!?…。])</think>|(?<![^\n])[ \t]*</think>[ \t]*\n[ \t]*\n)"
)


def thinking_advice(thinking: bool | None) -> str:
    """Advice on a thought that used up the tokens of a reply; `thinking` is whether it had been asked for."""
    if thinking:
        return "raise `thinking_tokens`, or set `thinking` to off"
    return "set `thinking` to on, which gives thoughts room of their own, or take a `model` without thoughts"


def without_thought(reply: str) -> str:
    """The reply without the thought that it begins with; empty if the thought never ends."""
    return _THOUGHT.sub("", reply, count=1).strip()
