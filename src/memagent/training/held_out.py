"""Held-out evaluation during a run, with the code of `memagent eval`."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from memagent.evaluation.plan import Plan
from memagent.evaluation.rows import EvaluationRow
from memagent.evaluation.run import Evaluation, evaluate
from memagent.reading.workflows import choose_workflow
from memagent.settings import Settings
from memagent.tasks import load_examples, write_examples
from memagent.tasks.scoring import confidence_interval
from memagent.training.data import every_example, load_data
from memagent.training.settings import TrainingSettings
from memagent.types import Engine

_log = logging.getLogger(__name__)


class HeldOut:
    """A fixed set of examples, read greedily with the run's own workflow. The run's folder keeps the rows.

    `haystack` names what their documents were made from, after the first `score`.
    """

    def __init__(self, settings: TrainingSettings, run: Path, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._folder = run / "evaluation"
        self._examples = run / "held_out.jsonl"
        self.haystack = ""
        wanted = settings.evaluation
        if wanted.every and not self._examples.is_file():
            count_tokens = engine.model.count_tokens
            data = load_data(wanted.examples, settings.seed, count_tokens)
            run.mkdir(parents=True, exist_ok=True)
            write_examples(self._examples, data.first(wanted.count))

    def compare(self) -> None:
        """Warn if the run trains on examples that it holds out, too.

        Raises `SettingsError` for a row of its files that is not an example: it would end the run later.
        """
        settings = self._settings
        kept = load_examples(self._examples) if settings.evaluation.every else ()
        held_out = [(it.problem, it.document) for it in kept]
        imitated = settings.warm_start.examples if settings.warm_start.steps else ()
        trained = every_example((*settings.data.examples, *imitated), len(held_out))
        shared = set(held_out).intersection((it.problem, it.document) for it in trained)
        if count := sum(it in shared for it in held_out):
            _log.warning(
                "%d of the %d held-out examples are trained on too, so the held-out score does not tell how "
                "well others are read: keep evaluation.examples out of data.examples and warm_start.examples",
                count,
                len(held_out),
            )

    @staticmethod
    def forget(run: Path) -> None:
        """Delete the examples of a run that starts over: they may come from other settings."""
        (run / "held_out.jsonl").unlink(missing_ok=True)

    def due(self, step: int) -> bool:
        """Whether to evaluate the policy after this many steps."""
        wanted = self._settings.evaluation
        last = step == self._settings.steps
        return bool(wanted.every) and (step % wanted.every == 0 or last) and (wanted.before or step > 0)

    async def score(self, step: int) -> dict[str, float]:
        """Evaluate the current policy. Rows that an interrupted run left are discarded."""
        folder = self._folder / f"step-{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        rows: list[EvaluationRow] = []
        read = self._settings.read
        workflow, _ = choose_workflow(read, self._engine.model.trained)
        plan = Plan(
            workflows=(workflow,),
            examples=str(self._examples),
            scorer=self._settings.data.scorer,
            task_answer_tokens=False,  # answers get the same room as in training
        )
        settings = Settings(read=read.changed(temperature=0.0, top_p=1.0))
        run = Evaluation(plan=plan, settings=settings, folder=folder, on_row=rows.append)
        await evaluate(run, self._engine)
        self.haystack = "; ".join(sorted({row.haystack for row in rows} - {""}))
        scores = sorted(row.score for row in rows)  # in one order, so that the sum is rounded the same
        mean, (low, high) = sum(scores) / len(rows), confidence_interval(scores)
        return {
            "score": 100 * mean,
            "half_width": 100 * max(mean - low, high - mean),  # near 0 and 100 the interval lies to one side
            "failed": sum(row.error is not None for row in rows),
            "count": len(rows),
        }
