"""Rollouts from a server, with the weights as they are: what it is sent, and that it uses them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from memagent.errors import EngineError, SettingsError, TrainingError  # noqa: E402
from memagent.training.optimization.policy import Policy, load_policy  # noqa: E402
from memagent.training.serving import Server as Pushing  # noqa: E402
from memagent.training.serving import open_server  # noqa: E402
from memagent.training.settings import TrainingSettings  # noqa: E402
from server import Server, lasting_fault, refusal  # noqa: E402
from training.runs import lines, settings, train  # noqa: E402
from training.serving import BASE, Serving  # noqa: E402

VLLM = ("policy.lora_rank=2", "rollout.push=vllm-lora")
SGLANG = ("rollout.push=sglang-weights",)


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(settings(tmp_path))


@pytest.fixture
def server(serving: Serving) -> Iterator[Server]:
    with serving.start() as started:
        yield started


def make_settings(folder: Path, server: Server, *changes: str) -> TrainingSettings:
    return settings(folder, f"rollout.server={server.base_url}", "engine.retries=0", *changes)


def pushed(
    wanted: TrainingSettings, run: Path, use: Callable[[Pushing, Policy], Coroutine[Any, Any, None]]
) -> Policy:
    """Do something with a server and a policy of random weights, and its LoRA, if it has one, as well."""
    policy = load_policy(wanted.policy, 1.0, wanted.seed)
    nudge(policy)

    async def go() -> None:
        opened = await open_server(wanted, policy, run)
        try:
            await use(opened, policy)
        finally:
            await opened.engine.aclose()

    asyncio.run(go())
    return policy


def nudge(policy: Policy) -> None:
    with torch.no_grad():
        for values in policy.trained_parameters().values():
            values.add_(torch.randn(values.shape, generator=torch.Generator().manual_seed(1)) * 0.1)


def logits(network: Any) -> Any:
    with torch.no_grad():
        return network(torch.arange(2, 12)[None]).logits


def test_vllm_gets_each_lora_and_drops_the_one_before(
    tmp_path: Path, serving: Serving, server: Server
) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        assert opened.engine.model.name == BASE
        for step in (0, 1):
            nudge(policy)
            await opened.push(policy, step)
            assert opened.engine.model.name == f"policy-00000{step}"

    policy = pushed(make_settings(tmp_path, server, *VLLM), tmp_path / "run", use)
    first, second = "policy-000000", "policy-000001"
    assert serving.taken == [("load", first), ("load", second), ("unload", first)]
    assert torch.allclose(logits(serving.models[second]), logits(policy.network), atol=1e-5)
    assert not torch.allclose(logits(serving.models[BASE]), logits(policy.network), atol=1e-2)
    assert [path.name for path in (tmp_path / "run" / "served").iterdir()] == [second]


def test_sglang_gets_a_folder_with_all_weights(tmp_path: Path, serving: Serving, server: Server) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        for step in (0, 1):
            nudge(policy)
            await opened.push(policy, step)
            assert opened.engine.model.name == BASE

    policy = pushed(make_settings(tmp_path, server, *SGLANG), tmp_path / "run", use)
    assert serving.taken == [("update", "policy-000000"), ("update", "policy-000001")]
    assert torch.allclose(logits(serving.models[BASE]), logits(policy.network), atol=1e-5)
    assert [path.name for path in (tmp_path / "run" / "served").iterdir()] == ["policy-000001"]


def test_a_server_that_has_weights_gets_none(tmp_path: Path, serving: Serving, server: Server) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        await opened.push(policy, 0)

    pushed(make_settings(tmp_path, server, "rollout.push=none"), tmp_path / "run", use)
    assert serving.taken == [] and not (tmp_path / "run" / "served").exists()


def test_of_several_processes_one_gives_the_weights(tmp_path: Path, serving: Serving, server: Server) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        await opened.push(policy, 3, main=False)
        assert opened.engine.model.name == "policy-000003"

    pushed(make_settings(tmp_path, server, *VLLM), tmp_path / "run", use)
    assert serving.taken == []


def test_leftovers_of_an_interrupted_run_are_replaced(
    tmp_path: Path, serving: Serving, server: Server
) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        await opened.push(policy, 5)

    wanted = make_settings(tmp_path, server, *VLLM)
    pushed(wanted, tmp_path / "run", use)
    server.listed = [{"id": BASE}, {"id": "policy-000005", "parent": BASE}]
    old = serving.models["policy-000005"]

    async def again(opened: Pushing, policy: Policy) -> None:
        nudge(policy)
        await opened.push(policy, 5)

    policy = pushed(wanted, tmp_path / "run", again)
    name = "policy-000005"
    assert serving.taken == [("load", name), ("unload", name), ("load", name)]
    assert serving.models[name] is not old
    assert torch.allclose(logits(serving.models[name]), logits(policy.network), atol=1e-5)


@pytest.mark.parametrize("changes", [VLLM, SGLANG])
def test_a_server_that_takes_no_weights_is_an_error(tmp_path: Path, changes: tuple[str, ...]) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        await opened.push(policy, 0)

    with (
        Server(listed=[{"id": BASE}]) as plain,
        pytest.raises(EngineError, match=r"did not take the weights .*no page .*see rollout\.push"),
    ):
        pushed(make_settings(tmp_path, plain, *changes), tmp_path / "run", use)


def test_what_a_server_says_is_shown(tmp_path: Path) -> None:
    async def use(opened: Pushing, policy: Policy) -> None:
        await opened.push(policy, 0)

    pages = {"/v1/load_lora_adapter": lambda body: refusal(400, "max_lora_rank is 1")}
    with (
        Server(pages=pages, listed=[{"id": BASE}]) as strict,
        pytest.raises(EngineError, match="max_lora_rank is 1"),
    ):
        pushed(make_settings(tmp_path, strict, *VLLM), tmp_path / "run", use)


def test_all_weights_are_no_lora(tmp_path: Path, server: Server) -> None:
    with pytest.raises(SettingsError, match=re.escape("set policy.lora_rank, or another rollout.push")):
        train(make_settings(tmp_path, server, "rollout.push=vllm-lora"), tmp_path / "run")
    assert lines(tmp_path / "run") == [], "before the warm start"


@pytest.mark.parametrize("changes", [VLLM, SGLANG])
def test_training_on_what_a_server_samples(
    changes: tuple[str, ...], tmp_path: Path, serving: Serving, server: Server
) -> None:
    more = (*changes, "optimizer.learning_rate=0.05", "evaluation.every=1")
    train(make_settings(tmp_path, server, *more), tmp_path / "run")
    rows = lines(tmp_path / "run", "training")
    assert all(62 <= row["tokens"] <= 64 for row in rows), "with an empty memory, no answer is asked for"
    assert all(row["gradient_norm"] > 0 for row in rows)
    # The learner computes the server's log-probabilities again: they agree if it has the newest weights.
    assert all(row["mismatch"] < 1e-5 for row in rows)
    kind = "update" if changes == SGLANG else "load"
    assert [name for what, name in serving.taken if what == kind] == [f"policy-00000{n}" for n in range(4)]


def test_an_evaluation_reads_with_the_weights_of_its_step(
    tmp_path: Path, serving: Serving, server: Server
) -> None:
    train(make_settings(tmp_path, server, *VLLM, "evaluation.every=1"), tmp_path / "run")
    greedy = [body["model"] for body in server.asked if "messages" in body and body["temperature"] == 0]
    assert list(dict.fromkeys(greedy)) == [f"policy-00000{step}" for step in range(4)]
    sampled = [body["model"] for body in server.asked if "messages" in body and body["temperature"]]
    assert list(dict.fromkeys(sampled)) == [f"policy-00000{step}" for step in range(3)]


def test_what_vllm_has_cached_of_an_earlier_run_is_not_used(
    tmp_path: Path, serving: Serving, server: Server
) -> None:
    salts: list[str] = []
    for name in ("one", "other"):
        start = len(server.asked)
        train(make_settings(tmp_path, server, *VLLM, "steps=1"), tmp_path / name)
        run_salts = {body["cache_salt"] for body in server.asked[start:] if "messages" in body}
        assert len(run_salts) == 1, "within a run, a prompt's beginning is computed once"
        salts += run_salts
    assert salts[0] != salts[1]


def test_a_server_that_fails_for_good_ends_the_run(tmp_path: Path, serving: Serving) -> None:
    with (
        serving.start(faults=lasting_fault(refusal(503, "on fire"), spared=70)) as broken,
        pytest.raises(EngineError, match="on fire"),
    ):
        train(make_settings(tmp_path, broken, *VLLM, "evaluation.every=0"), tmp_path / "run")
    assert len(lines(tmp_path / "run", "training")) == 1


def test_a_server_that_tells_no_token_ids_is_named(tmp_path: Path, serving: Serving) -> None:
    def bare(body: dict[str, Any]) -> dict[str, Any]:
        completion = serving.completion(body)
        del completion["prompt_token_ids"], completion["choices"][0]["token_ids"]
        return completion

    with (
        Server(completion=bare, pages=serving.pages, listed=[{"id": BASE}]) as old,
        pytest.raises(TrainingError, match="vLLM"),
    ):
        train(make_settings(tmp_path, old, *VLLM, "evaluation.every=0"), tmp_path / "run")
