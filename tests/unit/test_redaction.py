"""A secret is hidden wherever it stands and however it is written; all else stays as it is."""

import dataclasses
import html
import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from specreg.errors import SpecregError
from specreg.redaction import HIDDEN, hide, hide_bytes, hide_known, hide_said, learn, secrets_in
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
        ("API_KEYS_PROD", "planted-key-2"),
        ("github_token", "planted-3"),
        ("SMTP_PASS", "planted-4"),
        ("MYSQL_PWD", "planted-5"),
        ("AZURE_DEVOPS_PAT", "planted-6"),
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
        (("https://host/x?a=1&access_token=planted-1&b=2",), {"planted-1"}),
        (("--loader", '{"secret_key": "of two words"}'), {"of two words"}),
        (('--loader={"a": [{"api-keys": ["planted-1", "of two"]}]}',), {"planted-1"}),
        (('--loader={"a": [{"api-keys": ["of two words"]}]}',), {"of two words"}),
        (("--loader", '{"credentials": {"user": {"id": "planted-1"}}}'), {"planted-1"}),
        (("--loader", '{"args": ["--api-key", "planted-1", "--seed"]}'), {"planted-1"}),
        (("--loader", '{"more": "{\\"password\\": \\"of two words\\"}"}'), {"of two words"}),
        (("--loader", '{"endpoint": "http://me:planted-1@host"}'), {"planted-1"}),
        (("--loader", "{'secret_key': 'planted-1'}"), {"planted-1"}),
        (("--loader", "bucket=somewhere,secret_key=planted-1,seed=12345678"), {"planted-1"}),
        (("--loader=bucket=somewhere;secret_key=planted-1",), {"planted-1"}),
        (("--loader=secret_key=planted-1==",), {"planted-1=="}),
        (("--model", "fixtures/models/tiny/target", "--seed", "12345678"), set()),
        (("--overrides", '{"eos_token": "end_of_turn", "pad_token": "<end▁of▁sentence>"}'), set()),
        (("--tolerations", '{"key": "nvidia.com/gpu", "cache_key": "eagle3-tiny"}'), set()),
        (("--loader", '{"token": "planted-1"}'), {"planted-1"}),
        (("--loader", '{"secret_key": "planted'), set()),
        (("--loader", "[" * 100_000), set()),
        (("--loader", '{"token_path": "/nowhere/planted", "max_tokens": 12345678}'), set()),
        (("--config", '{"speculative_token_tree": "[(0,), (0, 0)]", "k": "long-word"}'), set()),
        (("--config", '{"mask_token": "<|a mask|>"}'), set()),
        (("--token-map=thunlp/some/freqs.pt", "some/secret-key:long-word"), set()),
        (("--speculative-token-map", "thunlp/some/freqs.pt", "--tokenizer", "some/model"), set()),
        (("--max-num-batched-tokens", "16384000"), set()),
        (("git@github.com:a/b", "ssh://git@github.com/a/b"), set()),
    ],
)
def test_secrets_stand_in_options_and_urls(arguments: tuple[str, ...], secrets: set[str]) -> None:
    assert secrets_in({}, arguments) == secrets


def test_a_secret_in_the_json_of_a_variable_is_secret() -> None:
    assert secrets_in({"ENGINE_SETTINGS": '{"secret_key": "of two words"}'}) == {"of two words"}


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_a_secret_in_json_is_hidden_where_the_json_is_quoted(*, ensure_ascii: bool) -> None:
    argument = json.dumps({"secret_key": ODD, "port": 1}, ensure_ascii=ensure_ascii)
    learn({}, ("--loader", argument))
    hidden = json.dumps({"secret_key": HIDDEN, "port": 1})
    assert hide_known(argument) == hidden
    assert json.loads(hide_known(json.dumps([argument], ensure_ascii=False))) == [hidden]


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
        (
            "GET http://someone:planted-1@host/x failed",
            f"GET http://someone:{HIDDEN}@host/x failed",
        ),
        ("'Authorization': 'Bearer planted-1'", f"'Authorization': 'Bearer {HIDDEN}'"),
        ("authorization: Basic cGxhbnRlZA==", f"authorization: Basic {HIDDEN}"),
        ('{"api_key":"planted-1","port":8000}', f'{{"api_key":"{HIDDEN}","port":8000}}'),
        ("api_key=['planted-1'], seed=12345678", f"api_key=['{HIDDEN}'], seed=12345678"),
        ("hf_token=planted-1 dtype=float32", f"hf_token={HIDDEN} dtype=float32"),
        ("GET /x?token=planted-1&n=3", f"GET /x?token={HIDDEN}&n=3"),
        (f"tried hf_{'a1' * 17}", f"tried {HIDDEN}"),
        ("password: planted-1", f"password: {HIDDEN}"),
    ],
)
def test_what_others_say_is_hidden_by_its_form(said: str, hidden: str) -> None:
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


def test_each_of_several_keys_is_secret() -> None:
    assert {"planted-1", "planted-2"} < secrets_in({"API_KEYS": "planted-1,planted-2"})
