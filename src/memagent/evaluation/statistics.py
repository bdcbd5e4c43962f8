"""Statistics of rows: mean scores with their intervals, costs, growth with length, depth, failures.

An example read several times counts once, with the mean of its samples. Failed attempts count as 0
in every score; they are left out of the costs, since they ended early.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log, log2, sqrt
from operator import itemgetter
from statistics import fmean, linear_regression
from typing import Literal, TypeVar

from memagent.evaluation.rows import EvaluationRow
from memagent.tasks.scoring import declines, is_absent

DEPTH_BINS = 10
MAX_WRONG = 20
"""How many wrong answers of a series are shown."""

_MIN_SPREAD = 1.5  # longest length over shortest; growth cannot be fitted over less
_ALIKE_CHARACTERS = 120  # errors that begin with the same ones are of one kind
_Z95 = 1.959964
_UNITS = ((1 << 20, "M"), (1 << 10, "K"))  # RULER's: its 128K are 131,072

Group = TypeVar("Group", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """The size of examples: as requested, in tokens or documents, or a file's rough length in tokens."""

    kind: Literal["tokens", "documents"]
    number: int

    def __str__(self) -> str:
        if self.kind == "documents":
            return f"{self.number:,} documents"
        for unit, name in _UNITS:
            if self.number % unit == 0 and self.number % 1000:
                return f"{self.number // unit:,}{name}"
        return f"{self.number:,}"


