"""How many files of real corpora `neutralise` alters, by file type, and whether all are restored.

    python benchmarks/unharmed.py FOLDER... [--json FILE] [--show]

The prompts are our own, with delimiters that no text contains. `--show` names each altered file with the
first altered place.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from memagent.prompts import GATED

KINDS = {
    "Python": (".py", ".pyi"),
    "C and C++": (".h", ".hpp", ".hh", ".hxx", ".cuh", ".inl", ".c", ".cc", ".cpp"),
    "Rust": (".rs",),
    "JavaScript": (".js", ".mjs", ".cjs", ".ts"),
    "HTML": (".html", ".htm", ".xml", ".svg"),
    "Markdown": (".md", ".rst", ".txt"),
}
_MAX_BYTES = 2_000_000


def texts(folders: list[Path]) -> Iterator[tuple[str, Path, str]]:
    """The kind, path and text of each file; C++ headers without a suffix are recognised by their folder."""
    kind_of = {ending: kind for kind, endings in KINDS.items() for ending in endings}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            kind = kind_of.get(path.suffix) or ("C and C++" if "include" in path.parts else "")
            if kind and path.is_file() and not path.is_symlink() and path.stat().st_size < _MAX_BYTES:
                try:
                    yield kind, path, path.read_text("utf-8")
                except UnicodeDecodeError:
                    continue


def first_place(text: str, safe: str) -> str:
    """What surrounds the first difference between the texts."""
    at = next((at for at, (a, b) in enumerate(zip(text, safe, strict=False)) if a != b), 0)
    return repr(text[max(0, at - 20) : at + 30])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    prompts = GATED
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for kind, path, text in texts(given.folders):
        counts[kind]["files"] += 1
        safe = prompts.neutralise(text)
        counts[kind]["altered"] += safe != text
        counts[kind]["not restored"] += prompts.restore(safe) != text
        if given.show and safe != text:
            print(f"{path}\t{first_place(text, safe)}")
    print(f"{'kind':12} {'files':>8} {'altered':>14} {'not restored':>13}")
    for kind, row in counts.items():
        share = f"{row['altered']} ({100 * row['altered'] / row['files']:.3f}%)"
        print(f"{kind:12} {row['files']:8} {share:>14} {row['not restored']:13}")
    if given.json:
        given.json.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
