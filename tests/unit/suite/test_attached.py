"""The addresses of running servers, as the options name them."""

from pathlib import Path
from typing import Any

import pytest

from specreg.core.address import Address
from specreg.core.errors import AttachError, UnknownNameError
from specreg.core.redaction import HIDDEN, hide
from specreg.suite.attached import addresses_of, environment_at
from specreg.suite.options import Options, options_to_repeat
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT
from tests.unit import builders

URL = "http://host:8000"
TOKEN = "planted-token-0123"  # noqa: S105 - planted
VARIABLES = {"TEAM_A": TOKEN, "SPLIT": "one two", "ENDED": "token\n", "EMPTY": ""}
ODD_HOSTS = (
    *("http://xn--a:80", "http://xn--:80", f"http://{'a' * 300}.com", "http://a..b:80"),
    *("http://h :80", "http://h%20x:80", "http://h%0a:80", "http://h\\x:80", "http://h;x:80"),
    *("http://h<x>:80", "http://h'x:80", "http://(h):80", "http://h*:80", "http://-h:80"),
    *("http://[v1.x]:80", "http://1.2.3:80", "http://1.2.3.999:80", "http://[1.2.3.4]:80"),
    *("http://h\n:80", "http://h\t:80", "http://h\0:80", "http://h\x7f:80", "http://bücher:80"),
)
ORDINARY_HOSTS = ("127.0.0.1", "[::1]", "gpu-7.example.com", "vllm_server", "GPU7", "localhost.")


def refuse(words: str, **options: Any) -> str:  # noqa: ANN401 - any option
    with pytest.raises(AttachError, match=words) as refused:
        addresses_of(Options(**options), VARIABLES)
    return str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://host", "http://", "http://h:1/?a=b", "http://[::1", ""),
        *("http://h:x", "http://h:99999", "http://h/a#b", "http://h/../v1", "http://h//v1"),
        *("http://h/<a>", "http://h/a b", "http://h/{a}", *ODD_HOSTS),
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    refuse("^--specreg-attach: .*; give http://HOST:PORT", attach=url)
    refuse("^--specreg-control-url: .*; give http://HOST:PORT", attach=URL, control_url=url)
    refuse("^--specreg-metrics-url: .*/metrics", attach=URL, metrics_url=f"{url},{URL}/metrics")


@pytest.mark.parametrize("host", ORDINARY_HOSTS)
def test_hosts_have_ordinary_names(host: str) -> None:
    address, control = addresses_of(Options(attach=f"http://{host}:8000"))
    assert (address, control) == (Address(f"http://{host.lower()}:8000"), None)


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("https://host/team-a/v1", "https://host/team-a"),
        ("https://host/team-a/v1/", "https://host/team-a"),
        ("https://host/team-a/", "https://host/team-a"),
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1/team", "https://host/v1/team"),
        ("HTTPS://Host/Team-A/v1", "https://host/Team-A"),
        ("Https://host:443", "https://host"),
        ("http://HOST:80/v1", "http://host"),
        (" http://[2001:DB8::1]:8000 ", "http://[2001:db8::1]:8000"),
    ],
)
def test_a_prefix_belongs_to_the_address_and_the_end_of_openai_does_not(
    typed: str, url: str
) -> None:
    address, _ = addresses_of(Options(attach=typed))
    assert address == Address(url)


def test_the_control_and_the_pages_of_replicas_share_the_token(tmp_path: Path) -> None:
    pages = ("http://pod-0:8000/metrics", "http://pod-1:8000/metrics")
    options = Options(
        attach=URL,
        control_url="http://plain:8000/v1",
        metrics_url=",".join(pages),
        url_token_env="TEAM_A",  # noqa: S106 - the name of a variable
        url_ca_file=str(tmp_path / "unread-without-tls.pem"),
    )
    address, control = addresses_of(options, VARIABLES)
    assert address is not None
    assert control is not None
    assert (address.url, address.counters_urls) == (URL, pages)
    assert (control.url, control.counters_urls) == ("http://plain:8000", ())
    for one in (address, control):
        assert one.headers(VARIABLES) == {"Authorization": f"Bearer {TOKEN}"}
        assert TOKEN not in repr(one)
    # The variable's name doesn't look like that of a secret.
    assert hide(f"echoed {TOKEN}") == f"echoed {HIDDEN}"
    assert "--specreg-url-token-env=TEAM_A" in options_to_repeat(options, None)