@dataclass(frozen=True, slots=True)
class Scored:
    """A row, the name of its line in the report, and the folder of its run."""

    series: str
    folder: str
    row: EvaluationRow

    @property
    def size(self) -> Size:
        """The size asked for; for an example of a file, its length to the nearest power of two."""
        if self.row.documents is not None:
            return Size("documents", self.row.documents)
        if self.row.length is not None:
            return Size("tokens", self.row.length)
        return Size("tokens", 1 << round(log2(max(self.row.length_tokens, 1))))

    @property
    def question(self) -> tuple[object, ...]:
        """Identifies an example across readers, even where it stands elsewhere in their files."""
        row = self.row
        return (row.cell, row.example_id or row.index, row.problem, row.answers)

    @property
    def question_at_any_size(self) -> tuple[object, ...]:
        """Identifies a question across the sizes of its examples."""
        return (self.row.task, self.row.problem or self.row.index, self.row.answers)

    @property
    def example(self) -> tuple[object, ...]:
        """Identifies an example across one reader's samples of it."""
        return (self.series, self.folder, self.row.cell, self.row.index)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `examples`, with its 95% interval."""

    examples: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of attempts: score and interval from 0 to 1, and means over the attempts that succeeded.

    A mean is None if none succeeded, or if one of them lacks the value. `cut` is a sum over all attempts.
    `computed_tokens` are the prompt tokens that were not `cached_tokens`; `paid` is the cost of all attempts
    together, failed ones included; `passed_over` is a share of the chunks. `capture` is the share of examples
    whose answer or evidence entered the memory, `retention` the share of those that still have it there at
    the end; None if unknown. `declined` is the share of examples with an answer that were declined,
    `declined_rightly` that of those without one; `invented` the share of these that were answered all the
    same. Failed attempts count as neither. None without such examples.
    """

    examples: int
    attempts: int
    failed: int
    score: float
    low: float
    high: float
    cut: int
    length_tokens: float
    calls: float | None
    critical_path: float | None
    prompt_tokens: float | None
    computed_tokens: float | None
    cached_tokens: float | None
    completion_tokens: float | None
    seconds: float | None
    cost: float | None
    paid: float | None
    passed_over: float | None
    capture: Estimate | None
    retention: Estimate | None
    declined: Estimate | None
    declined_rightly: Estimate | None
    invented: Estimate | None

    @property
    def tokens(self) -> float | None:
        """Prompts and completions together."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


def confidence_interval(scores: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean score: Wilson's if all scores are 0 or 1, else the normal one.

    The normal one adds two questions, one that scores 0 and one that scores 1, so that it is not too narrow
    for few questions (as in Agresti and Caffo, 2000). With fewer than two scores it is 0 to 1. To compare two
    readers of the same questions, use `paired_interval`.
    """
    count = len(scores)
    if count < 2:
        return 0.0, 1.0
    if any(score not in (0, 1) for score in scores):
        low, high = _normal_interval(sum(scores) + 1, sum(score * score for score in scores) + 1, count + 2)
        return max(0.0, low), min(1.0, high)
    mean, shrink = fmean(scores), 1 + _Z95**2 / count
    middle = (mean + _Z95**2 / (2 * count)) / shrink
    half = _Z95 * sqrt(mean * (1 - mean) / count + (_Z95 / (2 * count)) ** 2) / shrink
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean difference of two readers' scores, question by question.

    For scores of 0 and 1 it is that of Agresti and Min (2005): the normal one with two more questions, one
    that neither reader won and one that each won by half. So its width is never 0.
    """
    squares = sum(difference * difference for difference in differences) + 1
    low, high = _normal_interval(sum(differences), squares, len(differences) + 2)
    return max(-1.0, low), min(1.0, high)


def _normal_interval(total: float, squares: float, count: int) -> tuple[float, float]:
    """The 95% interval of the mean of `count` values, from their sum and the sum of their squares."""
    mean = total / count
    half = _Z95 * sqrt((squares / count - mean**2) / count)
    return mean - half, mean + half


def differences(results: Iterable[Scored], first: str) -> dict[tuple[str, Size | None], Estimate]:
    """How much more every other series scores than the `first`, -1 to 1, on the examples both have read.

    By size, and over all sizes (None), where a question that was asked at several sizes counts once, with
    the mean of its differences. A series that shares no example with the `first` has no entry.
    """
    scores: defaultdict[tuple[str, Hashable], list[float]] = defaultdict(list)
    read: dict[Hashable, Scored] = {}  # by the first reader, whose tokenizer tells the sizes
    for question, number, result in _number(results):
        key = (question, number)
        scores[result.series, key].append(result.row.score)
        if result.series == first:
            read.setdefault(key, result)
    sizes = {key: result.size for key, result in read.items()}
    at_any_size = _at_any_size(read)
    over: defaultdict[tuple[str, Size | None], defaultdict[Hashable, list[float]]]
    over = defaultdict(lambda: defaultdict(list))
    for (series, example), of_samples in scores.items():
        if series != first and example in sizes:
            difference = fmean(of_samples) - fmean(scores[first, example])
            over[series, sizes[example]][example].append(difference)
            over[series, None][at_any_size[example]].append(difference)
    means = {group: [fmean(values) for values in questions.values()] for group, questions in over.items()}
    return {
        group: Estimate(len(values), fmean(values), *paired_interval(values))
        for group, values in means.items()
    }


def _at_any_size(examples: Mapping[Hashable, Scored]) -> dict[Hashable, Hashable]:
    """The question of each example at any size; two examples of one size are different questions."""
    alike: Counter[tuple[Hashable, Size]] = Counter()
    questions: dict[Hashable, Hashable] = {}
    for key, result in examples.items():
        question, size = result.question_at_any_size, result.size
        questions[key] = (question, alike[question, size])
        alike[question, size] += 1
    return questions


def _number(results: Iterable[Scored]) -> Iterator[tuple[Hashable, int, Scored]]:
    """Each result with its question, and its number among the questions with the same name and answers."""
    numbers: defaultdict[Hashable, dict[int, int]] = defaultdict(dict)
    for result in sorted(results, key=lambda result: result.row.index):
        alike = numbers[result.folder, result.question]
        yield result.question, alike.setdefault(result.row.index, len(alike)), result


def summarise(results: Sequence[Scored]) -> Summary:
    """Summarise results, of which there must be at least one."""
    scores = _by_example(results, lambda row: row.score)
    low, high = confidence_interval(scores)
    succeeded = [result.row for result in results if not result.row.error]
    absent = [result for result in results if is_absent(result.row.answers)]
    there = [result for result in results if not is_absent(result.row.answers)]

    def mean(value: Callable[[EvaluationRow], float | None]) -> float | None:
        known = [number for number in map(value, succeeded) if number is not None]
        return fmean(known) if known and len(known) == len(succeeded) else None

    return Summary(
        examples=len(scores),
        attempts=len(results),
        failed=len(results) - len(succeeded),
        score=fmean(scores),
        low=low,
        high=high,
        cut=sum(result.row.cut for result in results),
        length_tokens=fmean(result.row.length_tokens for result in results),
        calls=mean(lambda row: row.spent.calls),
        critical_path=mean(lambda row: row.critical_path),
        prompt_tokens=mean(lambda row: row.spent.prompt_tokens),
        computed_tokens=mean(lambda row: row.spent.prompt_tokens - row.spent.cached_tokens),
        cached_tokens=mean(lambda row: row.spent.cached_tokens),
        completion_tokens=mean(lambda row: row.spent.completion_tokens),
        seconds=mean(lambda row: row.seconds),
        cost=mean(lambda row: row.spent.cost),
        paid=paid_for(results),
        passed_over=mean(lambda row: row.passed_over / row.chunks if row.chunks else None),
        capture=_share(results, lambda row: row.captured),
        retention=_share(results, lambda row: row.retained if row.captured else None),
        declined=_rate(there, lambda row: not row.score and declines(row.prediction)),
        declined_rightly=_rate(absent, lambda row: declines(row.prediction)),
        invented=_rate(absent, lambda row: not row.error and not declines(row.prediction)),
    )


def paid_for(results: Iterable[Scored]) -> float | None:
    """What the attempts cost together, failed ones included; None without prices."""
    costs = [result.row.spent.cost for result in results if result.row.spent.cost is not None]
    return fsum(costs) if costs else None


def _share(results: Iterable[Scored], happened: Callable[[EvaluationRow], bool | None]) -> Estimate | None:
    """How often something happened in the attempts that succeeded, as far as it is known."""
    known = [result for result in results if not result.row.error and happened(result.row) is not None]
    return _rate(known, lambda row: bool(happened(row)))


def _rate(results: Iterable[Scored], happened: Callable[[EvaluationRow], bool]) -> Estimate | None:
    """How often something happened; None without results."""
    shares = _by_example(results, happened)
    return Estimate(len(shares), fmean(shares), *confidence_interval(shares)) if shares else None


def _by_example(results: Iterable[Scored], value: Callable[[EvaluationRow], float]) -> list[float]:
    """A value for each example: the mean of its samples, which do not count as separate questions."""
    examples = group_by(results, lambda result: result.example).values()
    return [fmean(value(result.row) for result in samples) for samples in examples]


def group_by(items: Iterable[Item], group: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """The items of each group, with groups in order of first appearance."""
    groups: defaultdict[Group, list[Item]] = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    return dict(groups)


def by_task(results: Iterable[Scored]) -> dict[tuple[str, str, Size], Summary]:
    """A summary for each series, task and size."""
    return _summarise_by(results, lambda result: (result.series, result.row.task, result.size))


def by_size(results: Iterable[Scored]) -> dict[tuple[str, Size], Summary]:
    """A summary for each series and size, over all its tasks; shorter ones first."""
    summaries = _summarise_by(results, lambda result: (result.series, result.size))
    return {group: summaries[group] for group in sorted(summaries, key=itemgetter(1))}


def growth(points: Iterable[tuple[float, float]]) -> float | None:
    """The exponent b of y = a * x ** b, by least squares over the logarithms.

    Points at 0 are left out. None if the others span too small a range of lengths.
    """
    usable = [(log(x), log(y)) for x, y in points if x > 0 and y > 0]
    if not usable or max(usable)[0] - min(usable)[0] < log(_MIN_SPREAD):
        return None
    return linear_regression(*zip(*usable, strict=True)).slope


def growth_of(
    sizes: dict[tuple[str, Size], Summary], series: str, cost: Callable[[Summary], float | None]
) -> float | None:
    """How a cost of a series grows with the document's length."""
    summaries = [summary for (name, _), summary in sizes.items() if name == series]
    return growth(
        (summary.length_tokens, spent) for summary in summaries if (spent := cost(summary)) is not None
    )


