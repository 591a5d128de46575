"""A secret is hidden wherever it stands and however it is written; all else stays as it is."""

import dataclasses
import html
import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from specreg.core.errors import SpecregError
from specreg.core.redaction import (
    HIDDEN,
    hide,
    hide_bytes,
    hide_known,
    hide_said,
    learn,
    secrets_in,
)
from tests.unit import builders

ODD = "päss\"w<o>rd/&'7\\x"
"""A password that each way of writing spells otherwise."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_planted1234"),
        ("HUGGING_FACE_HUB_TOKEN", "planted-token"),
        ("OPENAI_API_KEY", "planted-key-1"),
        ("AWS_SECRET_ACCESS_KEY", "plan/ted+key=="),
        ("PGPASSWORD", "correct horse"),
        ("github_token", "planted-3"),
    ],
)
def test_the_value_of_a_variable_whose_name_says_so_is_secret(name: str, value: str) -> None:
    assert secrets_in({name: value}) == {value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false-or-true"),
        ("HF_TOKEN_PATH", "/nowhere/planted"),
        ("API_KEY", "short"),
        ("MAX_NEW_TOKENS", "1234567890"),
        ("SIGNING_KEY", os.__file__),
        ("TOKEN_URL", "https://example.org/token"),
        ("KEYBOARD_LAYOUT", "something-long"),
        ("VLLM_LOGGING_LEVEL", "something-long"),
        ("PWD", str(Path.cwd())),
        ("COMPASS_BYPASS", "something-long"),
        ("PATTERN", "something-long"),
    ],
)
def test_an_ordinary_value_is_none(name: str, value: str) -> None:
    assert secrets_in({name: value}) == set()


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        (("--api-key", "planted-1"), {"planted-1"}),
        (("--api-key", "planted-1", "planted-2", "--port", "12345678"), {"planted-1", "planted-2"}),
        (("--api-key=planted-1",), {"planted-1"}),
        (("--hf-token", "planted-1"), {"planted-1"}),
        (("api_key=planted-1",), {"planted-1"}),
        (('api_key="planted-1"',), {"planted-1"}),
        (("engine_env.HF_TOKEN=planted-1",), {"planted-1"}),
        (("--attach", "http://someone:planted-1@host:8000/v1"), {"planted-1"}),
        (("git+https://planted-planted-1@github.com/a/b",), {"planted-planted-1"}),
        (("--model", "fixtures/models/tiny/target", "--seed", "12345678"), set()),
        (("--token-map=thunlp/some/freqs.pt", "some/secret-key:long-word"), set()),
        (("--speculative-token-map", "thunlp/some/freqs.pt", "--tokenizer", "some/model"), set()),
        (("--max-num-batched-tokens", "16384000"), set()),
        (("git@github.com:a/b", "ssh://git@github.com/a/b"), set()),
    ],
)
def test_secrets_stand_in_options_and_urls(arguments: tuple[str, ...], secrets: set[str]) -> None:
    assert secrets_in({}, arguments) == secrets


def test_a_password_in_the_url_of_any_variable_is_secret() -> None:
    assert secrets_in({"HTTPS_PROXY": "http://me:plan%2Fted-1@proxy"}) == {
        "plan%2Fted-1",
        "plan/ted-1",
    }


def _quoted(text: str) -> str:
    return quote(text, safe="")


@pytest.mark.parametrize("write", [str, json.dumps, html.escape, repr, _quoted])
def test_a_known_secret_is_hidden_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]
) -> None:
    monkeypatch.setenv("PLANTED_PASSWORD", ODD)
    text = write(f"before {ODD} after")
    hidden = write(f"before {HIDDEN} after").strip("\"'")
    assert hide(text).strip("\"'") == hidden
    assert hide_known(text).strip("\"'") == hidden
    assert hide_bytes(text.encode()).decode().strip("\"'") == hidden


def test_a_secret_of_several_lines_is_hidden_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "first-line\nsecond-line\nx\n")
    assert hide_known("a first-line b\nsecond-line\nx") == f"a {HIDDEN} b\n{HIDDEN}\nx"


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        ("GET http://someone:short@host/x failed", f"GET http://someone:{HIDDEN}@host/x failed"),
        ("git+https://planted-planted-1@github.com/a", f"git+https://{HIDDEN}@github.com/a"),
    ],
)
def test_a_password_in_a_url_is_hidden_though_nobody_knows_it(said: str, hidden: str) -> None:
    assert hide(said) == hidden
    assert hide_said(said.encode() + b" \xff\xfe", ()) == hidden.encode() + b" \xff\xfe"


@pytest.mark.parametrize(
    "said",
    [
        "tokenizer='fixtures/models/tiny/target', eos_token='<|endoftext|>', seed=12345678",
        "Avg generation throughput: 123.4 tokens/s, time_per_token=0.0123456 s",
        "--model fixtures/models/tiny/target --speculative-token-map thunlp/some/freqs.pt",
        "http://127.0.0.1:8000/v1/completions?max_tokens=12345678",
        "time_to_first_token: 123.456ms, first_token=planted-words, key=some-long-words",
        "api_key=None, hf_token=12345678.0, revision=0123456789abcdef",
    ],
)
def test_ordinary_words_stay(said: str) -> None:
    assert hide(said) == said


def test_what_a_server_is_started_with_is_known_from_then_on() -> None:
    dataclasses.replace(
        builders.SPEC,
        engine_args=("--api-key", "planted-in-arguments"),
        engine_env=(("MY_SECRET", "planted-in-variables"),),
    )
    assert hide_known("planted-in-arguments, planted-in-variables") == f"{HIDDEN}, {HIDDEN}"


def test_an_error_has_no_secret_in_its_message() -> None:
    learn({}, ("--token", "planted-for-errors"))
    assert str(SpecregError("x: planted-for-errors; y")) == f"x: {HIDDEN}; y"
