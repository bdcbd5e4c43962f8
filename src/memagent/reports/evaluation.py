"""A report on evaluations: report.md, report.json and pictures, made from the rows alone.

The same rows always give the same report; no model is called. Pictures need the extra `report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from memagent.errors import SettingsError
from memagent.evaluation import statistics
from memagent.evaluation.rows import read_header, read_rows
from memagent.evaluation.statistics import Estimate, Scored, Size, Summary
from memagent.reports import drawing
from memagent.reports.folder import Pictures, as_page, as_text, cell, picture, table, write_folder
from memagent.tasks.corpora import is_sample
from memagent.tasks.scoring import is_absent

_INTERVALS = """\
Scores are in percent, with the 95% interval of the mean in brackets. With 128 questions it is about \
±7 points at a score of 80%. A failed attempt scores 0 and is counted; an example that was read several \
times counts once, with the mean of its samples."""
_DEPTH = """\
## Depth

The score by where in the document the answer stands, 0% at its beginning. Hatched: no example.

"""
_DECLINED = """\
## Declined and invented

Declined: the reader said that the document does not answer. Invented: it answered a question that the \
document does not answer. In percent, with the 95% interval in brackets; failed attempts are neither.

"""
_WRONG_CHARACTERS = 200  # of a question and a reply that are shown
_COSTS = """\
Means for one attempt, failed ones left out; the document's length is in tokens. Critical path: the longest \
chain of calls that each began after the one before had ended, at the concurrency of the run. Cached: \
prompt tokens that the server had computed before, if it reports them. Seconds: the time of an attempt \
while others run beside it. Cost: at the prices of the run. Cut: how many replies ended at their token \
budget. Passed over: the share of chunks that the model was not shown, if the run screened them."""


@dataclass(frozen=True)
class Evidence:
    """The runs that a report is about, by folder, and their rows as results."""

    runs: dict[str, dict[str, Any]]
    results: tuple[Scored, ...]

    @property
    def series(self) -> list[str]:
        """The lines of the report, in the order in which the readers were asked for."""
        return list(dict.fromkeys(result.series for result in self.results))

    @cached_property
    def by_size(self) -> dict[tuple[str, Size], Summary]:
        """A summary for each series and size."""
        return statistics.by_size(self.results)

    @cached_property
    def differences(self) -> dict[tuple[str, Size | None], Estimate]:
        """How much more than the first series each other one scores."""
        return statistics.differences(self.results, self.series[0])

    @cached_property
    def growth(self) -> list[tuple[str, float | None, float | None]]:
        """Each series with the exponents of its tokens and its seconds."""
        return [
            (
                series,
                statistics.growth_of(self.by_size, series, lambda summary: summary.tokens),
                statistics.growth_of(self.by_size, series, lambda summary: summary.seconds),
            )
            for series in self.series
        ]


