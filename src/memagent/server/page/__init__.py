"""The page that shows a memory as it grows: plain ES modules, served as they are or bundled into one file."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

_IMPORT = re.compile(r'^import [^;]*? from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|class|const)\b)", re.MULTILINE)
_POLICY = re.compile(r'(?<=http-equiv="Content-Security-Policy" content=")[^"]*')
_STYLE = '<link rel="stylesheet" href="page.css">\n'
_SCRIPT = '<script type="module" src="main.js"></script>\n'


def page_folder() -> Path:
    """The folder of the page's files: `index.html` and all that it loads."""
    return Path(__file__).parent


def served_files() -> dict[str, tuple[str, str]]:
    """The files of the page as the server sends them: each path with its content and media type."""
    folder = page_folder()
    index = folder.joinpath("index.html").read_text("utf-8").replace("<html ", '<html data-served="yes" ', 1)
    files = {
        "/": (index, "text/html"),
        "/page.css": (folder.joinpath("page.css").read_text("utf-8"), "text/css"),
    }
    return files | {
        f"/{path.name}": (path.read_text("utf-8"), "text/javascript") for path in folder.glob("*.js")
    }


def bound_page() -> tuple[str, str]:
    """The page as one HTML document, in two parts: elements with data go between them.

    Its policy lets a browser apply only its own script and style, and fetch nothing.
    """
    style = page_folder().joinpath("page.css").read_text("utf-8")
    script = "".join(_modules("main", set()))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = _POLICY.sub(lambda _: policy, page_folder().joinpath("index.html").read_text("utf-8"))
    head, body = html.replace(_STYLE, f"<style>{style}</style>\n").split(_SCRIPT)
    inner, end = body.rsplit("</body>", 1)
    return head + inner, f'<script type="module">{script}</script>\n</body>{end}'


def _modules(name: str, seen: set[str]) -> list[str]:
    """A module's code after that of its imports. No two modules may share a top-level name."""
    if name in seen:
        return []
    seen.add(name)
    code = page_folder().joinpath(f"{name}.js").read_text("utf-8")
    imported = [part for other in _IMPORT.findall(code) for part in _modules(other, seen)]
    return [*imported, _EXPORT.sub("", _IMPORT.sub("", code)), "\n"]


def _digest(code: str) -> str:
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
