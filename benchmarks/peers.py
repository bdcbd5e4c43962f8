"""The readers that `compare.py` compares: one process each, in the environment that it needs.

Started as `python peers.py NAME SETTINGS BASE_URL [MODEL]`. Prints its packages' versions, then takes jobs as
JSON lines on standard input, and answers each with its seconds, answers and errors. Libraries are used as
their documentation shows, with their own retries. Our readers split the file themselves; all others get the
chunks that we make of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contestants
from contestants import Endpoint
from measure import print_versions

_PASSAGE_CHARACTERS, _PASSAGES = 1024, 16


@dataclass(frozen=True)
class Task:
    """One read: a file, its chunks, the problem, and where a journal may be kept."""

    document: Path
    chunks: list[str]
    problem: str
    trace: Path

    @classmethod
    def load(cls, document: str, chunks: str, problem: str, trace: str) -> Task:
        """A task as a job describes it; `chunks` names a JSON file."""
        return cls(Path(document), json.loads(Path(chunks).read_text("utf-8")), problem, Path(trace))


Reader = Callable[[Task], Awaitable[str]]

_CALLS = 16  # side by side


def ours(endpoint: Endpoint, settings: str) -> Reader:
    """memagent: from the file on disk to the answer, with a journal. `settings` are those of reading."""
    from memagent import Read, open_document
    from memagent.documents.tokens import estimate_tokens
    from memagent.engines.openai import Connection, OpenAIEngine
    from memagent.settings import ReadSettings
    from memagent.types import Model

    options = json.loads(settings)
    model = Model("simulated", estimate_tokens, window_tokens=8192, calls=_CALLS)
    engine: OpenAIEngine | None = None

    async def read(task: Task) -> str:
        nonlocal engine
        engine = engine or OpenAIEngine(model, Connection(endpoint.base_url, concurrency=_CALLS))
        document, how = open_document(task.document), ReadSettings(**options)
        reading = Read(task.problem, document, engine, how, trace=task.trace, resume=task.trace.exists())
        async for _ in reading:
            pass
        return reading.answer

    return read


def langchain(endpoint: Endpoint, kind: str) -> Reader:
    """LangChain's question chains, `refine` or `map_reduce`, without its tokenizer, a download."""
    from langchain_classic.chains.question_answering import load_qa_chain
    from langchain_core.documents import Document

    def ids(text: str) -> list[int]:
        return [0] * (len(text) // 4)

    llm = contestants.langchain_model(endpoint, custom_get_token_ids=ids)
    with warnings.catch_warnings(action="ignore"):
        chain = load_qa_chain(llm, chain_type=kind)

    async def read(task: Task) -> str:
        documents = [Document(chunk) for chunk in task.chunks]
        reply = await chain.ainvoke({"input_documents": documents, "question": task.problem})
        return str(reply["output_text"])

    return read


def llamaindex(endpoint: Endpoint, mode: str) -> Reader:
    """LlamaIndex's response synthesizers, `refine` or `tree_summarize`."""
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer

    # Below the real window: LlamaIndex itself leaves no room for token counts that differ.
    llm = contestants.llamaindex_model(endpoint, window_tokens=8000)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode(mode), use_async=True)

    async def read(task: Task) -> str:
        return str(await synthesizer.aget_response(task.problem, task.chunks))

    return read


def published(endpoint: Endpoint, _: str) -> Reader:
    """The loop of MemAgent (arXiv 2507.02259), as described there; the prompts are ours.

    The memory is whatever the model replies. As in the authors' script, a failed call is not retried and
    counts as an empty reply.
    """
    complete = _client(endpoint, max_retries=0)

    async def ask(prompt: str) -> str:
        import openai

        try:
            return await complete(prompt)
        except openai.OpenAIError:
            return ""

    async def read(task: Task) -> str:
        memory = "No previous memory"
        question = f"<problem>\n{task.problem}\n</problem>\n"
        for chunk in task.chunks:
            memory = await ask(
                "You get a question, the memory of what was read before, and the next section of an article. "
                "Update the memory with what the section says for the question, and keep what matters of "
                f"the memory.\n\n{question}<memory>\n{memory}\n</memory>\n<section>\n{chunk}\n</section>\n\n"
                "The updated memory:"
            )
        return await ask(
            "Answer the question from the memory of what was read.\n\n"
            f"{question}<memory>\n{memory}\n</memory>\n\nYour answer:"
        )

    return read


