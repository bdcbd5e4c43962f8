"""What is measured of the examples of a RULER task, RULER's or ours, and when measurements agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, linear_regression
from typing import Any

ON_PURPOSE = {
    ("niah", "length share"): "RULER steps by 500 words or 25 lines and stays under; we fill the length",
    ("niah", "haystack lines"): "follows from the length share",
    ("vt", "length share"): "RULER steps by 10 lines and counts its worked example",
    ("vt", "noise lines"): "RULER's worked example takes some of the length",
    ("cwe", "length share"): "RULER steps by 10 words and counts its worked example",
    ("cwe", "entries"): "follows from the length share and RULER's worked example",
    ("cwe", "distinct words"): "follows from the length share and RULER's worked example",
    ("fwe", "length share"): "RULER steps by a 32nd of the length and leaves no room for the answer",
    ("fwe", "words"): "follows from the length share",
    ("qa", "length share"): "RULER steps by 10 documents and stays under",
    ("qa", "documents"): "follows from the length share",
}
_FORMS = {
    "7 digits": r"[1-9]\d{6}",
    "UUID 4": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "word-word": r"[^\W\d_][^\d_]*-[^\d_]+",
}


@dataclass(frozen=True)
class Sample:
    """An example from either side; `share` is its length over the length asked for."""

    document: str
    answers: tuple[str, ...]
    share: float
    own: tuple[str, ...] = ()


def family(task: str) -> str:
    """The family of a task, which determines its statistics."""
    return task.partition("_")[0]


def statistics(task: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """The statistics of a task's examples: numbers are means, lists are whole distributions."""
    measure: dict[str, Callable[[Sample], dict[str, Any]]] = {
        "niah": _needles, "vt": _chains, "cwe": _common, "fwe": _code_words, "qa": _documents
    }  # fmt: skip
    measured = [measure[family(task)](sample) for sample in samples]
    merged: dict[str, Any] = {"length share": fmean(sample.share for sample in samples)}
    for name in measured[0]:
        values = [item[name] for item in measured]
        if isinstance(values[0], list):
            merged[name] = [round(value, 4) for part in values for value in part]
        elif isinstance(values[0], str):
            merged[name] = ", ".join(sorted(set(values)))
        else:
            merged[name] = fmean(values)
    return merged


def _needles(sample: Sample) -> dict[str, Any]:
    matches = list(
        re.finditer(r"One of the special magic (\w+) for (.+?) is: (\S+)\.(?=\s|$)", sample.document)
    )
    asked = [match for match in matches if match[3] in sample.answers]
    like = len(matches) > 20
    return {
        "needles": len(asked) if like else len(matches),
        "haystack lines" if like else "answer needles": len(matches) if like else len(asked),
        "kind": matches[0][1],
        "key form": _form(match[2] for match in matches),
        "value form": _form(match[3] for match in matches),
        "keys": len({match[2] for match in (asked if like else matches)}),
        "answers": len(sample.answers),
        "depth": [match.start() / len(sample.document) for match in asked],
    }


def _form(texts: Iterable[str]) -> str:
    forms = {
        next((name for name, form in _FORMS.items() if re.fullmatch(form, text)), text) for text in texts
    }
    return ", ".join(sorted(forms))


def _chains(sample: Sample) -> dict[str, Any]:
    matches = list(re.finditer(r"VAR (\w+) = (VAR )?(\w+)", sample.document))
    return {
        "chains": sum(match[2] is None for match in matches),
        "hops": sum(match[2] is not None for match in matches),
        "names reused": len(matches) - len({match[1] for match in matches}),
        "name letters": fmean(len(match[1]) for match in matches),
        "value digits": fmean(len(match[3]) for match in matches if match[2] is None),
        "answers": len(sample.answers),
        "noise lines": sample.document.count("The grass is green."),
        "depth": [match.start() / len(sample.document) for match in matches],
    }


def _common(sample: Sample) -> dict[str, Any]:
    counts = Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |$)", sample.document))
    common = [counts[answer] for answer in sample.answers]
    others = [count for word, count in counts.items() if word not in sample.answers]
    return {
        "repeats of a common word": fmean(common),
        "repeats of another word": fmean(others) if others else 0.0,
        "entries": counts.total(),
        "distinct words": len(counts),
        "answers": len(sample.answers),
    }


def _code_words(sample: Sample) -> dict[str, Any]:
    counts = Counter(sample.document.split())
    ranked = [count for _, count in counts.most_common(10)]
    points = [(log(rank), log(count)) for rank, count in enumerate(ranked, 1)]
    return {
        "words": counts.total(),
        "share of the dots": counts["..."] / counts.total(),
        "law's exponent": -linear_regression(*zip(*points, strict=True)).slope,
        "letters": fmean(len(word) for word in counts if word != "..."),
        "answers are ranks 2 to 4": set(sample.answers) == {word for word, _ in counts.most_common(4)[1:]},
        "answers": len(sample.answers),
    }


def _documents(sample: Sample) -> dict[str, Any]:
    parts = re.split(r"(?:\A|\n\n)Document (\d+):\n", sample.document)
    numbers, texts = parts[1::2], [text.rstrip() for text in parts[2::2]]
    return {
        "documents": len(texts),
        "numbered in order": numbers == [str(number) for number in range(1, len(texts) + 1)],
        "own documents there": fmean(text.rstrip() in texts for text in sample.own),
        "answers": len(sample.answers),
    }


def slots(sample: Sample) -> dict[str, Any]:
    """How many documents there are, and the slots of the question's own."""
    texts = [text.rstrip() for text in re.split(r"(?:\A|\n\n)Document \d+:\n", sample.document)[1:]]
    places = [texts.index(text.rstrip()) if text.rstrip() in texts else -1 for text in sample.own]
    return {"documents": len(texts), "slots": places}


def compare(task: str, name: str, theirs: Any, ours: Any) -> str:
    """ "same", why we differ on purpose, or "DIFFERS"."""
    if isinstance(theirs, list):  # two-sample Kolmogorov-Smirnov at 1%
        bound = 1.63 * sqrt((len(theirs) + len(ours)) / (len(theirs) * len(ours)))
        same = distance(theirs, ours) <= bound
    elif isinstance(theirs, str):
        same = theirs == ours
    else:
        same = abs(theirs - ours) <= 0.02 * max(abs(theirs), abs(ours))
    return "same" if same else ON_PURPOSE.get((family(task), name), "DIFFERS")


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The greatest difference between the two distribution functions."""

    def below(values: Sequence[float], limit: float) -> float:
        return sum(value <= limit for value in values) / len(values)

    return max(abs(below(one, value) - below(other, value)) for value in (*one, *other))
