"""GGUF files of the hub: which one is meant, fetched from a hub on loopback, found in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from memagent.engines.gguf.hub import models_in

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

COMMIT = "c0ffee" * 6 + "abcd"
GGUF = b"GGUF" + bytes(range(256)) * 64


class Hub(ThreadingHTTPServer):
    """Repositories of files, as the hub serves them. `cut` drops the connection in the middle, so often."""

    daemon_threads = True

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.repos = repos
        self.gated: set[str] = set()
        self.cut = 0
        self.ranges: list[str] = []
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Connection(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        match = re.match(r"/api/models/([^/]+/[^/?]+)", self.path)
        if match is None:
            return self._file(body=True)
        if (files := self.server.repos.get(match[1])) is None:
            return self._refuse("RepoNotFound")
        listing = {"id": match[1], "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        return self._send(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    def _file(self, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        match = re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        if match is None or (content := self.server.repos.get(match[1], {}).get(match[2])) is None:
            return self._refuse("RepoNotFound")
        if match[1] in self.server.gated:
            return self._refuse("GatedRepo")
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if not body:
            return self._send(200, {**headers, "Content-Length": str(len(content))}, b"")
        if wanted := self.headers.get("Range"):
            self.server.ranges.append(wanted)
            content = content[int(wanted.removeprefix("bytes=").partition("-")[0]) :]
        if self.server.cut:
            self.server.cut -= 1
            self.close_connection = True
            return self._send(
                200, {**headers, "Content-Length": str(len(content))}, content[: len(content) // 2]
            )
        return self._send(206 if wanted else 200, headers, content)

    def _refuse(self, code: str) -> None:
        self._send(403 if code == "GatedRepo" else 404, {"X-Error-Code": code, "X-Error-Message": code}, b"")

    def _send(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    split = {f"big-Q4_K_M-0000{part}-of-00002.gguf": GGUF + bytes([part]) for part in (1, 2)}
    server = Hub(
        {
            "org/small-GGUF": {"README.md": b"#", **{f"small-{name}.gguf": GGUF + name.encode()
                                                     for name in ("Q2_K", "Q4_K_M", "Q8_0")}},
            "org/eights": {"eights.Q8_0.gguf": GGUF, "eights.f16.gguf": GGUF, "mmproj-Q4_K_M.gguf": b"?"},
            "org/big": split,
            "org/none": {"model.safetensors": b"?"},
            "org/gated": {"gated-Q4_K_M.gguf": GGUF},
        }
    )  # fmt: skip
    server.gated.add("org/gated")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(hub: Hub, home: Path, *names: str, **environment: str) -> list[str]:
    """What each name comes to, in a process of its own: the library reads its settings when it is loaded."""
    code = (
        "import json, sys\n"
        "from memagent import MemAgentError\n"
        "from memagent.engines.gguf import hub\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        print(hub.fetch(name, bars=False))\n"
        "    except MemAgentError as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
        "print(json.dumps([[it.name, it.size_bytes] for it in hub.list_cached()]))\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *names], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_files_are_fetched_into_the_cache_and_found_there(hub: Hub, tmp_path: Path) -> None:
    names = ["hf:org/small-GGUF", "hf:org/small-GGUF:q8_0", "hf:org/eights", "hf:org/big"]
    *paths, cache = fetch(hub, tmp_path, *names)
    assert [Path(path).name for path in paths] == [
        "small-Q4_K_M.gguf", "small-Q8_0.gguf", "eights.Q8_0.gguf", "big-Q4_K_M-00001-of-00002.gguf"
    ]  # fmt: skip
    assert all(Path(path).read_bytes().startswith(GGUF) and tmp_path in Path(path).parents for path in paths)
    second = Path(paths[3]).with_name("big-Q4_K_M-00002-of-00002.gguf")
    assert second.read_bytes() == GGUF + b"\x02"
    assert json.loads(cache) == [
        ["hf:org/big:Q4_K_M", 2 * len(GGUF) + 2],
        ["hf:org/eights:Q8_0", len(GGUF)],
        ["hf:org/small-GGUF:Q4_K_M", len(GGUF) + 6],
        ["hf:org/small-GGUF:Q8_0", len(GGUF) + 4],
    ]
    second.unlink()  # a model without one of its parts is none
    again, cache = fetch(hub, tmp_path, "hf:org/small-GGUF")
    assert again == paths[0] and "org/big" not in cache
    assert fetch(hub, tmp_path, "hf:org/big")[0] == paths[3] and second.exists()
    hub.asked.clear()
    hub.repos = {}
    once_more = ["hf:org/small-GGUF", "hf:org/small-GGUF:Q8_0", "hf:org/big"]
    assert fetch(hub, tmp_path, *once_more)[:3] == [paths[0], paths[1], paths[3]] and hub.asked == []
    assert fetch(hub, tmp_path, "hf:org/eights", HF_HUB_OFFLINE="1")[0] == paths[2]
    assert fetch(hub, tmp_path, "hf:org/eights", HF_ENDPOINT="http://127.0.0.1:9")[0] == paths[2]


def test_a_failed_fetch_is_explained(hub: Hub, tmp_path: Path) -> None:
    wrong = {
        "hf:org/small-GGUF:Q5_K_M": "org/small-GGUF has no Q5_K_M: it has Q2_K, Q4_K_M, Q8_0",
        "hf:org/none": "org/none has no GGUF file",
        "hf:org/gated": "set HF_TOKEN to a token of your account",
        "hf:org/unknown": f"there is no {hub.url}/org/unknown",
        "hf:only-a-name": "write it as hf:ORG/REPO",
        "hf:../../etc/passwd": "write it as hf:ORG/REPO",
    }
    for line, words in zip(fetch(hub, tmp_path, *wrong), wrong.values(), strict=False):
        assert line.startswith("SettingsError: ") and words in line
    offline = fetch(hub, tmp_path, "hf:org/small-GGUF", HF_HUB_OFFLINE="1")[0]
    assert "not in the cache" in offline and "HF_HUB_OFFLINE" in offline
    gone = fetch(hub, tmp_path, "hf:org/small-GGUF", HF_ENDPOINT="http://127.0.0.1:9")[0]
    assert gone.startswith("EngineError: http://127.0.0.1:9/org/small-GGUF cannot be fetched")


@pytest.mark.slow
def test_an_interrupted_fetch_continues(hub: Hub, tmp_path: Path) -> None:
    content = GGUF + bytes(24 * 2**20)  # the library writes ten MiB at a time
    hub.repos, hub.cut = {"org/large": {"large-Q4_K_M.gguf": content}}, 1
    first, *_ = fetch(hub, tmp_path, "hf:org/large")
    path, *_ = fetch(hub, tmp_path, "hf:org/large") if first.startswith("EngineError") else [first]
    assert Path(path).read_bytes() == content
    assert hub.ranges and hub.ranges[0] != "bytes=0-", "what was there was not sent again"


@pytest.mark.parametrize(
    ("files", "quantisations"),
    [
        (["a-Q4_K_M.gguf", "a-IQ4_XS.gguf"], {"Q4_K_M", "IQ4_XS"}),
        (["a.UD-Q4_K_XL.gguf", "BF16/a-BF16-00001-of-00002.gguf", "BF16/a-BF16-00002-of-00002.gguf"],
         {"UD-Q4_K_XL", "BF16"}),
        (["qwen2.5-7b-instruct-q4_k_m.gguf", "qwen2.5-7b-instruct-fp16.gguf"], {"Q4_K_M", "FP16"}),
        (["one-Q4_0.gguf", "two-Q4_0.gguf"], {"Q4_0", "two-Q4_0"}),
        (["plain.gguf", "README.md", "mmproj-model-f16.gguf", "imatrix.gguf", "a-lora-q8_0.gguf"], {"plain"}),
    ],
)  # fmt: skip
def test_quantisations_are_read_off_the_names(files: list[str], quantisations: set[str]) -> None:
    models = models_in(files)
    assert set(models) == quantisations
    assert all(models.values())
