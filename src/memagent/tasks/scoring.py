"""Score a prediction against the gold answers.

Every scorer takes the prediction and all gold answers and returns a score from 0 to 1. An empty prediction
always scores 0. For the choice of the text to score, see `extract_answer`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import fmean
from unicodedata import category, normalize

from memagent.documents.tokens import UNSPACED
from memagent.tasks.recipe import ABSENT_ANSWERS

Scorer = Callable[[str, tuple[str, ...]], float]
"""Maps a prediction and its gold answers to a score from 0 to 1."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_START, _END = rf"(?:(?<![^\s{UNSPACED}])|(?=[{UNSPACED}]))", rf"(?:(?![^\s{UNSPACED}])|(?<=[{UNSPACED}]))"
_DASH_OR_BEYOND = re.compile(r"[-\u0080-\U0010ffff]")
_MARKS = ("Pc", "Ps", "Pe", "Pi", "Pf", "Po", "Sc")
_BOXED = re.compile(r"\\boxed\s*\{")
_ANSWER_IS = re.compile(r"\bthe\s+(?:final\s+)?answer\s+is\b[\s:]*", re.IGNORECASE)
_CHOSEN = re.compile(r"The correct answer is \(([A-D])\)")
_CHOSEN_BARE = re.compile(r"The correct answer is ([A-D])")
_TEX = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_TEX_NOISE = re.compile(r"\s|\\!|\\left|\\right|\^\{\\circ\}|\^\\circ|\\\$|\\%|(?<=\\)[td](?=frac)")
_DECLINES = re.compile(
    r"\b(?:does not|doesn't|do not|don't) (?:\w+ )?"
    r"(?:hold|contain|say|mention|give|provide|state|specify|answer)"
    r"|\bnot (?:in|mentioned|stated|provided|specified|said|given|found)\b"
    r"|\bno (?:answer|information|mention)\b|\bcannot be (?:answered|determined)\b"
    r"|\bunknown\b|\bI don't know\b",
    re.IGNORECASE,
)
_BOX_REACH = 300  # characters


def string_match_all(prediction: str, answers: tuple[str, ...]) -> float:
    """The share of the answers that occur in the prediction, ignoring case (RULER, arXiv 2404.06654)."""
    text = _lower(prediction)
    return fmean(_lower(answer) in text for answer in answers) if answers else 0.0


def string_match_part(prediction: str, answers: tuple[str, ...]) -> float:
    """1 if any answer occurs in the prediction, ignoring case (RULER's scorer for its QA tasks)."""
    text = _lower(prediction)
    return float(any(_lower(answer) in text for answer in answers))


def exact_match(prediction: str, answers: tuple[str, ...]) -> float:
    """1 if the prediction is one of the answers, both normalised as SQuAD does (arXiv 1606.05250)."""
    return float(any(ours == gold for ours, gold in _pair_up(prediction, answers)))


def f1(prediction: str, answers: tuple[str, ...]) -> float:
    """The best overlap of words with an answer, as the harmonic mean of precision and recall (SQuAD)."""
    return max((_overlap(ours, gold) for ours, gold in _pair_up(prediction, answers)), default=0.0)


def substring_match(prediction: str, answers: tuple[str, ...]) -> float:
    """1 if an answer occurs in the prediction as whole words, both normalised as SQuAD does.

    Beyond SQuAD, punctuation of any language is ignored, a dash may stand for a space, and Chinese, Japanese
    and Korean words are found without spaces around them. A prediction that is a part of the answer does not
    count.
    """
    pairs = (
        pair
        for dash in ("", " ")
        for pair in _pair_up(
            _in_ascii(prediction, dash), tuple(_in_ascii(answer, dash) for answer in answers)
        )
    )
    return float(any(re.search(_START + re.escape(gold) + _END, ours) for ours, gold in pairs))


def published_substring_match(prediction: str, answers: tuple[str, ...]) -> float:
    """The scorer of MemAgent's published evaluation; use it only to compare with its tables.

    1 if the prediction contains the first answer or the other way round, by characters: a single letter
    of the answer is enough. Its tables also drop failed calls, which no scorer can.
    """
    ours = _normalise(prediction)
    golds = [_normalise(answer) for answer in answers[:1]]
    return float(bool(ours) and any(gold in ours or ours in gold for gold in golds))


def boxed_match(prediction: str, answers: tuple[str, ...]) -> float:
    r"""MemAgent's training reward: 1 if the last `\boxed{}` of a reply holds an answer.

    As in the authors' code, the box must be closed and lie in the last 300 characters; case, white space
    and some TeX are ignored. The prompt must ask for a box: `presets/prompts/boxed.toml`.
    """
    text = prediction[-_BOX_REACH:].lower()
    opening = next(reversed(list(_BOXED.finditer(text))), None)
    box = _find_braced(text, opening.end()) if opening else ""
    closed = opening is not None and text.startswith("}", opening.end() + len(box))
    golds = [_TEX_NOISE.sub("", answer.lower()) for answer in answers]
    return float(closed and bool(box) and _TEX_NOISE.sub("", box) in golds)


