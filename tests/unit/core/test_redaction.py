"""A secret is hidden wherever it stands and however it is written; all else stays as it is."""

import base64
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

from specreg.core.errors import SpecregError
from specreg.core.redaction import HIDDEN, hide, hide_bytes, hide_secrets_of, known_secrets
from tests.unit import builders

ODD = "päss\"w<o>rd/&'7\\x"
"""A password that each way of writing spells otherwise."""


def assert_hides(
    secrets: set[str], variables: Mapping[str, str], arguments: Sequence[str] = ()
) -> None:
    """Learning variables and arguments hides these parts of them, however written, and no other."""
    hide_secrets_of(variables, arguments)
    known = set(known_secrets())
    texts = "\0".join((*variables.values(), *arguments))
    assert secrets <= known
    assert {secret for secret in known if secret in texts} <= secrets


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
        ({"HF_TOKEN_2": "planted-1"}, {"planted-1"}),
        ({"HF_TOKENS": "planted-1"}, {"planted-1"}),
        ({"DB_PASSWD": "planted-1"}, {"planted-1"}),
        ({"SSH_PASSPHRASE": "planted-1"}, {"planted-1"}),
        ({"MY_CREDENTIALS": "planted-1"}, {"planted-1"}),
        ({"GITHUB_PAT": "planted-1"}, {"planted-1"}),
        ({"NPM_CONFIG__AUTH": "planted-1"}, {"planted-1"}),
        ({"SSHPASS": "planted-1"}, {"planted-1"}),
        ({"DB_PASS": "planted-1"}, {"planted-1"}),
        ({"AWS_ACCESS_KEY_ID": "planted-1"}, {"planted-1"}),
        ({"SYSTEM_ACCESSTOKEN": "planted-1"}, {"planted-1"}),
        ({"npm_config_//registry/:_authToken": "planted-1"}, {"planted-1"}),
        ({"SOME_PASSWORD": "1234567890"}, {"1234567890"}),
        ({"AUTHORIZATION": "Bearer planted-1"}, {"Bearer planted-1", "planted-1"}),
        ({"SETTINGS": '{"hub": {"token": "plan\\"ted"}}'}, {'plan"ted', 'plan\\"ted'}),
        ({"PYTEST_ADDOPTS": "-q --api-key planted-1"}, {"planted-1"}),
        ({"http_proxy": "me:planted-1@proxy:3128"}, {"planted-1"}),
        ({"IMAGE": "registry/vllm:v0.11.2-cu129@sha256"}, set()),
        ({"DATABASE_DSN": "host=x user=y password=planted-1"}, {"planted-1"}),
        ({"CONNECTION": "Account=a;AccountKey=planted-1;Suffix=core"}, {"planted-1"}),
        ({"OTLP_HEADERS": "api-key=planted-1,x=some-value"}, {"planted-1"}),
        ({"SENT": "authorization=Bearer%20planted-1"}, {"planted-1"}),
        ({"CLUSTER": "user: me\ntoken: planted-1\n"}, {"planted-1"}),
        ({"API_KEYS": "planted-1,planted-2"}, {"planted-1,planted-2", "planted-1", "planted-2"}),
        ({"SESSION_COOKIE": "id=planted-1"}, {"id=planted-1", "planted-1"}),
        ({"BLOB": "https://host/x?sv=12345678&sig=planted-1"}, {"planted-1"}),
        ({"SERVE": "vllm serve m --api-key 'planted-1' --port 12345678"}, {"planted-1"}),
        ({"FETCH": "fetch -api-key planted-1 -port 12345678"}, {"planted-1"}),
        (
            {"SETTINGS": '{"api_keys": ["planted-1", "planted-2"], "names": ["anything"]}'},
            {"planted-1", "planted-2"},
        ),
    ],
)
def test_secrets_stand_in_variables_whose_names_say_so_and_in_urls(
    variables: dict[str, str], secrets: set[str]
) -> None:
    assert_hides(secrets, variables)


