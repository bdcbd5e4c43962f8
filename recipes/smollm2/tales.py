"""Questions on whole tales, from a set like FairytaleQA that has sections: tales.py SET FILE [EVERY].

A row has a `title`, a `passage_id` (the title and the number of a section, or those of several), a `context`
and its questions in `qas`. Every EVERY-th of all questions is taken (default: each).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from memagent.documents.tokens import estimate_tokens
from memagent.tasks import write_examples
from memagent.tasks.corpora import read_rows
from memagent.types import Example


def main() -> None:
    """Write an example for each question taken."""
    tales: dict[str, dict[int, str]] = defaultdict(dict)
    asked: list[tuple[str, str, tuple[str, ...]]] = []
    for _, row in read_rows(Path(sys.argv[1])):
        section = row["passage_id"].removeprefix(f"{row['title']}:")
        if section.isdecimal():  # others are sections joined, which stand alone as well
            tales[row["title"]][int(section)] = row["context"]
        asked += [(row["title"], it["question"], tuple(it["answers"])) for it in row["qas"]]
    texts = {title: "\n\n".join(text for _, text in sorted(them.items())) for title, them in tales.items()}
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    write_examples(
        Path(sys.argv[2]),
        (
            Example(f"tale-{number}", "tale", problem, texts[title], answers, estimate_tokens(texts[title]))
            for number, (title, problem, answers) in enumerate(asked)
            if number % every == 0
        ),
    )


if __name__ == "__main__":
    main()
