"""LiteLLM's router with our configuration: what is too long for a model is read by `memagent serve`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server import Server, facts_document, read_facts

litellm = pytest.importorskip("litellm")
yaml = pytest.importorskip("yaml")

CONFIG = Path(__file__).parents[2] / "integrations" / "litellm.yaml"
QUESTION = "What are all the facts?"
LAST_FACT = "FACT-14"


@pytest.fixture
def small(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """The model that clients ask for, with a window of 6000 characters."""
    small = serve(lambda messages: "from the small model", window=6000)
    monkeypatch.setenv("QWEN_BASE_URL", small.base_url)
    return small


@pytest.fixture
def router(
    small: Server, serving: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Any]:
    """Routers by the configuration, for a model of so many tokens."""
    monkeypatch.setenv("MEMAGENT_SERVER", serving(read_facts, "--workflow", "overwrite"))

    def make_router(max_input_tokens: int) -> Any:
        config = yaml.safe_load(CONFIG.read_text("utf-8"))
        config["model_list"][0]["model_info"]["max_input_tokens"] = max_input_tokens
        return litellm.Router(config["model_list"], num_retries=0, **config["router_settings"])

    return make_router


def ask(router: Any, document: str, **options: Any) -> Any:
    turns = [{"role": "user", "content": document}, {"role": "user", "content": QUESTION}]
    return router.completion(model="qwen", messages=turns, **options)


def test_short_prompts_go_to_the_model_and_long_ones_are_read(router: Any, small: Server) -> None:
    routed = router(1500)
    assert ask(routed, "FACT-1: red.").choices[0].message.content == "from the small model"
    calls = len(small.asked)
    answer = ask(routed, facts_document(16, words=200)).choices[0].message.content
    assert LAST_FACT in answer
    assert len(small.asked) == calls  # it was counted, and not even tried


def test_what_the_model_refuses_as_too_long_is_read(router: Any, small: Server) -> None:
    streamed = ask(router(30_000), facts_document(16, words=200), stream=True)
    answer = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert LAST_FACT in answer
    assert len(small.asked) == 1