def load(folders: Sequence[Path]) -> Evidence:
    """The rows of runs, each with the name of its line: the workflow, and what distinguishes the runs.

    That is the model if models differ, and the folder if one model made the same attempt twice. A run that
    is given twice counts once. Raises `SettingsError` if there are no rows.
    """
    given = {folder.resolve(): folder for folder in reversed(folders)}
    runs = {str(folder): read_header(folder) for folder in reversed(given.values())}
    rows = {name: list(read_rows(Path(name))) for name in runs}
    models = {name: str(run["model"]["name"]) for name, run in runs.items()}
    if not any(rows.values()):
        raise SettingsError(f"no row yet in {', '.join(runs)}")
    met = Counter((models[name], row.key) for name in runs for row in rows[name])
    again = any(count > 1 for count in met.values())
    several = len({models[name] for name in runs if rows[name]}) > 1
    orders = [name for run in runs.values() for name in run["plan"]["workflows"]]
    results = []
    for name, own in rows.items():
        apart = ", ".join([models[name]] * several + [name] * again)
        results += [Scored(f"{row.workflow} ({apart})" if apart else row.workflow, name, row) for row in own]
    results.sort(key=lambda result: (orders.index(result.row.workflow), result.row.task, result.size))
    return Evidence({name: run for name, run in runs.items() if rows[name]}, tuple(results))


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report on the runs in `folders` to the folder `out`; returns the files.

    Raises `SettingsError` for folders that hold no rows or cannot be written.
    """
    evidence = load(folders)
    pictures = drawing.pictures(evidence.results, evidence.series)
    return write_folder(out, as_json(evidence), pictures, partial(as_markdown, evidence))


def as_json(evidence: Evidence) -> str:
    """Everything that the report says, as JSON."""
    report = {
        "runs": evidence.runs,
        "scores": [
            {"workflow": series, "task": task, **asdict(size), **_flatten(summary)}
            for (series, task, size), summary in statistics.by_task(evidence.results).items()
        ],
        "differences": [
            {
                "workflow": series,
                "from": evidence.series[0],
                "size": size and asdict(size),
                **asdict(estimate),
            }
            for (series, size), estimate in evidence.differences.items()
        ],
        "by_size": [
            {"workflow": series, **asdict(size), **_flatten(summary)}
            for (series, size), summary in evidence.by_size.items()
        ],
        "growth": [
            {"workflow": series, "tokens_exponent": tokens, "seconds_exponent": seconds}
            for series, tokens, seconds in evidence.growth
        ],
        "depth": [
            {"workflow": series, **asdict(size), "depth": depth / statistics.DEPTH_BINS, **_flatten(summary)}
            for (series, size, depth), summary in statistics.by_depth(evidence.results).items()
        ],
        "wrong": [
            dict(zip(_WRONG_FIELDS, _describe_wrong(result), strict=True))
            for result in statistics.wrong(evidence.results)
        ],
        "failures": [
            {"workflow": series, "cause": cause, "error": error, "count": count}
            for (series, cause, error), count in statistics.failures(evidence.results).most_common()
        ],
    }
    return as_text(report)


def _flatten(summary: Summary) -> dict[str, Any]:
    return {**asdict(summary), "tokens": summary.tokens}


def as_markdown(evidence: Evidence, pictures: Pictures | None) -> str:
    """The report as Markdown, with the pictures that were drawn; None if none could be."""
    parts = [
        "# Evaluation\n",
        *(_run(name, run, evidence.results) for name, run in evidence.runs.items()),
        f"## Scores\n\n{_INTERVALS}\n",
        score_tables(evidence),
        _differences(evidence),
        picture("score by length", pictures),
        f"{_DEPTH}{depth_picture}" if (depth_picture := picture("score by depth", pictures)) else "",
        _memory(evidence),
        _declined(evidence),
        _wrong(evidence),
        "## Cost\n",
        f"{_COSTS}\n",
        cost_table(evidence),
        _growth(evidence),
        picture("cost by length", pictures),
        "## Failures\n",
        _failures(evidence.results),
    ]
    return as_page(parts, pictures)


def _run(name: str, run: dict[str, Any], results: Sequence[Scored]) -> str:
    own = [result for result in results if result.folder == name]
    done, paid = len(own), statistics.paid_for(own)
    model, planned = run["model"], run["attempts"]
    estimated = sum(result.row.spent.estimated for result in own)
    lines = [
        f"- {cell(name)}: model {cell(model['name'])}, tokens counted by {cell(model['tokenizer'])}, "
        f"memagent {run['version']}, {run['created']}, {done:,} attempts"
        + ("" if paid is None else f", cost {paid:.4g} in all"),
        f"  `{run['command']}`" if run["command"] else "",
        f"  **Not finished: {planned - done:,} of {planned:,} attempts are missing.**"
        if done < planned
        else "",
        f"  The server did not count all tokens of {estimated:,} attempts: theirs are estimates."
        if estimated
        else "",
    ]
    samples = {
        corpus for corpus, details in run["plan"]["corpora"].items() if details.get("origin") == "sample"
    }
    samples |= {"essays" for result in own if is_sample(result.row.haystack)}
    if samples:
        names = ", ".join(sorted(samples))
        lines.append(f"  Made from the small samples of {names}: scores cannot be compared with others.")
    return "\n".join(line for line in lines if line) + "\n"


def score_tables(evidence: Evidence) -> str:
    """A table of tasks and sizes for each reader."""
    cells, tables = statistics.by_task(evidence.results), []
    sizes = sorted({size for _, _, size in cells})
    for series in evidence.series:
        tasks = list(dict.fromkeys(task for name, task, _ in cells if name == series))
        rows = [[task, *(_score(cells.get((series, task, size))) for size in sizes)] for task in tasks]
        if len(tasks) > 1:
            rows.append(["all", *(_score(evidence.by_size.get((series, size))) for size in sizes)])
        counts = {summary.examples for (name, _, _), summary in cells.items() if name == series}
        count = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        tables.append(
            f"**{cell(series)}**, examples per cell: {count}\n\n" + table(["task", *map(str, sizes)], rows)
        )
    return "\n".join(tables)


def _differences(evidence: Evidence) -> str:
    if not (estimates := evidence.differences):
        return ""
    sizes = sorted({size for _, size in estimates if size})
    rows = [
        [series, f"{estimates[series, None].examples:,}"]
        + [_estimate(estimates.get((series, size)), "+") for size in (*sizes, None)]
        for series in evidence.series
        if (series, None) in estimates
    ]
    return (
        f"## Differences\n\nPoints above **{cell(evidence.series[0])}** on the examples that both have read, "
        "with the 95% interval of the mean difference (Agresti and Min 2005). One that contains 0 shows no "
        "difference.\n\n" + table(["workflow", "examples", *map(str, sizes), "all"], rows)
    )


def _memory(evidence: Evidence) -> str:
    """A table of what entered the memory and what stayed there, where that is known."""
    rows = [
        [
            series,
            str(size),
            f"{summary.capture.examples:,}",
            _estimate(summary.capture),
            _estimate(summary.retention),
        ]
        for (series, size), summary in evidence.by_size.items()
        if summary.capture
    ]
    text = (
        "Capture: the percentage of examples in which what the answer needs entered the memory at all. "
        "Retention: the percentage of those in which it was still there at the end. Both leave out failed "
        "attempts. They look for the words of the answer, or else of the evidence: a memory in other words "
        "counts as a loss.\n\n"
    )
    heads = ["workflow", "size", "examples", "capture", "retention"]
    return f"## Memory\n\n{text}" + table(heads, rows, texts=2) if rows else ""


def _declined(evidence: Evidence) -> str:
    """A table of what was declined, rightly and wrongly, and what was invented, where any was."""
    sizes = evidence.by_size
    if not any(
        summary.invented or (summary.declined and summary.declined.mean) for summary in sizes.values()
    ):
        return ""
    rows = [
        [series, str(size), _count(summary.declined), _estimate(summary.declined), _count(summary.invented),
         _estimate(summary.declined_rightly), _estimate(summary.invented)]
        for (series, size), summary in sizes.items()
    ]  # fmt: skip
    heads = ["workflow", "size", "with an answer", "declined", "without", "declined", "invented"]
    return _DECLINED + table(heads, rows, texts=2)


def _wrong(evidence: Evidence) -> str:
    """A table of questions that were answered wrongly, the worst first."""
    if not (results := statistics.wrong(evidence.results)):
        return ""
    return (
        f"## Wrong answers\n\nThe questions that scored less than 100, the worst first, at most "
        f"{statistics.MAX_WRONG} of a workflow; `rows.jsonl` has all.\n\n"
        + table(_WRONG_FIELDS, map(_describe_wrong, results), texts=len(_WRONG_FIELDS))
    )


_WRONG_FIELDS = ("workflow", "task", "question", "expected", "reply")


def _describe_wrong(result: Scored) -> tuple[str, ...]:
    row = result.row
    expected = "no answer" if is_absent(row.answers) else "; ".join(row.answers)
    reply = f"{row.cause}: {row.error}" if row.error else row.prediction
    return result.series, row.task, *(_shorten(text) for text in (row.problem, expected, reply))


def _shorten(text: str) -> str:
    return text if len(text) <= _WRONG_CHARACTERS else text[: _WRONG_CHARACTERS - 3] + "..."


def _count(estimate: Estimate | None) -> str:
    return f"{estimate.examples:,}" if estimate else "0"


def cost_table(evidence: Evidence) -> str:
    """The mean cost of an attempt, by reader and size."""
    sizes = evidence.by_size
    screened = any(summary.passed_over for summary in sizes.values())
    rows = [
        [
            series, str(size), f"{summary.length_tokens:,.0f}", _number(summary.calls, 1),
            _number(summary.critical_path, 1), _number(summary.computed_tokens),
            _number(summary.cached_tokens), _number(summary.completion_tokens), _number(summary.seconds, 1),
            "–" if summary.cost is None else f"{summary.cost:.4g}", f"{summary.cut:,}",
        ]
        for (series, size), summary in sizes.items()
    ]  # fmt: skip
    heads = [
        "workflow", "size", "document", "calls", "critical path", "prompt tokens computed", "cached",
        "written", "seconds", "cost", "cut",
    ]  # fmt: skip
    if screened:
        heads.append("passed over, %")
        for row, summary in zip(rows, sizes.values(), strict=True):
            row.append("–" if summary.passed_over is None else f"{100 * summary.passed_over:.0f}")
    return table(heads, rows, texts=2)


def _growth(evidence: Evidence) -> str:
    exponents = [[name, _number(tokens, 2), _number(seconds, 2)] for name, tokens, seconds in evidence.growth]
    return (
        "Growth: the exponent b of cost = a × length^b, fitted by least squares over logarithms. "
        "Linear reading has 1.\n\n" + table(["workflow", "tokens", "seconds"], exponents)
    )


def _failures(results: Sequence[Scored]) -> str:
    counts = statistics.failures(results)
    if not counts:
        return f"None of {len(results):,} attempts failed.\n"
    rows = [[series, cause, error, f"{count:,}"] for (series, cause, error), count in counts.most_common()]
    return (
        f"{counts.total():,} of {len(results):,} attempts failed; each counts as 0. Numbers in the messages "
        "are shown as N.\n\n" + table(["workflow", "cause", "message", "attempts"], rows, texts=3)
    )


def _score(summary: Summary | None) -> str:
    if summary is None:
        return _estimate(None)
    return _estimate(Estimate(summary.examples, summary.score, summary.low, summary.high))


def _estimate(estimate: Estimate | None, sign: Literal["", "+"] = "") -> str:
    if estimate is None:
        return "–"
    low, high = (f"{100 * bound:{sign}.0f}" for bound in (estimate.low, estimate.high))
    return f"{100 * estimate.mean:{sign}.1f} [{low}, {high}]"


def _number(value: float | None, decimals: int = 0) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"
