"""Train as a settings file says: a warm start by supervised fine-tuning (SFT), then reinforcement.

The settings determine a run. All sampling depends only on the seed and the position in the data, so a run
that is killed and resumed has the same metrics as one that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from memagent.engines.adapters import read_trained
from memagent.engines.gguf import catalogue
from memagent.engines.torch.engine import TransformersEngine, ran_out_of_memory
from memagent.errors import EngineError, SettingsError, TrainingError
from memagent.reading.journal import difference
from memagent.strict import build
from memagent.training.data import Data, load_data
from memagent.training.metrics import open_metrics
from memagent.training.optimization.learner import GO_BACK
from memagent.training.optimization.policy import Policy, load_policy
from memagent.training.ranks import Ranks
from memagent.training.reinforcement import HeldOut, check_reinforcement, reinforce
from memagent.training.run import (
    RunState,
    TrainingObserver,
    TrainingPosition,
    load_checkpoint,
    newest_checkpoint,
)
from memagent.training.serving import open_server
from memagent.training.settings import TrainingSettings
from memagent.training.warm_start import fine_tune, is_file

_MAY_CHANGE: Any = {
    "steps": True, "checkpoint_every": True, "keep": True, "policy": {"gradient_checkpointing"},
    "optimizer": {"learning_rate", "batch_tokens"}, "rollout": {"rows", "server"},
    "warm_start": {"steps", "learning_rate"},
    "engine": {"api_key", "timeout_seconds", "retries"},
}  # fmt: skip


async def train(
    settings: TrainingSettings,
    folder: Path,
    observer: TrainingObserver,
    resume: bool = False,
    only_warm_start: bool = False,
) -> None:
    """Train as the settings say, into `folder`; with `resume`, continue from its newest checkpoint.

    Raises `SettingsError` for settings that cannot be used or that differ from those of the resumed run,
    themselves or in the files that they name, `EngineError` if a server fails for good, `TrainingError` if
    training cannot continue.
    """
    if only_warm_start and not settings.warm_start.steps:
        raise SettingsError("there is no warm start: set warm_start.steps")
    path = newest_checkpoint(folder) if resume else None
    state = load_checkpoint(path) if path else None
    files = settings.digest_files()
    if state:
        _check_same(folder, build(TrainingSettings, state["settings"], str(path)), settings)
        _check_unchanged(folder, state["files"], files)
    ranks = Ranks()
    offset = state["metrics"] if state else 0 if resume else None
    opened = open_metrics(folder, settings.record(), offset) if ranks.main else nullcontext()
    with _with_advice(), opened as metrics:
        policy = load_policy(settings.policy, settings.rollout.temperature, settings.seed, ranks.device)
        server = await open_server(settings, policy, folder) if settings.rollout.server else None
        engine = server.engine if server else local_engine(settings, policy)
        engine.model = replace(engine.model, trained=read_trained(settings.policy.adapter))
        try:
            names, counter = settings.data.examples, engine.model.count_tokens
            needed = names or not (only_warm_start and is_file(settings.warm_start.trajectories))
            run = RunState(
                settings=settings, folder=folder, observer=observer, policy=policy, engine=engine,
                ranks=ranks, metrics=metrics, files=files, push=server.push if server else None,
                data=load_data(names, settings.seed, counter) if needed else Data([], settings.seed),
            )  # fmt: skip
            if state:
                policy.load_weights(state["weights"])
                run.position, run.optimizer = TrainingPosition(**state["position"]), state["optimizer"]
            elif ranks.main:
                HeldOut.forget(folder)
            if not only_warm_start:
                check_reinforcement(run)
            await fine_tune(run)
            if not only_warm_start:
                await reinforce(run)
        finally:
            await engine.aclose()
    ranks.close()


@contextmanager
def _with_advice() -> Iterator[None]:
    """Raise `TrainingError` if memory runs out within the block, or if the policy breaks."""
    try:
        yield
    except EngineError as error:
        if not isinstance(error.__cause__, ArithmeticError):
            raise
        raise TrainingError(f"{error}: {GO_BACK}") from error
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise TrainingError(
            f"memory ran out ({error}): lower optimizer.batch_tokens, or set policy.gradient_checkpointing, "
            "and continue with `resume`; if that is not enough, begin with a smaller policy.model, or a LoRA"
        ) from error


def _check_same(folder: Path, then: TrainingSettings, now: TrainingSettings) -> None:
    before, after = (
        settings.model_dump(mode="json", exclude=_MAY_CHANGE) | {"served": bool(settings.rollout.server)}
        for settings in (then, now)
    )
    if changed := difference(before, after):
        raise SettingsError(
            f"{folder} was run with other settings: {changed}; change it back, or use another folder"
        )


def _check_unchanged(folder: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for file, digest in then.items():
        if now.get(file) != digest:
            raise SettingsError(
                f"{file} has changed since {folder} was begun: change it back, or use another folder"
            )


def local_engine(settings: TrainingSettings, policy: Policy) -> TransformersEngine:
    """An engine that decodes with the policy's own weights.

    It caches token counts, because all rollouts of a group split the same document.
    """
    only_verdicts = settings.policy.only_verdicts
    engine = TransformersEngine(
        policy.network,
        policy.tokenizer,
        name=settings.policy.model or catalogue.DEFAULT,
        window_tokens=settings.engine.window_tokens,
        most_rows=settings.rollout.rows,
        half_precision=policy.autocast,
        judges=(settings.policy.adapter or "LoRA") if only_verdicts else "",
        without_adapter=policy.model.disable_adapter if only_verdicts else nullcontext,
    )
    count_tokens = lru_cache(maxsize=4096)(engine.model.count_tokens)
    engine.model = replace(engine.model, count_tokens=count_tokens)
    return engine
