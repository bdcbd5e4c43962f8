"""Text as data inside a prompt: dot what could pass for the prompt's structure, and remove the dots again.

The dot is a `·` after the first character of a forged delimiter or turn token: `<·/memory>`, `<·|im_start|>`.
No tokenizer then reads it as a token, and no reader as a delimiter. The mark of the prompt's own delimiters
gets one too, wherever it stands: only a model that repeats its prompt can write it. One dot is added at a
time, even after existing dots, so that removing one restores the exact text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from memagent.prompts.thoughts import THOUGHTS
from memagent.text import sendable

DOT = "·"
MARK_LETTERS = 14
"""The length of a mark: random letters a to z, so no text has them by chance."""

_DOTS = f"{DOT}*+"

_LEFT, _RIGHT, _SLASHES = "＜﹤<", ">＞﹥", "/\\／⁄∕"
_TRIANGLE = "◁"
_HEADS = f"{_LEFT}[]{_TRIANGLE}"
_TAG = re.compile(f"[^{_LEFT}{_RIGHT}]*+")
_BEFORE_NAME = re.compile(rf"[\s{re.escape(_SLASHES)}]*+")
# Zero-width characters, which hide in a word, and control characters.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)
# Letters that look like those of marks and do not decompose into them, in lower case.
_LOOKALIKES = str.maketrans("авсԁеɡһıіјкӏмнорԛгѕтѵѡхуαβγεικνορτυχω", "abcdeghiijklmnopqrstvwxyabyeikvoptuxw")
_NO_LETTERS = bytes(set(range(256)) - set(range(ord("a"), ord("z") + 1)))
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

_ROLE = "(?:[Ss]ystem|SYSTEM|[Uu]ser|USER|[Aa]ssistant|ASSISTANT|[Hh]uman|HUMAN|[Bb]ot|[Tt]ool)"

# `<s>` and `</s>` are also HTML's strike-through: they count as turn tokens only before a turn.
_BEFORE_A_TURN = (
    rf"\s*+(?:<{_DOTS}s>\s*+)?+"
    rf"(?:\[{_DOTS}/?INST\]|<{_DOTS}<SYS>|<{_DOTS}\|\w|{_ROLE}[ \t]*+(?:[:\n]|\Z))"
)


def _after(head: str) -> tuple[str, ...]:
    """What follows this character in the tags around thoughts that begin with it."""
    return tuple(re.escape(tag[1:]) for tags in THOUGHTS for tag in tags if tag.startswith(head))


_AFTER_ANGLE = (
    *_after("<"),
    r"\|/?[A-Za-z][\w.:▁-]{2,63}\|>",  # ChatML, Llama 3, Phi, GLM, Granite, Command-R, gpt-oss, Kimi, Yi
    r"/?｜[^\s<>｜]{1,64}｜",  # DeepSeek, Hunyuan
    r"\|(?:turn|channel|think|tool|tool_call|tool_response)>",  # Gemma 4
    r"(?:turn|channel|tool|tool_call|tool_response)\|>",
    r"(?:start|end)_(?:of_turn|function_(?:call|response|declaration))>",  # Gemma 2 and 3, FunctionGemma
    r"ctrl\d+>",  # PaLM, MedGemma
    r"fim[_-][a-z]+>",  # StarCoder, SantaCoder, Granite
    r"/?longcat_[a-z_]+>",  # LongCat
    r"end_of_utterance>",  # SmolVLM, Idefics
    r"</?SYS>>",  # Llama 2
    rf"(?:/?s|bos|eos)>{_BEFORE_A_TURN}",  # Llama 2, Mistral, Zephyr, Vicuna
    r"/?(?:tool_calls?|tool_response|minimax:tool_call)>",  # Qwen, Hermes, MiniMax
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
    *_after("["),
    r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|MODEL_SETTINGS)\]",  # Llama 2, Mistral
    r"/?TOOL_(?:CALLS|RESULTS|CONTENT)\]",
    r"(?:ARGS|CALL_ID)\]",  # Mistral
    r"[BE]OS\]",  # EXAONE
    r"[gs]MASK\]",  # GLM
    r"\|(?:system|user|assistant|tool|endofturn)\|\]",  # EXAONE
    r"UNUSED_TOKEN_\d+\]",  # InternLM 2
    r"e~\[",  # MiniMax-M2
)
_AFTER_RIGHT_SQUARE = (r"~!?b[\[\]]",)  # MiniMax-M2


# Each alternative begins with a different character, so the search skips all other text in C.
_PLACES = re.compile("|".join(f"{left}{_DOTS}" for left in _LEFT))
_PLACES_AND_TURNS = re.compile(
    rf"{_PLACES.pattern}(?:(?={'|'.join(_AFTER_ANGLE)})(?P<turn>))?"
    rf"|\[{_DOTS}(?={'|'.join(_AFTER_SQUARE)})(?P<square>)"
    rf"|\]{_DOTS}(?={'|'.join(_AFTER_RIGHT_SQUARE)})(?P<right>)"
    rf"|{_TRIANGLE}{_DOTS}(?={'|'.join(_after(_TRIANGLE))})(?P<triangle>)"
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Dots what could pass for the structure of a prompt that uses tags of these names, and undots it.

    Of the tags in `names`, only closing ones count, and opening ones at the beginning of a line: `#include
    <memory>` is code. The `mark` counts however it is spelled, but for the names of files above their texts.
    With `turns`, the turn tokens of chat templates count too.
    """

    names: tuple[str, ...]
    mark: str
    turns: bool

    def neutralise(self, text: str) -> str:
        """`text` with a dot wherever it could pass for structure, and otherwise unchanged.

        Lone surrogates, which UTF-8 cannot encode, and NUL, which ends a prompt on some servers, become
        U+FFFD.
        """
        text = sendable(text).replace("\0", "\ufffd")
        for index in reversed(self._marks(text)):
            text = text[:index] + DOT + text[index:]
        if not any(head in text for head in _HEADS):
            return text
        return self._places.sub(
            lambda match: match.group() + DOT if self._counts(match) else match.group(), text
        )

    def restore(self, text: str) -> str:
        """The text as it was before `neutralise`, also inside a reply that quotes it."""
        if DOT not in text:
            return text
        text = self._places.sub(
            lambda match: match.group().removesuffix(DOT) if self._counts(match) else match.group(), text
        )
        for index in reversed(self._marks(text)):
            text = text[:index] + text[index:].removeprefix(DOT)
        return text

    @property
    def _places(self) -> re.Pattern[str]:
        return _PLACES_AND_TURNS if self.turns else _PLACES

    def _marks(self, text: str) -> list[int]:
        """Where the mark stands, in order: the index behind the first letter of each."""
        mark = self.mark.encode()
        if mark not in _letters(text):
            return []
        letters = [(letter, index) for index, character in enumerate(text) for letter in _letters(character)]
        spelled = bytes(letter for letter, _ in letters)
        indices = {letters[match.start()][1] for match in re.finditer(b"(?=%b)" % mark, spelled)}
        return sorted(index + 1 for index in indices if not self._names_file(text, index))

    def _names_file(self, text: str, index: int) -> bool:
        """Whether the mark that stands here is that of a line that names a file."""
        line, head = text.rfind("\n", 0, index) + 1, file_head(self.mark, "").removesuffix("]\n")
        return text.startswith(head, line) and index == line + head.index(self.mark)

    def _counts(self, match: re.Match[str]) -> bool:
        """Whether what begins here is a turn token or could pass for one of the tags."""
        if match.lastgroup:
            return True
        text, end = match.string, match.end()
        tag = _TAG.match(text, end)
        inside = fold(tag.group()) if tag else ""
        before = _BEFORE_NAME.match(inside)
        start = before.end() if before else 0
        if not inside.startswith(self.names, start):
            return False
        name = _is_named(inside, start, self.names)
        if any(slash in inside[:start] for slash in _SLASHES):
            return bool(name)
        after = inside[start + len(name) :]
        closed = tag is not None and text[tag.end() : tag.end() + 1] in tuple(_RIGHT)
        whole = after[:1].isspace() or not after.strip(_SLASHES)
        return bool(name) and closed and whole and _begins_line(text, match.start())


def file_head(mark: str, title: str) -> str:
    """The line that names a file above its text, with a mark that no text in it can know."""
    return f"[file-{mark}: {title}]\n"


def _letters(text: str) -> bytes:
    """The letters a to z that a tolerant eye reads: without case, accents, and all that stands between."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).casefold().translate(_LOOKALIKES)
    return text.encode("ascii", "ignore").lower().translate(None, _NO_LETTERS)


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
