"""The readers that `overhead.py` compares: one process each, in the environment that it needs.

Started as `python contestants.py NAME PORT`. Prints its packages' versions, then takes jobs as JSON lines on
standard input and answers each with its seconds. Every reader creates its client once, before the clock
starts. The bare loops post exactly the requests that memagent makes; the peers get the same chunks, split
beforehand.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from measure import print_versions

PROBLEM = "Where was the blue carbuncle found, and who had put it there?"
ANSWER_TOKENS = 1024
_CHUNK = re.compile(r"<(chunk-\w+)>\n(.*)\n</\1>", re.DOTALL)


@dataclass(frozen=True)
class Job:
    """`reads` concurrent reads of one document: a file, its chunks, and memagent's requests for them."""

    reads: int
    document: Path
    chunks: list[str]
    requests: list[dict[str, Any]]


Contestant = Callable[[Job], Coroutine[Any, Any, None]]


class Endpoint(NamedTuple):
    """Where a model is; a server that has only one takes any name."""

    base_url: str
    model: str = "zero"

    @property
    def api_key(self) -> str:
        """The key in MEMAGENT_API_KEY, which processes inherit; clients want one, even if there is none."""
        return os.environ.get("MEMAGENT_API_KEY") or "none"


def ours(base_url: str, journal: bool) -> Contestant:
    """memagent: from the file on disk to the answer."""
    from memagent import Read, open_document
    from memagent.documents.tokens import estimate_tokens
    from memagent.engines.openai import Connection, OpenAIEngine
    from memagent.settings import ReadSettings
    from memagent.types import Model

    engine = OpenAIEngine(Model("zero", estimate_tokens), Connection(base_url, concurrency=1024))
    folder = tempfile.TemporaryDirectory()
    names = count()
    settings = ReadSettings(workflow="overwrite")

    async def read(job: Job) -> None:
        trace = Path(folder.name, str(next(names))) if journal else None
        reading = Read(PROBLEM, open_document(job.document), engine, settings, trace=trace)
        async for _ in reading:
            pass
        assert reading.answer

    return _concurrently(read)


def bare(base_url: str) -> Contestant:
    """The HTTP library that memagent uses, and nothing else."""
    import httpx2

    everyone = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx2.AsyncClient(base_url=base_url, limits=everyone, timeout=600)
    headers = {"Authorization": "Bearer none"}

    async def read(job: Job) -> None:
        for body in job.requests:
            reply = await client.post("/chat/completions", json=body, headers=headers)
            assert reply.raise_for_status().json()["choices"][0]["message"]["content"]

    return _concurrently(read)


def client_only(base_url: str) -> Contestant:
    """The openai client, called in its cheapest way."""
    import httpx2
    import openai

    everyone = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = openai.DefaultAsyncHttpxClient(limits=everyone, timeout=600)
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)

    async def read(job: Job) -> None:
        for body in job.requests:
            reply: Any = await client.post("/chat/completions", cast_to=object, body=body)
            assert reply["choices"][0]["message"]["content"]

    return _concurrently(read)


def langchain(base_url: str) -> Contestant:
    """LangChain's refine chain for questions, as documented."""
    from langchain_classic.chains.question_answering import load_qa_chain
    from langchain_core.documents import Document

    llm = langchain_model(Endpoint(base_url), max_retries=0)
    with warnings.catch_warnings(action="ignore"):
        chain = load_qa_chain(llm, chain_type="refine")

    async def read(job: Job) -> None:
        documents = [Document(chunk) for chunk in job.chunks]
        reply = await chain.ainvoke({"input_documents": documents, "question": PROBLEM})
        assert reply["output_text"]

    return _concurrently(read)


def llamaindex(base_url: str) -> Contestant:
    """LlamaIndex's refine response synthesizer, as documented."""
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer

    llm = llamaindex_model(Endpoint(base_url), window_tokens=32768, max_retries=0)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.REFINE)

    async def read(job: Job) -> None:
        assert await synthesizer.aget_response(PROBLEM, job.chunks)

    return _concurrently(read)


def langchain_model(endpoint: Endpoint, **settings: Any) -> Any:
    """LangChain's client for an endpoint, with its own defaults except for `settings`."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        temperature=0,
        max_completion_tokens=ANSWER_TOKENS,
        **settings,
    )


def llamaindex_model(endpoint: Endpoint, window_tokens: int, **settings: Any) -> Any:
    """LlamaIndex's client for an endpoint, with its own defaults except for `settings`."""
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=endpoint.model,
        api_base=endpoint.base_url,
        api_key=endpoint.api_key,
        temperature=0,
        max_tokens=ANSWER_TOKENS,
        is_chat_model=True,
        context_window=window_tokens,
        **settings,
    )


CONTESTANTS: dict[str, Callable[[str], Contestant]] = {
    "bare": bare,
    "openai": client_only,
    "memagent": lambda base_url: ours(base_url, journal=False),
    "memagent+journal": lambda base_url: ours(base_url, journal=True),
    "langchain": langchain,
    "llamaindex": llamaindex,
}


PACKAGES = (
    "memagent",
    "openai",
    "httpx2",
    "httpx",
    "langchain-classic",
    "langchain-openai",
    "llama-index-core",
    "llama-index-llms-openai-like",
)


def _concurrently(read: Contestant) -> Contestant:
    async def reads(job: Job) -> None:
        await asyncio.gather(*(read(job) for _ in range(job.reads)))

    return reads


def load_job(reads: int, document: str, requests: str) -> Job:
    """Load what a job needs before the clock starts. `requests` is a JSON file of request bodies."""
    bodies: list[dict[str, Any]] = json.loads(Path(requests).read_text("utf-8"))
    prompts = [body["messages"][-1]["content"] for body in bodies[:-1]]  # the last one asks for the answer
    chunks = [match[2] for prompt in prompts if (match := _CHUNK.search(prompt))]
    return Job(reads, Path(document), chunks, bodies)


def main(name: str, port: str) -> None:
    """Take jobs until standard input ends."""
    contestant = CONTESTANTS[name](f"http://127.0.0.1:{port}/v1")
    with asyncio.Runner() as runner:
        print_versions(PACKAGES, sys.stdout)
        for line in sys.stdin:
            job = load_job(**json.loads(line))
            processor, started = time.process_time(), time.perf_counter()
            runner.run(contestant(job))
            seconds = time.perf_counter() - started
            took = {"seconds": seconds, "processor_seconds": time.process_time() - processor}
            print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
