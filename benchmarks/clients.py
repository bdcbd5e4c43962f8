"""Other people's clients against `memagent serve`, each in its own environment, with 200,000 tokens.

Prints for each client whether the answer arrived, streamed and not, and whether the stream showed progress;
with --out, also writes this as JSON. The model is scripted; --folder keeps the environments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import venv
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from memagent.engines import ScriptedEngine
from memagent.server.app import create_app, listen, make_server
from memagent.server.limits import Keys, Limits
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Message
from server import facts_document, read_facts

QUESTION = "What are all the facts?"
LAST_FACT = "FACT-59"

# Each reads the text from a file and prints JSON: the whole answer, the streamed answer and the thoughts.
SCRIPTS = {
    "openai": (
        ["openai"],
        """
import openai
client = openai.OpenAI(base_url=url, api_key="none")
ask = dict(model="memagent", messages=[{"role": "user", "content": text}])
whole = client.chat.completions.create(**ask).choices[0].message.content
for chunk in client.chat.completions.create(stream=True, **ask):
    delta = chunk.choices[0].delta
    streamed += delta.content or ""
    thoughts += getattr(delta, "reasoning_content", None) or ""
""",
    ),
    "langchain-openai": (
        ["langchain-openai"],
        """
from langchain_openai import ChatOpenAI
model = ChatOpenAI(base_url=url, api_key="none", model="memagent")
whole = model.invoke(text).content
for chunk in model.stream(text):
    streamed += chunk.content
    thoughts += chunk.additional_kwargs.get("reasoning_content", "")
""",
    ),
    "llama-index OpenAILike": (
        ["llama-index-llms-openai-like"],
        """
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
model = OpenAILike(api_base=url, api_key="none", model="memagent", is_chat_model=True, timeout=600)
whole = model.chat([ChatMessage(role="user", content=text)]).message.content
for chunk in model.stream_chat([ChatMessage(role="user", content=text)]):
    streamed += chunk.delta or ""
    delta = chunk.raw.choices[0].delta if chunk.raw.choices else None
    thoughts += getattr(delta, "reasoning_content", None) or ""
""",
    ),
    "litellm": (
        ["litellm"],
        """
import litellm
ask = dict(model="openai/memagent", api_base=url, api_key="none",
           messages=[{"role": "user", "content": text}])
whole = litellm.completion(**ask).choices[0].message.content
for chunk in litellm.completion(stream=True, **ask):
    delta = chunk.choices[0].delta
    streamed += delta.content or ""
    thoughts += getattr(delta, "reasoning_content", None) or ""
""",
    ),
    "llm": (
        ["llm"],
        """
import os, pathlib
pathlib.Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(
    f"- model_id: memagent\\n  model_name: memagent\\n  api_base: {url}\\n  api_key_name: none\\n")
import llm
model = llm.get_model("memagent")
whole = model.prompt(text, stream=False, key="none").text()
for chunk in model.prompt(text, key="none"):
    streamed += chunk
""",
    ),
}
HEAD = 'import json, sys\nurl, text = sys.argv[1], open(sys.argv[2]).read()\nstreamed = thoughts = ""\n'
TAIL = '\nprint(json.dumps({"whole": whole, "streamed": streamed, "thoughts": thoughts}))\n'


def start(folder: Path) -> str:
    """Start a server in a thread; returns its base URL."""

    def reply(messages: tuple[Message, ...]) -> str:
        return read_facts([{"role": message.role, "content": message.content} for message in messages])

    settings = ReadSettings(workflow="overwrite", chunk_tokens=20_000, memory_tokens=2000, answer_tokens=2000)
    listener, limits = listen("127.0.0.1", 0, Keys()), Limits()
    app = create_app(ScriptedEngine(reply, window_tokens=50_000), settings, Store(folder), limits=limits)
    served = make_server(app, limits).serve(sockets=[listener])
    threading.Thread(target=asyncio.run, args=(served,), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def try_client(name: str, url: str, text: Path, folder: Path) -> dict[str, Any]:
    """Install and run a client; returns its version and how it did."""
    packages, script = SCRIPTS[name]
    venv_folder = folder / name.replace(" ", "-")
    python = venv_folder / "bin" / "python"
    if not python.exists():
        venv.create(venv_folder, with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages], check=True
    )
    tell = f"import importlib.metadata as m; print(m.version({packages[0]!r}))"
    version = subprocess.run([python, "-c", tell], capture_output=True, text=True, check=True).stdout.strip()
    environment = {**os.environ, "LLM_USER_PATH": str(venv_folder), "PYTHONPATH": ""}
    ran = subprocess.run(
        [python, "-c", HEAD + script + TAIL, url, text], capture_output=True, text=True, env=environment
    )
    if ran.returncode:
        return {"version": version, "error": ran.stderr.strip().splitlines()[-1]}
    output = json.loads(ran.stdout.splitlines()[-1])
    return {
        "version": version,
        "whole": LAST_FACT in output["whole"],
        "streamed": LAST_FACT in output["streamed"],
        "progress": "Read chunk 3 of" in output["thoughts"],
    }


def main() -> None:
    """Try the clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "memagent-clients")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as data:
        url = start(Path(data) / "server")
        text = Path(data) / "text.txt"
        text.write_text(
            f"<document>\n{facts_document(60)}{'word ' * 200_000}\n</document>\n\n{QUESTION}", "utf-8"
        )
        for name in options.clients:
            results[name] = try_client(name, url, text, options.folder)
            print(f"{name:24} {results[name]}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
