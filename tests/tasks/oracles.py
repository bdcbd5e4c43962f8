"""Readers that solve each task from the document and the problem alone, and the tokenizer of these tests."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

from memagent.documents.tokens import load_tokenizer
from memagent.tasks import TASKS, Corpora
from memagent.tasks.corpora import SAMPLE, read_text
from memagent.tasks.passages import load_passages
from memagent.types import Example, TokenCounter


def solve(example: Example) -> str:
    """The answer, found in the document."""
    name = example.task.partition("_")[0]
    if name == "niah":
        return _needles(example)
    if name in ("vt", "cwe", "fwe"):
        return " ".join({"vt": _trace, "cwe": _common, "fwe": _coded}[name](example))
    return _question(example)


def _needles(example: Example) -> str:
    words = re.findall(r"[\w-]*\w", example.problem.partition(" give for ")[2].partition("?")[0])
    keys = set(words) - {"and"} | {" ".join(pair) for pair in pairwise(words)}
    needles = re.findall(r"One of the special magic \w+ for (.+?) is: (\S+)\.(?=\s|$)", example.document)
    return " ".join(value for key, value in needles if key in keys)


def _trace(example: Example) -> list[str]:
    value = re.findall(r"\d+", example.problem)[1]
    values: dict[str, str] = {}
    for name, operand in re.findall(r"^VAR (\w+) = (?:VAR )?(\w+)$", example.document, re.MULTILINE):
        values[name] = values.get(operand, operand)
    return [name for name, candidate in values.items() if candidate == value]


def _common(example: Example) -> list[str]:
    words = re.findall(r"\d+\. (.+?)(?= \d+\. |$)", example.document)
    return [word for word, _ in Counter(words).most_common(10)]


def _coded(example: Example) -> list[str]:
    words = Counter(word for word in example.document.split() if word != "...")
    return [word for word, _ in words.most_common(3)]


def _question(example: Example) -> str:
    """The gold answer, if every passage that it needs stands in the document, whole and numbered."""
    passages = load_passages(Corpora().find(TASKS[example.task].corpus or ""))
    question = next(question for question in passages.questions if question.problem == example.problem)
    documents = set(re.split(r"(?:\A|\n\n)Document \d+:\n", example.document))
    return question.answers[0] if documents.issuperset(question.gold) else ""


@cache
def bpe(folder: Path) -> TokenCounter:
    """A byte-level BPE tokenizer, trained on the sample's story: merges run across the words of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([read_text(SAMPLE / "essays.txt.gz")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder / "tokenizer.json")