def plain_rag(endpoint: Endpoint, _: str) -> Reader:
    """The sixteen passages of 256 tokens that BM25 (`bm25s`, default settings) ranks best, in one prompt."""
    import bm25s

    complete = _client(endpoint)

    async def read(task: Task) -> str:
        text = "".join(task.chunks)
        starts = range(0, len(text), _PASSAGE_CHARACTERS)
        passages = [text[start : start + _PASSAGE_CHARACTERS] for start in starts]
        index = bm25s.BM25(corpus=passages)
        index.index(bm25s.tokenize(passages, show_progress=False), show_progress=False)
        asked = bm25s.tokenize(task.problem, show_progress=False)
        best, _ = index.retrieve(asked, k=min(_PASSAGES, len(passages)), show_progress=False)
        context = "\n\n".join(best[0])
        return await complete(f"Context:\n{context}\n\nQuestion: {task.problem}\nAnswer from the context:")

    return read


def langextract(endpoint: Endpoint, settings: str) -> Reader:
    """langextract, its default sizes, its JSON schema from an example: `settings` have two and the prompt.

    The answer is JSON: the attributes of what it found, each with its place in the text.
    """
    import langextract
    from langextract.data import ExampleData, Extraction
    from langextract.factory import ModelConfig
    from langextract.prompt_validation import PromptValidationLevel

    options = json.loads(settings)
    limits = {
        "api_key": endpoint.api_key,
        "base_url": endpoint.base_url,
        "max_output_tokens": contestants.ANSWER_TOKENS,
    }
    config = ModelConfig(endpoint.model, provider="OpenAILanguageModel", provider_kwargs=limits)
    records = [Extraction(options["row"], text, attributes=values) for text, values in options["records"]]
    examples = [ExampleData(options["text"], records), ExampleData(options["without"], [])]

    def extract(text: str) -> str:
        result = langextract.extract(
            text,
            prompt_description=options["prompt"],
            examples=examples,
            prompt_validation_level=PromptValidationLevel.OFF,  # it refuses an example without records
            config=config,
            temperature=0.0,
            max_workers=1,
            show_progress=False,
        )
        placed = [item for item in result.extractions or () if item.char_interval and item.attributes]
        spans = [(item.char_interval.start_pos, item.char_interval.end_pos) for item in placed]
        return json.dumps([[*span, item.attributes] for span, item in zip(spans, placed, strict=True)])

    async def read(task: Task) -> str:
        return await asyncio.to_thread(extract, task.document.read_text("utf-8"))

    return read


def _client(endpoint: Endpoint, **settings: Any) -> Callable[[str], Awaitable[str]]:
    """The official client, with its own retries unless `settings` say otherwise."""
    import openai

    client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=600, **settings)

    async def complete(prompt: str) -> str:
        reply = await client.chat.completions.create(
            model=endpoint.model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=contestants.ANSWER_TOKENS,
        )
        return reply.choices[0].message.content or ""

    return complete


READERS: dict[str, Callable[[Endpoint, str], Reader]] = {
    "ours": ours,
    "langchain": langchain,
    "llamaindex": llamaindex,
    "published": published,
    "plain_rag": plain_rag,
    "langextract": langextract,
}


async def _attempt(reader: Reader, task: Task) -> tuple[str, str]:
    """The answer, or an empty one and the error."""
    try:
        return await reader(task), ""
    except Exception as error:  # noqa: BLE001 - whatever a library raises is reported as its failure
        return "", f"{type(error).__name__}: {error}"[:200]


async def _attempts(reader: Reader, tasks: list[Task]) -> dict[str, Any]:
    started = time.perf_counter()
    ended = await asyncio.gather(*(_attempt(reader, task) for task in tasks))
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "answers": [answer for answer, _ in ended],
        "errors": [error for _, error in ended],
    }


def main(name: str, settings: str, *endpoint: str) -> None:
    """Take jobs until standard input ends. What libraries print goes to standard error."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    reader = READERS[name](Endpoint(*endpoint), settings)
    print_versions((*contestants.PACKAGES, "bm25s", "langextract"), stdout)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            tasks = [Task.load(**task) for task in json.loads(line)["tasks"]]
            print(json.dumps(runner.run(_attempts(reader, tasks))), file=stdout, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
