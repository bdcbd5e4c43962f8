"""Chats that fit the window, through the engine in this process: straight to llama.cpp's own server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from memagent.settings import EngineSettings, ReadSettings
from smollm2 import MODEL, needs_smollm2

pytestmark = needs_smollm2

BUDGETS = ReadSettings(problem_tokens=20, chunk_tokens=100, memory_tokens=16, answer_tokens=16)
HELLO: Any = [{"role": "user", "content": "Say hello."}]


def test_a_model_in_this_process_gets_what_fits_unchanged(serving: Any) -> None:
    engine = EngineSettings(model=str(MODEL), window_tokens=512, threads=1, retries=0)
    served = serving(engine, settings=BUDGETS)
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=120)
    (name, _) = [model.id for model in client.models.list()]

    def ask(**values: Any) -> Any:
        return client.chat.completions.create(**{"model": "memagent", "messages": HELLO, **values})

    whole = ask(temperature=0, max_tokens=3)
    assert whole.model == name  # its own reply, in its own words
    assert whole.usage.completion_tokens <= 3 and whole.choices[0].message.content
    chunks = list(ask(temperature=0, max_tokens=3, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    # What no read can give, and `Engine.complete` does not know.
    seven = ask(extra_body={"grammar": 'root ::= "seven"'}, max_tokens=9)
    assert seven.choices[0].message.content == "seven"
    (token,) = ask(temperature=0, logprobs=True, top_logprobs=2, max_tokens=1).choices[0].logprobs.content
    assert len(token.top_logprobs) == 2 and token.logprob <= 0
    with pytest.raises(openai.BadRequestError, match="must be between"):
        ask(n=2)  # in its words
