"""A server that somebody else runs: what it says of itself is held against what is asked for."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from specreg.attaching import alone, attach_server, is_local
from specreg.engines import engine_named
from specreg.engines._engine import Identity
from specreg.errors import AttachError, ServerDiedError
from specreg.matrix import ServerSpec, Tier
from tests.scripted.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.test_server import start

TIER = Tier(name="cpu", needs_gpus=0, cases=(builders.CASE,))


@contextmanager
def running(folder: Path, spec: ServerSpec, script: Script | None = None) -> Iterator[str]:
    """The URL of a scripted server that somebody else runs."""
    with start(folder, script or Script(), spec=spec) as server:
        yield server.base_url


def test_what_runs_there_is_asked_by_its_own_name_and_goes_on_running(tmp_path: Path) -> None:
    with running(tmp_path, builders.SPEC) as url:
        with attach_server(builders.SPEC, url, root=tmp_path) as server:
            assert (server.base_url, server.model) == (url, "vllm-draft_model-toy")
            assert server.engine_version == "0.0.0+scripted"
            server.check_alive()
        assert httpx.get(f"{url}/health").status_code == 200
    with pytest.raises(ServerDiedError, match=f"server at {url}: answers no more"):
        server.check_alive()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            dataclasses.replace(builders.SPEC, target="other/model"),
            "serves 'some/target', the case asks for 'other/model'; check the URL, or choose",
            id="model",
        ),
        pytest.param(
            builders.PLAIN_SPEC,
            "does speculate, the case is one without speculation; start it otherwise",
            id="method",
        ),
        pytest.param(
            dataclasses.replace(builders.SPEC, engine="sglang"),
            "it is 'vllm', asked for is 'sglang'; check the URL, and --engine",
            id="engine",
        ),
        pytest.param(
            dataclasses.replace(builders.SPEC, engine="triton"),
            "doesn't answer as triton does, .*404",
            id="protocol",
        ),
    ],
)
def test_something_else_than_asked_for_is_named(
    tmp_path: Path, spec: ServerSpec, message: str
) -> None:
    with (
        running(tmp_path, builders.SPEC) as url,
        pytest.raises(AttachError, match=f"server at {url}: {message}"),
        attach_server(spec, url, root=tmp_path),
    ):
        pytest.fail("it was taken")


def test_a_server_without_speculation_is_none_for_a_case_with_it(tmp_path: Path) -> None:
    with (
        running(tmp_path, builders.PLAIN_SPEC) as url,
        pytest.raises(AttachError, match="doesn't speculate, the case is one with speculation"),
        attach_server(builders.SPEC, url, root=tmp_path),
    ):
        pytest.fail("it was taken")


def test_where_nothing_answers_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with (
        pytest.raises(AttachError, match=r"doesn't answer as vllm does, .*refused"),
        attach_server(builders.SPEC, "http://127.0.0.1:9", root=tmp_path),
    ):
        pytest.fail("it was taken")


def test_a_server_that_refuses_to_generate_says_why(tmp_path: Path) -> None:
    script = Script(fault=Fault.HTTP_429, fault_after_requests=1)  # the probe of its own start
    with (
        running(tmp_path, builders.SPEC, script) as url,
        pytest.raises(AttachError, match=r"refused to generate, .*scripted"),
        attach_server(builders.SPEC, url, root=tmp_path),
    ):
        pytest.fail("it was taken")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host/v1", ""])
def test_a_url_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(AttachError, match="needed http://HOST:PORT"):
        alone(TIER, url)


def test_nothing_stands_beside_it() -> None:
    case = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
    (found,) = alone(dataclasses.replace(TIER, cases=(case,)), "http://host:8000/").cases
    assert found == builders.CASE


def test_one_url_is_one_engine() -> None:
    other = dataclasses.replace(builders.SPEC, engine="sglang")
    both = (builders.CASE, dataclasses.replace(builders.CASE, server=other))
    with pytest.raises(AttachError, match="the tier has sglang, vllm; say --engine"):
        alone(dataclasses.replace(TIER, cases=both), "http://host:8000")


def test_only_this_machine_is_local() -> None:
    assert is_local("http://localhost:8000")
    assert is_local("http://[::1]:8000")
    assert not is_local("http://10.0.0.1:8000")


def answers(of: dict[str, bytes], engine: str) -> Identity:
    """What an engine makes of these answers."""
    return engine_named(engine).identify(lambda _, path: of[path])


def test_sglang_says_it_in_its_settings() -> None:
    models = b'{"data": [{"id": "toy", "root": "toy", "owned_by": "sglang"}]}'
    info = b'{"version": "0.5.23", "model_path": "/m/toy", "speculative_algorithm": "NGRAM"}'
    found = answers({"/v1/models": models, "/server_info": info}, "sglang")
    assert found == Identity(
        engine="sglang", version="0.5.23", model="toy", target="/m/toy", speculates=True
    )
    plain = info.replace(b'"NGRAM"', b"null")
    found = answers({"/v1/models": models, "/server_info": plain}, "sglang")
    assert found.speculates is False


def test_triton_says_which_model_is_ready() -> None:
    server = b'{"name": "triton", "version": "2.60.0"}'
    index = b'[{"name": "off", "state": "UNAVAILABLE"}, {"name": "toy", "state": "READY"}]'
    found = answers({"/v2": server, "/v2/repository/index": index}, "triton")
    assert found == Identity(engine="triton", version="2.60.0", model="toy", target="")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("body", [b"<html>", b'{"data": []}', b"\xff"])
def test_what_cannot_be_read_is_no_engine(engine: str, body: bytes) -> None:
    assert not answers({"/v1/models": body}, engine).engine
