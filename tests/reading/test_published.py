"""Published readers: asked with the prompts in their authors' file, byte for byte, and by their settings.

The file here has the form of MemAgent's `recurrent/impls/memory.py` and `quickstart.py`, in words of our own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from memagent import Read, ReadSettings, ScriptedEngine, SettingsError, load_prompts, text_document
from memagent.cli import main
from memagent.concurrency import drain
from memagent.engines.adapters import find_trained
from memagent.reading.workflows import choose_workflow
from memagent.types import Trained
from server import Server

STORY = Path(__file__).parents[2] / "examples" / "blue_carbuncle.txt"
NAME = "BytedTsinghua-SIA/RL-MemoryAgent-7B"
UPDATE = """Here are a question, the notes so far and a part of a book. Bring the notes up to date.

<problem>~
{prompt}
</problem>

<memory>
{memory}
</memory>

<section>
{chunk}
</section>

Notes:
""".replace("~", " ")
ANSWER = """Answer from the notes, inside \\boxed{{}}.

<problem>~
{prompt}
</problem>

<memory>
{memory}
</memory>

Reply:
""".replace("~", " ")
THEIRS = f'''import torch
from verl.protocol import DataProto

logger = logging.getLogger(__file__)
open({{ran!r}}, "w").write("this file was run")

class MemoryConfig(RConfig):
    chunk_size: int  # in tokens
    TEMPLATE = "not this one"

TEMPLATE = """{UPDATE}"""

{{answer}} = """{ANSWER.replace(chr(92), chr(92) * 2)}"""
{{more}}

class MemoryAgent(RAgent):
    def __init__(self, tokenizer: PreTrainedTokenizer, config: MemoryConfig):
        self.NO_MEMORY_TOKENS = tokenizer.encode("No previous memory", add_special_tokens=False)
'''


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Path]:
    def write(answer: str = "TEMPLATE_FINAL_BOXED", more: str = "") -> Path:
        path, ran = tmp_path / "memory.py", tmp_path / "ran"
        filled = THEIRS.replace("{ran!r}", repr(str(ran))).replace("{answer}", answer).replace("{more}", more)
        path.write_text(filled, "utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([STORY.read_text("utf-8")], trainer)
    return tokenizer


def test_the_calls_are_those_of_the_authors_program(
    theirs: Callable[..., Path], tokenizer: Tokenizer, serve: Callable[..., Server], tmp_path: Path
) -> None:
    problem, story = "Who hid the {stone}, and where?", STORY.read_text("utf-8").strip()
    document = tmp_path / "story.txt"
    document.write_text(story, "utf-8")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    replies = [f"Found {{memory}} in <b>part {number}</b>.\n\n- and \\more" for number in range(9)]
    remaining = iter(replies)
    server = serve(lambda _messages: next(remaining), listed=[{"id": NAME, "max_model_len": 32_768}])
    command = ["ask", problem, str(document), "--base-url", server.base_url, "--model", NAME]
    options = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--templates", str(theirs())]

    assert main([*command, *options, "--quiet"]) == 0

    ids = tokenizer.encode(story).ids
    chunks = [tokenizer.decode(ids[start : start + 5000]) for start in range(0, len(ids), 5000)]
    assert len(chunks) > 2
    memories = ["No previous memory", *replies]
    expected = [
        UPDATE.format(prompt=problem, memory=memory, chunk=chunk)
        for memory, chunk in zip(memories, chunks, strict=False)
    ]
    expected.append(ANSWER.format(prompt=problem, memory=memories[len(chunks)]))
    assert [body["messages"] for body in server.asked] == [
        [{"role": "user", "content": prompt}] for prompt in expected
    ]
    sampling = [(body["temperature"], body["top_p"], body["max_tokens"]) for body in server.asked]
    assert set(sampling) == {(0.7, 0.95, 1024)}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("answer", "more", "empty"),
    [
        ("TEMPLATE_FINAL_BOXED", "", "No previous memory"),
        ("TEMPLATE_FINAL", 'NO_MEMORY = "Nothing yet"', "Nothing yet"),
        ("TEMPLATE_FINAL", 'NO_MEMORY = f"Nothing {yet}"', "No previous memory"),
    ],
)
def test_the_prompts_of_each_of_their_files(
    theirs: Callable[..., Path], answer: str, more: str, empty: str
) -> None:
    prompts = load_prompts(theirs(answer, more))
    (update,), (final,) = (
        prompts.fill("update", problem="Q", chunk="C\n", memory=""),
        prompts.fill("answer", problem="Q", memory="M "),
    )
    assert update.content == UPDATE.format(prompt="Q", memory=empty, chunk="C\n")
    assert final.content == ANSWER.format(prompt="Q", memory="M ")
    assert (prompts.workflow, prompts.asks, prompts.system) == ("overwrite", False, "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("TEMPLATE = ", "it is not valid Python"),
        ("TEMPLATE = 'a\0'", "it is not valid Python"),
        ("x = 1", "must assign texts to TEMPLATE and TEMPLATE_FINAL_BOXED or .*, but has no text"),
        (
            "TEMPLATE_CHUNK = ''\nTEMPLATE_FINAL_BOXED = ''",
            "but has TEMPLATE_CHUNK, TEMPLATE_FINAL_BOXED:",
        ),
        (
            "TEMPLATE = '{prompt}{memory}{chunk}{recalled_memory}'\nTEMPLATE_FINAL = '{prompt}{memory}'",
            r"TEMPLATE has the slot \{recalled_memory\}, .* needs its authors' program",
        ),
        ("TEMPLATE = '{prompt!r}'\nTEMPLATE_FINAL = ''", r"TEMPLATE has the slot \{prompt\}"),
        ("TEMPLATE = '{'\nTEMPLATE_FINAL = ''", "TEMPLATE is not a template of str.format"),
        ("TEMPLATE = '{prompt}{chunk}'\nTEMPLATE_FINAL = ''", r"the update template lacks \{memory\}"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "memory.py"
    path.write_text(source, "utf-8")
    with pytest.raises(SettingsError, match=message) as refused:
        load_prompts(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "BytedTsinghua-SIA/RL-MemoryAgent-14B",
        "RL-MemoryAgent-14B-Q4_K_M",
        "/models/RL-MemoryAgent-7B/",
        "hf.co/somebody/rl-memoryagent-7b-gguf:Q4_K_M",
    ],
)
def test_a_published_reader_is_known_by_its_name(name: str) -> None:
    trained = find_trained(name)
    assert trained.workflow == "overwrite" and trained.budgets["chunk_tokens"] == 5000
    assert trained.settings == {"temperature": 0.7, "top_p": 0.95, "chunk_ends": "exact"}


@pytest.mark.parametrize("name", ["", "Qwen2.5-7B-Instruct", "/data/RL-MemoryAgent-7B/other.gguf", "a/b-RL-"])
def test_others_are_not(name: str) -> None:
    assert find_trained(name) == Trained()


def test_what_the_user_sets_comes_before_how_a_model_was_trained() -> None:
    trained = find_trained(NAME)
    settings = ReadSettings(temperature=0.0, chunk_ends="natural").fill_from(trained)
    assert (settings.temperature, settings.top_p, settings.chunk_ends) == (0.0, 0.95, "natural")
    later = ReadSettings().replace(seed=1).fill_from(trained)
    assert (later.temperature, later.top_p, later.seed) == (0.7, 0.95, 1)
    assert choose_workflow(ReadSettings(workflow="gated"), trained)[0] == "gated"


def test_its_settings_are_on_record(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _messages: "a hat")
    engine.model = replace(engine.model, trained=find_trained(NAME))
    journal = tmp_path / "journal.jsonl"
    reading = Read("Who?", text_document("A hat."), engine, trace=journal)
    asyncio.run(drain(aiter(reading)))
    header = json.loads(journal.read_text("utf-8").splitlines()[0])
    assert header["workflow"] == "overwrite" and header["chunk_ends"] == "exact"
    assert header["sampling"] == {"temperature": 0.7, "top_p": 0.95, "seed": None}


def test_an_evaluation_records_the_settings_in_force_and_scores_what_is_in_the_box(
    theirs: Callable[..., Path], serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(lambda _messages: "It was \\boxed{a goose}.", listed=[{"id": NAME}])
    rows = tmp_path / "rows.jsonl"
    row = {"problem": "Where?", "document": "In a goose.", "answers": ["a goose"]}
    rows.write_text(json.dumps(row), "utf-8")
    command = ["eval", "--examples", str(rows), "--scorer", "exact_match", "--workflow", "overwrite"]
    options = ["--base-url", server.base_url, "--templates", str(theirs()), "--out", str(tmp_path / "out")]
    assert main([*command, *options, "--quiet"]) == 0
    header = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))
    settings = {name: header["settings"][name] for name in ("temperature", "top_p", "chunk_ends")}
    assert settings == {"temperature": 0.7, "top_p": 0.95, "chunk_ends": "exact"}
    assert json.loads((tmp_path / "out" / "rows.jsonl").read_text("utf-8"))["score"] == 1.0


def test_it_is_said_once_that_its_prompts_are_missing(
    theirs: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "memagent")
    trained = find_trained("RL-MemoryAgent-7B-told-once")
    choose_workflow(ReadSettings(templates=str(theirs())), trained)
    choose_workflow(ReadSettings(workflow="gated"), trained)
    assert caplog.messages == []
    choose_workflow(ReadSettings(), trained)
    choose_workflow(ReadSettings(), trained)
    (message,) = caplog.messages
    assert message.startswith("RL-MemoryAgent-7B-told-once was trained with its authors' prompts")
    assert "git clone https://github.com/BytedTsinghua-SIA/MemAgent, " in message and "/memory.py" in message
