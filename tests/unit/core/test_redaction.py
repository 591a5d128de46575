"""A secret is hidden wherever it stands and however it is written; all else stays as it is."""

import dataclasses
import html
import json
import os
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import pytest

from specreg.core.errors import SpecregError
from specreg.core.redaction import HIDDEN, hide, hide_bytes, hide_known, learn, secrets_in
from tests.unit import builders

ODD = "päss\"w<o>rd/&'7\\x"
"""A password that each way of writing spells otherwise."""


@pytest.mark.parametrize(
    ("variables", "secrets"),
    [
        ({"HF_TOKEN": "hf_planted1234"}, {"hf_planted1234"}),
        ({"OPENAI_API_KEY": "planted-key-1"}, {"planted-key-1"}),
        ({"AWS_SECRET_ACCESS_KEY": "plan/ted+key=="}, {"plan/ted+key=="}),
        ({"PGPASSWORD": "correct horse"}, {"correct horse"}),
        ({"github_token": "planted-3"}, {"planted-3"}),
        ({"HTTPS_PROXY": "http://me:plan%2Fted-1@proxy"}, {"plan%2Fted-1", "plan/ted-1"}),
        ({"TOKENIZERS_PARALLELISM": "false-or-true"}, set()),
        ({"HF_TOKEN_PATH": "/nowhere/planted"}, set()),
        ({"API_KEY": "short"}, set()),
        ({"MAX_NEW_TOKENS": "1234567890"}, set()),
        ({"SIGNING_KEY": os.__file__}, set()),
        ({"TOKEN_URL": "https://example.org/token"}, set()),
        ({"KEYBOARD_LAYOUT": "something-long"}, set()),
    ],
)
def test_secrets_stand_in_variables_whose_names_say_so_and_in_urls(
    variables: dict[str, str], secrets: set[str]
) -> None:
    assert secrets_in(variables) == secrets


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        (("--api-key", "planted-1"), {"planted-1"}),
        (("--api-key", "planted-1", "planted-2", "--port", "12345678"), {"planted-1", "planted-2"}),
        (("--api-key=planted-1",), {"planted-1"}),
        (("api_key=planted-1",), {"planted-1"}),
        (('api_key="planted-1"',), {"planted-1"}),
        (("engine_env.HF_TOKEN=planted-1",), {"planted-1"}),
        (("--attach", "http://someone:planted-1@host:8000/v1"), {"planted-1"}),
        (("git+https://planted-planted-1@github.com/a/b",), {"planted-planted-1"}),
        (("--model", "fixtures/models/tiny/target", "--seed", "12345678"), set()),
        (("--token-map=thunlp/some/freqs.pt", "some/secret-key:long-word"), set()),
        (("git@github.com:a/b", "ssh://git@github.com/a/b"), set()),
    ],
)
def test_secrets_stand_in_options_and_urls(arguments: tuple[str, ...], secrets: set[str]) -> None:
    assert secrets_in({}, arguments) == secrets


@pytest.mark.parametrize("write", [str, json.dumps, html.escape, repr, partial(quote, safe="")])
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
    assert hide_bytes(said.encode() + b" \xff\xfe", hide) == hidden.encode() + b" \xff\xfe"


@pytest.mark.parametrize(
    "said",
    [
        "tokenizer='fixtures/models/tiny/target', eos_token='<|endoftext|>', seed=12345678",
        "Avg generation throughput: 123.4 tokens/s, time_per_token=0.0123456 s",
        "http://127.0.0.1:8000/v1/completions?max_tokens=12345678",
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
