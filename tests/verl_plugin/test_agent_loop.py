"""One attempt as verl's agent loop: its rows, what it is worth, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
from transformers import AutoTokenizer, GenerationConfig
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from memagent.documents.opening import text_document
from memagent.errors import MemAgentError, SettingsError
from memagent.training.verl.agent_loop import ExampleDataset
from verl_plugin.material import example

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


class Client(LLMServerClient):
    """verl's client with the replies of a function in place of servers; it keeps what it was asked."""

    def __init__(self, config: Any, tokenizer: Any, reply: Callable[[str], str]) -> None:
        super().__init__(config)
        self.asked: list[dict[str, Any]] = []
        self._tokenizer, self._reply = tokenizer, reply

    async def generate(self, request_id: str, **arguments: Any) -> TokenOutput:
        self.asked.append({"request_id": request_id, **arguments})
        text = self._reply(self._tokenizer.decode(arguments["prompt_ids"]))
        ids = [*self._tokenizer(text)["input_ids"], self._tokenizer.eos_token_id]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            extra_fields={"min_global_steps": 7, "max_global_steps": 7},
        )


@pytest.fixture
def attempt(compose: Callable[..., Any], model: Path) -> Callable[..., Any]:
    """Run the agent loop as verl's worker does, on a row of the data set; with the client it used."""

    def run(reply: Callable[[str], str], *overrides: str, row: int = 1, session: int = 0) -> Any:
        config, tokenizer = compose(*overrides), AutoTokenizer.from_pretrained(model)
        client = Client(config, tokenizer, reply)
        loop = hydra.utils.instantiate(
            config={"_target_": "memagent.training.verl.agent_loop.MemoryAgentLoop"},
            trainer_config=DictConfigWrap(config),
            server_manager=client,
            tokenizer=tokenizer,
            processor=None,
            hf_model_type="llama",
            dataset_cls=ExampleDataset,
            data_config=DictConfigWrap(config.data),
            tools=None,
        )
        fields = ExampleDataset(config.data.train_files)[row] | {"uid": "group", "session_id": session}
        return client, asyncio.run(loop.run(dict(GREEDY), **fields))

    return run


def knows(prompt: str) -> str:
    return "The code is 0815" if "<chunk" in prompt else "0815"


def test_conversations_are_rows_and_the_last_has_the_reward(attempt: Callable[..., Any]) -> None:
    client, outputs = attempt(knows)
    assert [output.prompt_ids for output in outputs] == [call["prompt_ids"] for call in client.asked]
    assert [output.reward_score for output in outputs] == [None, 1.0]
    assert outputs[-1].extra_fields["reward_extra_info"] == {
        "acc": 1.0,
        "conversations": 2,
        "no_answer": 0.0,
        "truncated": 0.0,
    }
    for output in outputs:
        stored = output.as_dict()  # what verl's metrics ask of each row
        assert stored["num_turns"] == 2 and stored["extra_fields"]["min_global_steps"] == 7
        assert len(stored["rollout_log_probs"]) == len(stored["responses"])


def test_the_prompts_are_those_of_the_package(attempt: Callable[..., Any], model: Path) -> None:
    from memagent.prompts import OVERWRITE

    _, outputs = attempt(knows)
    document = text_document(example(2, "0815", 2)["document"], is_example=True)
    prompts = OVERWRITE.for_document(document.mark)
    message = prompts.fill("answer", problem="What is the code?", memory="The code is 0815")[0].content
    tokenizer = AutoTokenizer.from_pretrained(model)
    chat = [{"role": "user", "content": message}]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert outputs[-1].prompt_ids == expected


def test_verl_decides_how_to_draw_and_the_read_how_much(attempt: Callable[..., Any]) -> None:
    client, _ = attempt(knows)
    assert [call["sampling_params"] for call in client.asked] == [
        {**GREEDY, "max_tokens": 48},
        {**GREEDY, "max_tokens": 24},
    ]


def test_an_empty_answer_is_worth_nothing_and_is_trained_on(attempt: Callable[..., Any]) -> None:
    client, outputs = attempt(lambda prompt: "The code is 0815" if "<chunk" in prompt else "")
    assert len(outputs) == len(client.asked) == 2
    assert outputs[-1].reward_score == 0.0 and len(outputs[-1].response_ids) == 1
    assert outputs[-1].extra_fields["reward_extra_info"]["no_answer"] == 1.0


def test_a_failure_of_the_server_is_not_an_attempt(attempt: Callable[..., Any]) -> None:
    def breaks(prompt: str) -> str:
        if "<chunk" in prompt:
            return "The code is 0815"
        raise ConnectionError("the server is gone")

    with pytest.raises(ConnectionError, match="the server is gone"):
        attempt(breaks)


