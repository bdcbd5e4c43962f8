"""The snippets of docs/serving.md run one after another, against a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from memagent.reading.read import NOT_FOUND

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


def test_the_snippets_run(
    serving: Any,
    facts: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = serving(facts(window_tokens=6000))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "report.md").write_text("A report.", "utf-8")
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(snippets) == 3
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet.replace("http://127.0.0.1:8321", served.address), names)
    assert capsys.readouterr().out.strip() == NOT_FOUND


def test_every_route_is_on_the_page(serving: Any) -> None:
    text = PAGE.replace("`GET` and `DELETE /v1/files/{id}`", "`GET /v1/files/{id}`, `DELETE /v1/files/{id}`")
    with serving().client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    routes -= {"GET /v1/models", "GET /v1/models/{name}", "POST /v1/chat/completions"}  # in the text
    assert [route for route in sorted(routes) if f"`{route}`" not in text] == []
