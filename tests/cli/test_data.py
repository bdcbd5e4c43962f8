"""`memagent data`: what it writes, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memagent.cli import main
from memagent.tasks import RULER, TASKS, load_examples
from server import Server

Captured = pytest.CaptureFixture[str]


def test_examples_are_made_to_a_file(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "vt.jsonl.gz"
    flags = ["--length", "3000", "--count", "3", "--seed", "7", "--out", str(out)]
    assert main(["data", "make", "vt", *flags]) == 0
    examples = list(load_examples(out))
    assert [example.id for example in examples] == [f"vt-3000-7-{number}" for number in range(3)]
    stderr = capsys.readouterr().err
    assert (
        "3 examples, 2,9" in stderr
        and str(out) in stderr
        and "estimated" in stderr
        and "sample" not in stderr
    )
    assert main(["data", "make", "vt", *flags, "--start", "2", "--count", "1"]) == 0
    assert list(load_examples(out)) == examples[2:]


def test_a_tokenizer_counts_the_length(tmp_path: Path, capsys: Captured) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "a.jsonl"
    flags = ["--length", "2000", "--count", "1", "--out", str(out), "--tokenizer", str(tmp_path)]
    assert main(["data", "make", "niah_single_1", *flags]) == 0
    (example,) = load_examples(out)
    assert example.length_tokens == len(example.document.split()) > 1800
    assert "estimated" not in capsys.readouterr().err


def test_documents_positions_and_a_set_of_one_s_own(tmp_path: Path, capsys: Captured) -> None:
    rows = [
        {"question": f"Q{number}?", "answer": "A", "supporting_facts": [[f"T{number}", 0]],
         "context": [[f"T{number}", [f"Text {number}."]]]}
        for number in range(30)
    ]  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    out = tmp_path / "hqa.jsonl"
    flags = ["--hotpot", str(tmp_path / "mine.json"), "--count", "2", "--out", str(out)]
    assert main(["data", "make", "hqa", "--documents", "20", "--positions", "ruler", *flags]) == 0
    first, second = load_examples(out)
    assert first.document.count("Document ") == 20
    headings = [example.document[: example.document.index(f"\nT{number}\n")].rpartition("\n")[2]
                for number, example in enumerate((first, second))]  # fmt: skip
    assert headings[0] == headings[1], "the gold document stands in the same slot"
    assert "sample" not in capsys.readouterr().err


def test_the_sample_is_named_for_what_it_is(tmp_path: Path, capsys: Captured) -> None:
    flags = ["--documents", "20", "--count", "1", "--out", str(tmp_path / "a.jsonl")]
    assert main(["data", "make", "hqa", *flags]) == 0
    stderr = capsys.readouterr().err
    assert "hotpot: using the small sample" in stderr and "memagent data fetch hotpot" in stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["niah", "--length", "999"], "no task 'niah'"),
        (["vt", "--length", "20"], "too few"),
        (["vt"], "needs a length in tokens: give --length"),
        (["hqa", "--length", "999", "--documents", "9"], "give --length or --documents, not both"),
        (["vt", "--length", "0"], "--length is 0: it must be above 0"),
        (["vt", "--length", "3000", "--count", "0"], "--count': 0 is not in the range"),
        (["vt", "--length", "3000", "--start", "-1"], "--start': -1 is not in the range"),
        (["vt", "--length", "3000", "--tokenizer", "none.json"], "none.json"),
        (["longbench_qasper"], "THUDM/LongBench"),
        (["longbench_v2_long", "--longbench-v2", "none.json"], "there is no file none.json"),
        (["hqa", "--documents", "20", "--hotpot", "none.json"], "there is no file none.json"),
        (["musique", "--documents", "20", "--count", "16"], "the set has 15 questions"),
        (["musique", "--documents", "20", "--start", "15"], "the set has 15 questions"),
    ],
)
def test_impossible_data_is_refused_and_leaves_no_file(
    flags: list[str], message: str, tmp_path: Path, capsys: Captured
) -> None:
    assert main(["data", "make", "--count", "1", "--out", str(tmp_path / "a.jsonl"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_list_names_every_task_and_where_its_texts_come_from(capsys: Captured) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(TASKS) and len(RULER) == 13
    assert next(line for line in lines if line.startswith("qa_2 ")).endswith("hotpot: the sample")
    assert "longbench_v2: missing" in lines[-1]


def test_fetching_what_has_another_home_tells_which(capsys: Captured) -> None:
    assert main(["data", "fetch", "2wiki"]) == 2
    assert "Alab-NII/2wikimultihop" in capsys.readouterr().err


def test_the_filter_drops_what_the_model_knows(
    serve: Callable[..., Server], tmp_path: Path, capsys: Captured
) -> None:
    rows = [
        {"problem": f"Which is number {n}?", "document": "It is 1.", "answers": [f"{n}"]} for n in range(4)
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    server = serve(lambda chat: "The answer is 2." if "number 2" in chat[-1]["content"] else "I cannot say")
    flags = ["--base-url", server.base_url, "--api-key", "x", "--model", "m", "--attempts", "3"]
    out = tmp_path / "kept.jsonl"
    assert main(["data", "filter", str(tmp_path / "all.jsonl"), "--out", str(out), *flags]) == 0
    assert [example.answers for example in load_examples(out)] == [("0",), ("1",), ("3",)]
    assert "3 of 4 kept" in capsys.readouterr().err
    requests = server.asked
    assert len(requests) == 3 * 3 + 1 and {body["temperature"] for body in requests} == {1.0}


def test_the_filter_needs_an_attempt_at_least(tmp_path: Path, capsys: Captured) -> None:
    assert main(["data", "filter", "a.jsonl", "--out", str(tmp_path / "b"), "--attempts", "0"]) == 2
    assert "0 is not in the range" in capsys.readouterr().err