def choice(prediction: str, answers: tuple[str, ...]) -> float:
    """1 if the reply says "The correct answer is (B)", with or without brackets (LongBench v2's scorer).

    The first with brackets counts, or else the first without; stars are ignored. Another wording is wrong.
    """
    text = prediction.replace("*", "")
    match = _CHOSEN.search(text) or _CHOSEN_BARE.search(text)
    return float(match is not None and match.group(1) in answers)


def rouge_l(prediction: str, answers: tuple[str, ...]) -> float:
    """The best ROUGE-L F1 with an answer, for summaries, as LongBench gets it from the package `rouge` 1.0.1.

    Sentences end at full stops, words at spaces; case and commas are kept. Two texts share the words in the
    longest common subsequence of any sentence of one with any of the other; precision and recall are shares
    of their sets of words. Sentences too long for that package's recursion, which LongBench scores 0, count.
    """
    ours = _sentences(prediction)
    return max((_rouge(ours, _sentences(answer)) for answer in answers), default=0.0)


SCORERS: dict[str, Scorer] = {
    "string_match_all": string_match_all,
    "string_match_part": string_match_part,
    "exact_match": exact_match,
    "f1": f1,
    "substring_match": substring_match,
    "published_substring_match": published_substring_match,
    "boxed_match": boxed_match,
    "rouge_l": rouge_l,
    "choice": choice,
}
_SEE_THE_REPLY = ("string_match_all", "string_match_part", "boxed_match", "rouge_l", "choice")


def score_reply(scorer: str, reply: str, answers: tuple[str, ...]) -> float:
    """Score a reply, 0 to 1: some scorers look at all of it, the others only at the answer it gives.

    Whatever the scorer, a reply to a question without an answer is right if it says so.
    """
    if is_absent(answers):
        return float(declines(reply))
    return SCORERS[scorer](reply if scorer in _SEE_THE_REPLY else extract_answer(reply), answers)


def is_absent(answers: Sequence[str]) -> bool:
    """Whether these are the answers of an example whose document lacks the answer."""
    return set(answers) <= set(ABSENT_ANSWERS)


def declines(reply: str) -> bool:
    """Whether a reply says, in English, that what was asked for is not there."""
    return bool(_DECLINES.search(reply))


def extract_answer(text: str) -> str:
    r"""The answer in a reply: its last `\boxed{}`, else what follows "the answer is", else all of it.

    Braces may nest, and TeX's `\text{}` is removed. A box that is never closed ends with its line; an
    empty one is skipped.
    """
    for match in reversed(list(_BOXED.finditer(text))):
        if content := _TEX.sub(r"\1", _find_braced(text, match.end())).strip():
            return content
    for match in reversed(list(_ANSWER_IS.finditer(text))):
        line = text[match.end() :].partition("\n")[0].strip()
        if line := line.rstrip(".!?").strip("*\"'` ").rstrip(".!?"):
            return line
    return text.strip()


def _in_ascii(text: str, dash: str) -> str:
    """The text in compatible characters, with `dash` for each dash and a full stop for other marks."""
    kinds = {"Pd": dash, "Cf": ""} | dict.fromkeys(_MARKS, ".")
    return _DASH_OR_BEYOND.sub(
        lambda match: kinds.get(category(match[0]), match[0]), normalize("NFKC", _with_minus(text))
    )


def _lower(text: str) -> str:
    return _with_minus(text).lower()


def _with_minus(text: str) -> str:
    """The text with a hyphen for each minus sign; published scorers see the text unchanged."""
    return text.replace("\u2212", "-")


def _normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _pair_up(prediction: str, answers: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The prediction and each answer, normalised.

    An answer that normalises to nothing ("A", "!") is only lower-cased: an empty answer would be
    found in everything.
    """
    prediction = _with_minus(prediction)
    for answer in map(_with_minus, answers):
        if gold := _normalise(answer):
            yield _normalise(prediction), gold
        elif gold := " ".join(answer.lower().split()):
            yield " ".join(prediction.lower().split()), gold


def _overlap(ours: str, gold: str) -> float:
    mine, golden = ours.split(), gold.split()
    common = (Counter(mine) & Counter(golden)).total()
    return 2 * common / (len(mine) + len(golden)) if common else 0.0


def _sentences(text: str) -> list[list[str]]:
    """The words of each sentence; one of spaces alone has one empty word, as in the package."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _rouge(ours: list[list[str]], gold: list[list[str]]) -> float:
    if not ours or not gold:
        return 0.0
    shared = {word for one in gold for other in ours for word in _common_words(one, other)}
    return 2 * len(shared) / (len(set(chain(*ours))) + len(set(chain(*gold))))


def _common_words(gold: list[str], ours: list[str]) -> Iterator[str]:
    """The words of the longest common subsequence; if there are several, the one that the package finds."""
    lengths = [[0] * (len(ours) + 1)]  # (words of gold + 1, words of ours + 1)
    for word in gold:
        above, row = lengths[-1], [0]
        for column, other in enumerate(ours):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        lengths.append(row)
    i, j = len(gold), len(ours)
    while i and j:
        if gold[i - 1] == ours[j - 1]:
            yield gold[i - 1]
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1


def _find_braced(text: str, start: int) -> str:
    """The text from `start` to the brace that closes the one before it."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return text[start:].partition("\n")[0]