@pytest.mark.parametrize(("ids", "reason"), [([], "completed"), ([5], "aborted")])
def test_a_reply_cut_off_by_the_server_is_not_an_attempt(
    attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, ids: list[int], reason: str
) -> None:
    async def cut_off(self: Any, request_id: str, **arguments: Any) -> TokenOutput:
        return TokenOutput(token_ids=ids, stop_reason=reason)

    monkeypatch.setattr(Client, "generate", cut_off)
    with pytest.raises(MemAgentError, match=f"{len(ids)} tokens .{reason}"):
        attempt(knows)


def test_a_chunk_too_long_for_the_prompt_is_read_in_halves(attempt: Callable[..., Any]) -> None:
    _, whole = attempt(knows, row=0)
    limit = max(len(output.prompt_ids) for output in whole) - 5
    _, halves = attempt(knows, f"data.max_prompt_length={limit}", "data.max_response_length=200", row=0)
    assert len(halves) > len(whole)
    assert max(len(output.prompt_ids) for output in halves) <= limit


def test_a_problem_too_long_is_an_error(attempt: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match="its budget is 2"):
        attempt(knows, "memagent.read.problem_tokens=2")


def test_attempts_at_an_example_share_a_server(attempt: Callable[..., Any]) -> None:
    first, _ = attempt(knows, session=0)
    second, _ = attempt(knows, session=1)
    assert {call["request_id"] for call in first.asked + second.asked} == {"group"}


def test_determinism_gives_every_call_its_own_seed(attempt: Callable[..., Any]) -> None:
    runs = [
        attempt(knows, "actor_rollout_ref.rollout.full_determinism=true", session=session)[0]
        for session in (0, 1, 1)
    ]
    seeds = [[call["sampling_params"]["seed"] for call in run.asked] for run in runs]
    assert len({*seeds[0], *seeds[1]}) == 4 and seeds[1] == seeds[2]
    assert runs[0].asked[0]["request_id"] != runs[1].asked[0]["request_id"]


def test_a_reply_near_its_limit_takes_reward_away(attempt: Callable[..., Any]) -> None:
    scorer = "memagent.scorer=substring_match"
    _, outputs = attempt(lambda prompt: knows(prompt) + " and" * 10, "memagent.overlong_tokens=24", scorer)
    longest = len(outputs[-1].response_ids)
    assert outputs[-1].reward_score == pytest.approx(1.0 - longest / 24)
    assert outputs[-1].extra_fields["reward_extra_info"]["acc"] == 1.0


def test_the_reward_may_be_a_function(attempt: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def half(example, trajectory):\n    return 0.5 * (trajectory.answer == example.answers[0])\n"
    )
    _, outputs = attempt(knows, f"memagent.reward={file}:half")
    assert outputs[-1].reward_score == 0.5


def test_the_reward_may_be_a_scorer(attempt: Callable[..., Any]) -> None:
    talk = lambda prompt: knows(prompt) + " it is"  # noqa: E731
    assert attempt(talk)[1][-1].reward_score == 0.0, "exact answers by default"
    assert attempt(talk, "memagent.scorer=substring_match")[1][-1].reward_score == 1.0


def test_a_failed_attempt_at_its_limit_loses_as_much_as_a_wrong_answer(attempt: Callable[..., Any]) -> None:
    def thinks(prompt: str) -> str:
        return "The code is 0815" if "<chunk" in prompt else "<think>" + " and" * 40

    _, outputs = attempt(thinks, "memagent.overlong_tokens=24")
    assert outputs[-1].extra_fields["reward_extra_info"]["no_answer"] == 1.0
    assert outputs[-1].reward_score == -1.0


def test_a_reply_may_end_with_any_token_that_the_model_lists(
    attempt: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    other = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids("<|endoftext|>")
    GenerationConfig(eos_token_id=[2, other]).save_pretrained(folder)
    generate = Client.generate

    async def ends_otherwise(self: Client, request_id: str, **arguments: Any) -> TokenOutput:
        output = await generate(self, request_id, **arguments)
        output.token_ids[-1] = other
        return output

    monkeypatch.setattr(Client, "generate", ends_otherwise)
    _, outputs = attempt(knows, f"actor_rollout_ref.model.path={folder}")
    assert outputs[-1].extra_fields["reward_extra_info"]["truncated"] == 0.0
    _, outputs = attempt(knows)
    assert outputs[-1].extra_fields["reward_extra_info"]["truncated"] == 1.0