# What usual systems, CI services and engines set, and whose names look like a secret's.
NOT_SECRET = [
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "MANPATH",
    "SSH_AUTH_SOCK",
    "SSH_ASKPASS",
    "SSH_ASKPASS_REQUIRE",
    "GIT_ASKPASS",
    "SUDO_ASKPASS",
    "VSCODE_GIT_ASKPASS_EXTRA_ARGS",
    "UV_KEYRING_PROVIDER",
    "KRB5CCNAME",
    "PMIX_SECURITY_MODE",
    "KEYBOARD_LAYOUT",
    "XKB_DEFAULT_LAYOUT",
    "GNOME_KEYRING_CONTROL",
    "KEYMAP",
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "CI_COMMIT_AUTHOR",
    "XAUTHORITY",
    "PWD",
    "OLDPWD",
    "COMPAT",
    "BYPASS",
    "TOKENIZERS_PARALLELISM",
    "TOKENIZER_MODE",
    "SKIP_TOKENIZER_INIT",
    "HF_TOKEN_PATH",
    "PGPASSFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "SSL_KEY_FILE",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "SECRETARY",
    "MONKEY",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "SPECULATIVE_TOKEN_MAP",
    "PRIVATE_KEY_PATH",
    "PATCH",
    "PATTERN",
]


@pytest.mark.parametrize("name", NOT_SECRET)
def test_ordinary_variables_are_not_taken_for_secrets(name: str) -> None:
    assert_hides(set(), {name: "some-long-value"})


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        (("--api-key", "planted-1"), {"planted-1"}),
        (("--api-key", "planted-1", "planted-2", "--port", "12345678"), {"planted-1", "planted-2"}),
        (("--api-key=planted-1",), {"planted-1"}),
        (("vllm serve some-model --api-key planted-1 --seed 12345678",), {"planted-1"}),
        (("--header", "Cookie: session=planted-1"), {"session=planted-1", "planted-1"}),
        (("api_key=planted-1",), {"planted-1"}),
        (('api_key="planted-1"',), {"planted-1"}),
        (("engine_env.HF_TOKEN=planted-1",), {"planted-1"}),
        (("--attach", "http://someone:planted-1@host:8000/v1"), {"planted-1"}),
        (("git+https://planted-planted-1@github.com/a/b",), {"planted-planted-1"}),
        (("--model", "fixtures/models/tiny/target", "--seed", "12345678"), set()),
        (("--token-map=thunlp/some/freqs.pt", "some/secret-key:long-word"), set()),
        (("git@github.com:a/b", "ssh://git@github.com/a/b"), set()),
        (("--header", "Authorization: Bearer planted-1"), {"planted-1"}),
        (('--config={"auth": {"token": "planted-1"}}',), {"planted-1"}),
        (("--config", "{'x-api-key': 'planted-1', 'eos_token': '<|end|>'}"), {"planted-1"}),
        (("--url=http://host/v1?api_key=planted-1&max_tokens=12345678",), {"planted-1"}),
        (("--header", "Authorization: Token planted-1"), {"planted-1"}),
        (("http://someone:plan@ted-1@host:8000",), {"plan@ted-1"}),
        (("http://someone:plan/ted-1@host:8000",), {"plan/ted-1"}),
        (("http://host:8000/some@long-path",), set()),
        (
            ("--max-num-batched-tokens", "12345678", "--compilation-config={'pass_config': {}}"),
            set(),
        ),
    ],
)
def test_secrets_stand_in_options_and_urls(arguments: tuple[str, ...], secrets: set[str]) -> None:
    assert_hides(secrets, {}, arguments)


def unescaped(text: str) -> str:
    """JSON that isn't ASCII, as most languages but Python write it."""
    return json.dumps(text, ensure_ascii=False)


WAYS = [
    *(str, json.dumps, unescaped, partial(quote, safe=""), quote_plus),
    # JavaScript, httpx and aiohttp leave these.
    *(partial(quote, safe="!'()*"), partial(quote, safe="!$&'()*+,;=:@/?")),
]


@pytest.mark.parametrize("write", WAYS, ids=range(len(WAYS)))
def test_a_known_secret_is_hidden_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]
) -> None:
    monkeypatch.setenv("PLANTED_PASSWORD", ODD)
    text = write(f"before {ODD} after")
    hidden = write(f"before {HIDDEN} after").strip("\"'")
    assert hide(text).strip("\"'") == hidden
    assert hide_bytes(text.encode()).decode().strip("\"'") == hidden


def test_the_basic_authorization_of_a_url_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED", "http://ada:pla%40nted@host/x")
    encoded = base64.b64encode(b"ada:pla@nted").decode()
    assert hide(f"sent {encoded} to it") == f"sent {HIDDEN} to it"