def by_depth(results: Iterable[Scored]) -> dict[tuple[str, Size, int], Summary]:
    """A summary for each series, size and tenth of the document in which the answer stands.

    If there are needle tasks, only they count: in others the answer may stand elsewhere than its evidence.
    """
    located = [result for result in results if result.row.depth is not None]
    needles = [result for result in located if result.row.task.startswith("niah")]

    def tenth(result: Scored) -> int:
        return min(int((result.row.depth or 0.0) * DEPTH_BINS), DEPTH_BINS - 1)

    return _summarise_by(needles or located, lambda result: (result.series, result.size, tenth(result)))


def _summarise_by(results: Iterable[Scored], group: Callable[[Scored], Group]) -> dict[Group, Summary]:
    return {name: summarise(members) for name, members in group_by(results, group).items()}


def wrong(results: Iterable[Scored]) -> list[Scored]:
    """The attempts that scored less than 1: of each series the worst, of each example one."""
    worst: defaultdict[str, list[Scored]] = defaultdict(list)
    for attempts in group_by(results, lambda result: result.example).values():
        last = min(attempts, key=lambda result: (result.row.score, result.row.sample))
        if last.row.score < 1:
            worst[last.series].append(last)
    return [
        result
        for own in worst.values()
        for result in sorted(own, key=lambda result: (result.row.score, result.row.index))[:MAX_WRONG]
    ]


def failures(results: Iterable[Scored]) -> Counter[tuple[str, str, str]]:
    """How often each series failed for each cause: the error's class, and its text with N for numbers.

    Texts that begin alike are one cause, under the text of the first.
    """
    first: dict[tuple[str, str, str], str] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for result in results:
        if error := result.row.error:
            text = re.sub(r"\d+", "N", " ".join(error.split()))
            series, cause = result.series, result.row.cause or ""
            counts[series, cause, first.setdefault((series, cause, text[:_ALIKE_CHARACTERS]), text)] += 1
    return counts
