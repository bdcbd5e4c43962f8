"""Counting tokens: the estimate, tokenizer files, and shortening to a limit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from base64 import b64encode, encodebytes, urlsafe_b64encode
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from memagent import SettingsError
from memagent.documents.tokens import (
    estimate_tokens,
    fewest_tokens,
    load_tokenizer,
    shorten,
    tokenizer_name,
)
from memagent.types import TokenCounter

SENTENCES = ["The thief hid the blue stone inside the goose.", "Holmes read the hat.", "naïve café, 青い宝石"]


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 10, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json as published ones are: with special tokens, truncation and padding switched on."""
    tokenizer = trained()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="<unk>")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


# Tokenizer files


@pytest.mark.parametrize("text", ["", "The thief", " ".join(SENTENCES * 20), "青い宝石 \r\n\t😀", "<s>"])
def test_a_tokenizer_counts_all_of_the_text_and_no_more(tokenizer_file: Path, text: str) -> None:
    count = load_tokenizer(tokenizer_file)
    assert count(text) == len(trained().encode(text, add_special_tokens=False).ids)


def test_a_folder_is_its_tokenizer_file(tokenizer_file: Path) -> None:
    assert load_tokenizer(str(tokenizer_file.parent))("The thief") == load_tokenizer(tokenizer_file)(
        "The thief"
    )


def test_a_tokenizer_is_named_by_its_content(tokenizer_file: Path, tmp_path: Path) -> None:
    moved = tmp_path / "tokenizer.json"
    moved.write_bytes(tokenizer_file.read_bytes())
    assert tokenizer_name(moved) == tokenizer_name(str(tmp_path)) == tokenizer_name(tokenizer_file)
    moved.write_text(trained().to_str())
    assert tokenizer_name(moved) != tokenizer_name(tokenizer_file)


def test_a_lone_surrogate_counts_as_what_is_sent_in_its_place(tokenizer_file: Path) -> None:
    count = load_tokenizer(tokenizer_file)
    assert count("a\ud800b") == count("a\ufffdb")


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"not JSON", b"\xff\xfe", json.dumps({"model": 3}).encode()]
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load_tokenizer(path)


def test_a_pipe_is_no_tokenizer_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "tokenizer.json"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(SettingsError, match="is not a regular file"):
            load_tokenizer(path)


@pytest.mark.slow
def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from memagent.documents.tokens import load_tokenizer\nfrom memagent import SettingsError\n"
        "try: load_tokenizer('x')\nexcept SettingsError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "`tokenizer` needs a package: run python -m pip install -e '.[tokenizers]' "
        "in the checkout of memagent\n"
    )


# The estimate


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(
            ("", 0),
            ("abc", 1),
            (" word", 2),
            ("responsibilities", 3),
            ("k" * 36, 27),
            ("1200", 4),
            ("\n\n", 2),
        ),
        *(("a    b", 3), ("青い", 2), ("Привет", 4), ("...", 2), ("\ud800", 1), ("🙂", 2)),
    ],
)
def test_the_estimate_counts_bytes_by_kind(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(("text", "each"), [("ab ", 0.91), (".7", 1.65), ("é", 0.55), ("漢", 1), ("🙂", 2)])
def test_the_estimate_of_a_long_text_is_exact(text: str, each: float) -> None:
    assert estimate_tokens(text * 300_100) == round(each * 300_100)


def test_the_estimate_errs_on_the_high_side() -> None:
    story = (Path(__file__).parents[2] / "examples" / "blue_carbuncle.txt").read_text("utf-8")
    words = len(story.split())
    assert words * 1.2 < estimate_tokens(story) < words * 2  # modern tokenizers: about 1.3 to 1.4


CHANCE = random.Random(0)
BYTES = CHANCE.randbytes(6000)
HEX = BYTES.hex()
UUIDS = [str(UUID(int=CHANCE.getrandbits(128), version=4)) for _ in range(200)]
LOG = "\n".join(f"{uuid} GET /api?sig={urlsafe_b64encode(CHANCE.randbytes(24)).decode()}" for uuid in UUIDS)


@pytest.mark.parametrize(
    ("text", "most"),  # the most tokens that one of the tokenizers below makes of it
    [
        pytest.param(b64encode(BYTES).decode(), 6467, id="base64"),
        pytest.param(encodebytes(BYTES).decode(), 6581, id="base64 in lines"),
        pytest.param(HEX, 10748, id="hex"),
        pytest.param("\n".join(UUIDS), 6805, id="uuids"),
        pytest.param(LOG, 13216, id="log of uuids"),
    ],
)
def test_the_estimate_of_keys_and_encoded_files_is_not_below_the_truth(text: str, most: int) -> None:
    """Counted by the tokenizers of Qwen2.5, SmolLM2, Mistral (Tekken), DeepSeek and GPT-4 (cl100k)."""
    assert 0.9 * most <= estimate_tokens(text) < 1.5 * most


# Shortening


COUNTERS: list[TokenCounter] = [
    len,
    lambda text: len(text.split()),
    estimate_tokens,
    lambda text: len(text) // 3 * 2,
]
BPE = trained()
COUNTERS.append(lambda text: len(BPE.encode(text, add_special_tokens=False).ids))


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.integers(0, 60),
    st.sampled_from(COUNTERS),
)
def test_shortened_text_is_a_beginning_within_the_limit(text: str, limit: int, count: TokenCounter) -> None:
    short = shorten(text, limit, count)
    assert text.startswith(short)
    assert count(short) <= limit
    if count(text) <= limit:
        assert short == text


def test_the_longest_beginning_that_fits() -> None:
    assert shorten("abcdef", 4, len) == "abcd"
    assert shorten("one two three four", 2, lambda text: len(text.split())) == "one two"
    assert shorten("one   two", 4, len) == "one"
    assert shorten("abc", 0, len) == ""


def test_shortening_a_long_text_takes_few_counts() -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return len(text)

    assert len(shorten("x" * 1_000_000, 1000, count)) == 1000
    assert calls < 25


# The lower bound


SPACES = "".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace())


@pytest.mark.parametrize(
    ("text", "fewest"),
    [("", 0), ("a".join(SPACES), len(SPACES) - 1), ("漢" * 9, 4), ("Привет, 漢", 2), ("a" * 160, 10)],
)
def test_the_fewest_tokens_are_words_thirds_of_ideographs_or_16_characters(text: str, fewest: int) -> None:
    assert fewest_tokens(text) == fewest