def test_a_user_with_a_password_is_hidden_as_basic_authorization_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROXY_AUTH", "ada:planted-1")
    encoded = base64.b64encode(b"ada:planted-1").decode()
    assert hide(f"sent {encoded} to it") == f"sent {HIDDEN} to it"


def test_a_secret_is_hidden_in_json_that_escapes_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_PASSWORD", "plan/ted-1")
    assert hide('{"a":"plan\\/ted-1"}') == f'{{"a":"{HIDDEN}"}}'


def test_a_value_that_is_short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_KEY", "seven77")
    monkeypatch.setenv("OTHER_KEY", "eight888")
    assert hide("seven77, eight888") == f"seven77, {HIDDEN}"


def test_the_name_of_a_variable_decides_and_not_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook's URL is as good as a password, and looks like any other."""
    webhook = "https://hooks.example.org/services/T0/B0/planted"
    monkeypatch.setenv("CHAT_WEBHOOK", webhook)
    assert hide(f"POST {webhook}") == f"POST {webhook}"
    monkeypatch.setenv("CHAT_WEBHOOK_SECRET", webhook)
    assert hide(f"POST {webhook}") == f"POST {HIDDEN}"


def test_a_secret_of_several_lines_is_hidden_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "first-line\nsecond-line\nx\n")
    assert hide("a first-line b\nsecond-line\nx") == f"a {HIDDEN} b\n{HIDDEN}\nx"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("GET http://someone:short@host/x failed", f"GET http://someone:{HIDDEN}@host/x failed"),
        ("git+https://planted-planted-1@github.com/a", f"git+https://{HIDDEN}@github.com/a"),
        ("GET /x?a=b&api_key=planted HTTP/1.1", f"GET /x?a=b&api_key={HIDDEN} HTTP/1.1"),
        ("'Authorization': 'Bearer planted-1'", f"'Authorization': 'Bearer {HIDDEN}'"),
        ("authorization: Basic cGxhbnRlZA==", f"authorization: Basic {HIDDEN}"),
        ("sent Bearer planted-1, refused", f"sent Bearer {HIDDEN}, refused"),
        (
            '{\\"Authorization\\": \\"Basic cGw=\\"}',
            f'{{\\"Authorization\\": \\"Basic {HIDDEN}\\"}}',
        ),
        ("X-Api-Key: planted", f"X-Api-Key: {HIDDEN}"),
        (
            'Authorization: Digest username="me", response="planted", said',
            f"Authorization: Digest {HIDDEN}, said",
        ),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=me/x, SignedHeaders=h, Signature=planted",
            f"Authorization: {HIDDEN}",
        ),
    ],
)
def test_a_password_in_a_url_is_hidden_though_nobody_knows_it(text: str, hidden: str) -> None:
    assert hide(text) == hidden
    assert hide_bytes(text.encode() + b" \xff\xfe", hide) == hidden.encode() + b" \xff\xfe"


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer='fixtures/models/tiny/target', eos_token='<|endoftext|>', seed=12345678",
        "Avg generation throughput: 123.4 tokens/s, time_per_token=0.0123456 s",
        "http://127.0.0.1:8000/v1/completions?max_tokens=12345678",
        "api_key=None, hf_token=12345678.0, revision=0123456789abcdef",
        "http://host/x?use_token=true&tokens=7, Authorization: None, a bearer credential",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert hide(text) == text


def test_what_a_server_is_started_with_is_known_from_then_on() -> None:
    dataclasses.replace(
        builders.SPEC,
        engine_args=("--api-key", "planted-in-arguments"),
        engine_env=(("MY_SECRET", "planted-in-variables"),),
    )
    assert hide("planted-in-arguments, planted-in-variables") == f"{HIDDEN}, {HIDDEN}"


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud800", "\\udc41"], ids=["nul", "high", "low"])
def test_an_argument_with_an_odd_character_in_its_json_is_read(escape: str) -> None:
    """JSON can escape NUL, which no path has, and half a character, which no program prints."""
    hide_secrets_of({}, (f'--speculation={{"token": "a/planted{escape}secret"}}',))
    assert hide(f"a/planted{escape}secret") == HIDDEN


def test_an_error_has_no_secret_in_its_message() -> None:
    hide_secrets_of({}, ("--token", "planted-for-errors"))
    assert str(SpecregError("x: planted-for-errors; y")) == f"x: {HIDDEN}; y"