@pytest.mark.parametrize("name", ["NOT_SET", "EMPTY", "SPLIT", "ENDED", "sk-a-token-by-mistake"])
def test_a_token_that_cannot_be_sent_is_not_quoted(name: str) -> None:
    message = refuse("^--specreg-url-token-env: .* variable", attach=URL, url_token_env=name)
    assert name not in message
    assert not VARIABLES.get(name) or VARIABLES[name] not in message


def test_a_page_is_a_whole_url_and_named_once() -> None:
    refuse("needed the whole URL of the page", attach=URL, metrics_url=URL)
    refuse("twice", attach=URL, metrics_url=f"{URL}/metrics,{URL}/metrics")


@pytest.mark.parametrize(
    ("attach", "control"),
    [
        (URL, f"{URL}/v1"),
        ("http://host", "http://HOST:80"),
        ("https://host", "https://host.:443"),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://LOCALHOST:8000/v1"),
    ],
)
def test_the_control_is_another_server(attach: str, control: str) -> None:
    refuse("^--specreg-control-url: is the server of", attach=attach, control_url=control)


@pytest.mark.parametrize("scheme", ["HTTPS", "Https"])
def test_a_server_behind_tls_is_one_however_its_scheme_is_written(scheme: str) -> None:
    address, control = addresses_of(Options(attach=URL, control_url=f"{scheme}://other"))
    assert address is not None
    assert control is not None
    assert (address.has_tls, control.has_tls) == (False, True)
    address, _ = addresses_of(Options(attach=URL, metrics_url=f"{scheme}://host/metrics"))
    assert address is not None
    assert address.has_tls


def test_blanks_between_pages_belong_to_none_of_them() -> None:
    pages = "http://a/metrics, http://B:80/metrics"
    address, _ = addresses_of(Options(attach=URL, metrics_url=pages))
    assert address is not None
    assert address.counters_urls == ("http://a/metrics", "http://b/metrics")
    refuse("twice", attach=URL, metrics_url="http://a/metrics, http://A:80/metrics")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_certificates_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content:
        path.write_text(content)
    words = f"^--specreg-url-ca-file = '{path}': holds no certificates"
    refuse(words, attach="https://host", url_ca_file=str(path))
    # The page of the counters may be behind TLS, too.
    refuse(words, attach=URL, metrics_url="https://host/metrics", url_ca_file=str(path))


def test_an_environment_is_one_that_has_baselines(tmp_path: Path) -> None:
    assert environment_at(None, tmp_path) == UNKNOWN_ENVIRONMENT
    known = environment_at("h200-141gb-x1", builders.ROOT / "baselines")
    assert known.name == "h200-141gb-x1"
    for name in ("h200", "published", "../baselines/h200-141gb-x1", ""):
        with pytest.raises(UnknownNameError, match=r"unknown environment.*h200-141gb-x1"):
            environment_at(name, builders.ROOT / "baselines")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/case.json").write_text("{")
    with pytest.raises(AttachError, match=r"^--specreg-url-environment 'mine': .*case\.json"):
        environment_at("mine", tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"control_url": URL},
        {"metrics_url": f"{URL}/metrics"},
        {"url_token_env": "TEAM_A"},
        {"url_ca_file": "ca.pem"},
        {"url_environment": "h100-80gb-x1"},
    ],
)
def test_what_is_about_an_attached_server_needs_one(options: dict[str, str]) -> None:
    (flag,) = (f"--specreg-{name.replace('_', '-')}" for name in options)
    refuse(f"^{flag}: needs --specreg-attach too", **options)
