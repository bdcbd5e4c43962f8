"""Settings: where they come from, which place wins, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from memagent import EngineSettings, ReadSettings, Settings, SettingsError, load_settings
from memagent.settings import Names, settings_by_name, user_cache_path, user_config_path
from memagent.strict import StrictModel, build


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text, "utf-8")
    return path


def make_settings(**values: Any) -> Settings:
    """Settings with these values, each in the part that it belongs to."""
    parts: dict[str, dict[str, Any]] = {"engine": {}, "read": {}}
    for name, value in values.items():
        parts[settings_by_name()[name][0]][name] = value
    return Settings(EngineSettings(**parts["engine"]), ReadSettings(**parts["read"]))


# Places


def test_nothing_set_is_the_defaults() -> None:
    assert load_settings(environment={}) == make_settings()


def test_later_places_win(tmp_path: Path) -> None:
    file = config(tmp_path, "model = 'file'\nseed = 1\nthreads = 1\nretries = 1\n")
    environment = {"MEMAGENT_MODEL": "environment", "MEMAGENT_SEED": "2", "MEMAGENT_THREADS": "2"}
    loaded = load_settings({"model": "flag", "seed": 3}, file, environment)
    assert loaded == make_settings(model="flag", seed=3, threads=2, retries=1)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMAGENT_CHUNK_TOKENS", "77")
    assert load_settings().read.chunk_tokens == 77
    assert load_settings(environment={}).read.chunk_tokens is None


def test_nothing_is_read_on_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMAGENT_CHUNK_TOKENS", "77")
    assert Settings().read.chunk_tokens is None


def test_the_users_own_file_is_used_unless_one_is_named(tmp_path: Path) -> None:
    user_config_path().parent.mkdir(parents=True)
    user_config_path().write_text("model = 'own'\n")
    assert load_settings(environment={}).engine.model == "own"
    assert load_settings(file=config(tmp_path, "seed = 1"), environment={}) == make_settings(seed=1)


def test_paths_are_below_the_users_home(nobody: Path) -> None:
    assert nobody in user_config_path().parents
    assert nobody in user_cache_path().parents
    assert (user_config_path().name, user_cache_path().name) == ("config.toml", "memagent")


def test_the_variables_of_openai_count_unless_ours_are_set() -> None:
    theirs = {"OPENAI_BASE_URL": "http://theirs/v1", "OPENAI_API_KEY": "their-key", "OPENAI_ORG_ID": "x"}
    loaded = load_settings(environment=theirs)
    assert (loaded.engine.base_url, loaded.engine.api_key) == ("http://theirs/v1", "their-key")
    ours = theirs | {"MEMAGENT_BASE_URL": "http://ours/v1"}
    assert load_settings(environment=ours).engine.base_url == "http://ours/v1"
    assert load_settings({"base_url": "http://flag/v1"}, environment=ours).engine.base_url == "http://flag/v1"


def test_empty_variables_and_flags_of_none_are_not_set() -> None:
    environment = {"MEMAGENT_SEED": "", "MEMAGENT_MODEL": "", "OPENAI_API_KEY": "", "MEMAGENT_RETRIES": "2"}
    flags = {"temperature": None, "retries": None, "model": None}
    assert load_settings(flags, environment=environment) == make_settings(retries=2)


# Types and names


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("SEED", "-3", -3),
        ("TEMPERATURE", "0.5", 0.5),
        ("TEMPERATURE", "1", 1.0),
        ("TIMEOUT_SECONDS", "1e3", 1000.0),
        *(("CITE", text, True) for text in ("1", "true", "TRUE", "yes")),
        *(("CITE", text, False) for text in ("0", "false", "No")),
        ("MODEL", "1", "1"),
        ("WORKFLOW", "overwrite", "overwrite"),
    ],
)
def test_variables_become_their_type(name: str, text: str, value: Any) -> None:
    loaded = load_settings(environment={f"MEMAGENT_{name}": text})
    loaded_value = getattr(getattr(loaded, settings_by_name()[name.lower()][0]), name.lower())
    assert loaded_value == value
    assert type(loaded_value) is type(value)


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    loaded = load_settings(file=config(tmp_path, "temperature = 1\ntop_p = 1"), environment={})
    assert (loaded.read.temperature, type(loaded.read.temperature)) == (1.0, float)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MEMAGENT_CHUNK_TOKENS": "many"}, "environment: chunk_tokens is 'many': it must be a whole number"),
        ({"MEMAGENT_CHUNK_TOKENS": "1.5"}, "it must be a whole number"),
        ({"MEMAGENT_CHUNK_TOKENS": "9" * 5000}, "it must be a whole number"),
        ({"MEMAGENT_TEMPERATURE": "warm"}, "temperature is 'warm': it must be a number"),
        ({"MEMAGENT_EARLY_EXIT": "maybe"}, "early_exit is 'maybe': it must be true or false"),
        (
            {"MEMAGENT_CHUNK_TOKEN": "5"},
            "environment: unknown setting 'chunk_token', did you mean 'chunk_tokens'?",
        ),
        ({"MEMAGENT_RETRIES": "-1"}, "environment: retries is -1: it must be at least 0"),
        ({"MEMAGENT_QQQ": "5"}, "environment: unknown setting 'qqq'$"),
    ],
)
def test_bad_variables(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(environment=environment)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chunk_tokens = '5'", "chunk_tokens is '5': it must be a whole number"),
        ("chunk_tokens = 5.0", "chunk_tokens is 5.0: it must be a whole number"),
        ("chunk_tokens = true", "chunk_tokens is True: it must be a whole number"),
        ("early_exit = 1", "early_exit is 1: it must be true or false"),
        ("temperature = true", "temperature is True: it must be a number"),
        (f"temperature = 1{'0' * 400}", "it must be a number"),
        ("model = 3", "model is 3: it must be text"),
        ("model = ['a']", "it must be text"),
        ("chunk-tokens = 5", "unknown setting 'chunk-tokens', did you mean 'chunk_tokens'?"),
        ("[read]\nmodel = 'a'", "unknown setting 'read'"),
        ("base_url = 'localhost:8000/v1'", "must begin with http:// or https://"),
        ("api_key = 'sk-abc…xyz'", "api_key is a value that is not shown: it has characters"),
        ("model = ", "is not valid TOML"),
        ("model = 'a'\nmodel = 'b'", "is not valid TOML"),
        ("a = " + "[" * 5000, "is not valid TOML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = config(tmp_path, text)
    with pytest.raises(SettingsError, match=message) as refused:
        load_settings(file=path, environment={})
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["missing.toml", ".", "latin.toml", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "latin.toml").write_bytes(b"model = '\xe9'")
    with pytest.raises(SettingsError, match=r"cannot be read|is not valid TOML"):
        load_settings(file=tmp_path / name, environment={})


def test_bad_flags() -> None:
    with pytest.raises(SettingsError, match=r"arguments: unknown setting 'sed', did you mean 'seed'\?"):
        load_settings({"sed": 1}, environment={})
    with pytest.raises(SettingsError, match="arguments: seed is '1': it must be a whole number"):
        load_settings({"seed": "1"}, environment={})
    with pytest.raises(SettingsError, match=r"arguments: top_p is 2\.0: it must be at most 1"):
        load_settings({"top_p": 2.0}, environment={})


# Ranges


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(
            (name, (0, -1))
            for name in ("window_tokens", "threads", "concurrency", "problem_tokens", "chunk_tokens")
        ),
        *((name, (0, -1)) for name in ("memory_tokens", "answer_tokens", "max_calls")),
        ("timeout_seconds", (0.0, -1.0, math.nan)),
        ("temperature", (-0.1, 2.1, math.nan, math.inf)),
        ("top_p", (0.0, -1.0, 1.1, math.nan)),
        ("prompt_price", (-0.1, math.nan, math.inf)),
        ("completion_price", (math.inf,)),
        ("retries", (-1,)),
        ("engine", ("", "vllm")),
    ],
)
def test_values_out_of_range_name_the_setting_and_the_value(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(SettingsError, match=name) as refused:
            make_settings(**{name: value})
        assert str(value) in str(refused.value)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    make_settings(temperature=0, top_p=1, retries=0, max_calls=1, chunk_tokens=1)
    make_settings(temperature=2.0, top_p=0.001, timeout_seconds=0.001, seed=-1)


# Secrets


def test_the_key_is_never_shown(tmp_path: Path) -> None:
    settings = EngineSettings(api_key="sk-secret", base_url="http://x")
    assert "sk-secret" not in repr(settings)
    assert "sk-secret" not in str(settings)
    assert "http://x" in repr(settings)
    assert settings.replace(retries=1).api_key == "sk-secret"
    with pytest.raises(SettingsError, match="api_key") as refused:
        load_settings(file=config(tmp_path, "api_key = 123456"), environment={})
    assert "123456" not in str(refused.value)


@pytest.mark.parametrize("source", ["flags", "file", "MEMAGENT_BASE_URL"])
def test_the_key_of_openai_goes_to_no_other_endpoint(source: str, tmp_path: Path) -> None:
    environment, flags, file = {"OPENAI_API_KEY": "theirs"}, {}, None
    assert load_settings(environment=environment).engine.api_key == "theirs"
    if source == "flags":
        flags = {"base_url": "http://other/v1"}
    elif source == "file":
        file = config(tmp_path, "base_url = 'http://other/v1'")
    else:
        environment[source] = "http://other/v1"
    assert load_settings(flags, file, environment).engine.api_key is None
    assert load_settings({**flags, "api_key": "mine"}, file, environment).engine.api_key == "mine"
    both = environment | {"OPENAI_BASE_URL": "http://theirs/v1"}
    assert load_settings(environment=both).engine.api_key == (None if source.isupper() else "theirs")


# The one strict loader


class Inner(StrictModel):
    share: float = Field(default=0.5, ge=0, le=1)
    names: Names = ()


class Outer(StrictModel):
    count: int = 1
    inner: Inner = Inner()


def test_tables_become_settings() -> None:
    built = build(Outer, {"count": 2, "inner": {"share": 1, "names": ["a", "b"]}}, "x.toml")
    assert built == Outer(count=2, inner=Inner(share=1.0, names=("a", "b")))


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        build(Outer, {"count": "2", "iner": {}, "inner": {"share": 2.0, "nams": 1, "names": [1]}}, "x.toml")
    assert str(refused.value).splitlines() == [
        "x.toml: count is '2': it must be a whole number",
        "x.toml: inner.share is 2.0: it must be at most 1",
        "x.toml: inner.names.0 is 1: it must be text",
        "x.toml: inner: unknown setting 'nams', did you mean 'names'?",
        "x.toml: unknown setting 'iner', did you mean 'inner'?",
    ]


def test_every_setting_says_what_it_is() -> None:
    for _, field in settings_by_name().values():
        assert field.description
        assert not field.is_required()


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xef\xbb\xbfseed = 3\r\ntop_p = 0.5\r\n")
    read = load_settings(file=file, environment={}).read
    assert (read.seed, read.top_p) == (3, 0.5)


def test_to_the_end_and_without_shortcuts_turn_off_what_is_on_by_default() -> None:
    settings = ReadSettings(screen=True, lookahead=4, rounds=2, early_exit=True)
    whole, slow = settings.to_the_end(), settings.without_shortcuts()
    assert not whole.screen and whole.options == {
        "lookahead": 4, "rounds": 2, "early_exit": False, "likeliest_chunks": 0,
    }  # fmt: skip
    assert slow.screen and slow.options == {
        "lookahead": 1, "rounds": 2, "early_exit": True, "likeliest_chunks": 0,
    }  # fmt: skip
