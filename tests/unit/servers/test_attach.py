"""A server that others run: what it says of itself is held against what is asked for."""

import dataclasses
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from specreg.core.address import Address
from specreg.core.errors import AttachError, ServerDiedError, UnsupportedError
from specreg.engines.engine import Identity
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Tier
from specreg.servers.attach import attach_server, check_attached, with_controls_attached
from specreg.servers.provision import Provision
from specreg.servers.server import Server
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders.http_servers import answering, gateway
from tests.unit.builders.identities import RECORDED_SGLANG, answers
from tests.unit.builders.started_servers import PROVISION, start


def serving(pages: Mapping[str, bytes | int]) -> AbstractContextManager[str]:
    """A server's URL that answers by path, whatever the method."""
    return answering(lambda path, _: pages.get(path, 404))


TIER = Tier(name="cpu", needs_gpus=0, cases=(builders.CASE,))


def attached(spec: ServerSpec, url: str, root: Path) -> Server:
    return attach_server(spec, Address(url), root=root, ready_within_s=5.0)


def at(url: str) -> Provision:
    return dataclasses.replace(PROVISION, attached=Address(url))


def refuse(spec: ServerSpec, url: str, root: Path, words: str) -> None:
    with pytest.raises(AttachError, match=words):
        attached(spec, url, root)


def test_what_runs_there_is_what_was_asked_for_and_goes_on_running(tmp_path: Path) -> None:
    with start(tmp_path, Script()) as running:
        url = running.address.url
        server = attached(builders.SPEC, url, tmp_path)
        assert server.address.url == url
        assert re.fullmatch(r"vllm-draft_model-toy-[0-9a-f]{8}", server.model)
        assert server.engine_version == "99.0+scripted"
        server.check_alive()
        assert httpx.get(f"{url}/health").status_code == 200
        for change, message in (
            ({"target": "other/model"}, "its model is 'target', but the case needs 'model'; check"),
            (
                {"method": "none", "draft": None},
                "its speculation is 'on', but the case needs 'off'",
            ),
            ({"engine": "sglang"}, "its engine is 'vllm', but the case needs 'sglang'"),
            ({"engine": "triton"}, "doesn't answer as triton does, .*404"),
        ):
            changed_spec = dataclasses.replace(builders.SPEC, **change)
            refuse(changed_spec, url, tmp_path, f"server at {url}: {message}")
    with pytest.raises(ServerDiedError, match=f"server at {url}: answers no more"):
        server.check_alive()


def test_where_nothing_answers_or_generates_the_error_says_why(tmp_path: Path) -> None:
    words = "doesn't answer as vllm does, .*refused"
    refuse(builders.SPEC, "http://127.0.0.1:9", tmp_path, words)
    with serving({"/v1/models": 401}) as url:
        refuse(builders.SPEC, url, tmp_path, "needs an API key, HTTP 401.*; put its tok")
    script = Script(fault=Fault.HTTP_429, fault_after_requests=1)  # the probe of its own start
    with start(tmp_path, script) as server:
        refuse(builders.SPEC, server.address.url, tmp_path, "refused to generate, .*scripted")
    for fault in (Fault.ERROR_EVENT, Fault.ERROR_BODY):
        with start(tmp_path, Script(fault=fault, fault_after_requests=1)) as server:
            words = "generates no token, its last message: .*'scripted: the engine is dead'"
            refuse(builders.SPEC, server.address.url, tmp_path, words)
    model_list = b'{"object": "error", "message": "not yet"}'
    with serving({"/v1/models": model_list}) as url:
        refuse(builders.SPEC, url, tmp_path, "doesn't answer as vllm does, HTTP 200 .*: not yet")


@pytest.mark.parametrize("only_at", ["/", "/v1/chat"])
@pytest.mark.parametrize("refused", [("top_k",), ("top_k", "min_p", "repetition_penalty")])
def test_the_neutral_values_that_a_gateway_refuses_are_not_sent(
    tmp_path: Path, refused: tuple[str, ...], only_at: str
) -> None:
    with (
        start(tmp_path, Script()) as running,
        gateway(running.address.url, refuses=refused, only_at=only_at) as url,
    ):
        server = attached(builders.SPEC, url, tmp_path)
    assert tuple(name for name, _ in server.refused) == refused
    assert server.facts.refused_sampling == ", ".join(refused)


@pytest.mark.parametrize("only_at", ["/", "/v1/chat"])
def test_a_gateway_that_strips_the_ids_of_tokens_is_named(tmp_path: Path, only_at: str) -> None:
    def without_ids(path: str, answer: bytes) -> bytes:
        if not path.startswith(only_at):
            return answer
        return re.sub(rb'"token_ids":\[[^\]]*\]', b'"token_ids":null', answer)

    with (
        start(tmp_path, Script()) as running,
        gateway(running.address.url, change=without_ids) as url,
    ):
        words = "sends text without the ids of its tokens, .*; attach to the engine itself"
        refuse(builders.SPEC, url, tmp_path, words)


def test_a_gateway_that_strips_the_usage_of_chunks_is_named(tmp_path: Path) -> None:
    completion = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
    spec = dataclasses.replace(builders.SPEC, engine="tensorrt_llm", target="a/toy")
    with serving(TENSORRT_LLM | {"/v1/completions": completion}) as url:
        refuse(spec, url, tmp_path, "without the number of tokens so far, .*; attach to the engine")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/metrics", 500, "its counters at /metrics can't be read, HTTP 500.*; look at its log"),
        (
            "/metrics",
            404,
            "can't be read, HTTP 404.*name the engine's own with --specreg-metrics-url",
        ),
        ("/v1/models", 502, "fails, HTTP 502 from /v1/models; look at its log"),
    ],
)
def test_a_page_that_fails_is_not_taken_for_another_engine(
    tmp_path: Path, path: str, status: int, words: str
) -> None:
    with (
        start(tmp_path, Script()) as running,
        gateway(running.address.url, fails={path: status}) as url,
    ):
        refuse(builders.SPEC, url, tmp_path, words)


def test_a_gateway_that_refuses_more_than_neutral_values_is_refused(tmp_path: Path) -> None:
    with (
        start(tmp_path, Script()) as running,
        gateway(running.address.url, refuses=["return_token_ids"]) as url,
    ):
        refuse(builders.SPEC, url, tmp_path, "refused to generate")


def test_a_case_has_a_control_if_one_is_attached_to() -> None:
    case = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
    tier = dataclasses.replace(TIER, cases=(case, builders.PLAIN_CASE))
    alone = with_controls_attached(tier, has_control=False)
    assert alone.cases == (builders.CASE, builders.PLAIN_CASE)
    # The tier of these cases has none that measures the control.
    assert with_controls_attached(alone, has_control=True) == tier


def test_one_address_is_one_server(tmp_path: Path) -> None:
    cases = [builders.CASE, builders.PLAIN_CASE]
    provision = dataclasses.replace(PROVISION, attached=Address("http://host:8000"))
    with pytest.raises(AttachError, match="is one server, but the run needs vllm-draft_model-toy,"):
        check_attached(cases, provision, root=tmp_path)


def test_vllm_says_it_in_its_models_and_counters() -> None:
    """As recorded of 0.32.0. Without statistics it isn't known whether it speculates."""
    pages = {
        "/v1/models": (builders.RECORDINGS / "models.json").read_bytes(),
        "/version": b'{"version": "0.32.0"}',
    }
    counters = (builders.RECORDINGS / "metrics.txt").read_bytes()
    identity = answers({**pages, "/metrics": counters}, "vllm")
    assert identity == Identity(
        engine="vllm",
        version="0.32.0",
        model="tiny-target",
        target="/models/fixtures/models/tiny/target",
        speculates=True,
    )
    plain = counters.replace(b"spec_decode", b"else")
    assert answers({**pages, "/metrics": plain}, "vllm").speculates is False
    assert answers({**pages, "/metrics": b"python_info 1"}, "vllm").speculates is None


TENSORRT_LLM = {
    "/v1/models": b'{"data": [{"id": "toy", "owned_by": "tensorrt_llm"}]}',
    "/version": b'{"version": "1.3.0rc29"}',
    "/health": b"",
    "/v1/completions": b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\n',
    "/prometheus/metrics": b'trtllm_request_success_total{finished_reason="length"} 1.0\n',
}


@pytest.mark.parametrize(
    ("engine", "target", "pages", "path", "flag"),
    [
        ("sglang", "tiny/target", RECORDED_SGLANG, "/metrics", "--enable-metrics"),
        ("tensorrt_llm", "a/toy", TENSORRT_LLM, "/prometheus/metrics", "return_perf_metrics: true"),
    ],
)
def test_a_server_without_its_counters_is_refused_with_what_switches_them_on(
    tmp_path: Path, engine: str, target: str, pages: Mapping[str, bytes], path: str, flag: str
) -> None:
    spec = dataclasses.replace(builders.SPEC, engine=engine, target=target, draft="d/draft")
    with serving(pages) as url:
        assert attached(spec, url, tmp_path).engine.name == engine
    mute = {name: page for name, page in pages.items() if name != path}
    plain = dataclasses.replace(spec, method="none", draft=None, draft_tokens=0)
    with serving(mute) as url:
        refuse(spec, url, tmp_path, f"server at {url}: .*404.*; start it with {flag}")
        if engine == "tensorrt_llm":  # which doesn't say that it speculates
            attached(plain, url, tmp_path)


def test_a_server_that_is_too_old_is_refused(tmp_path: Path) -> None:
    spec = dataclasses.replace(builders.SPEC, engine="tensorrt_llm", target="a/toy")
    cases = [dataclasses.replace(builders.CASE, server=spec)]
    with serving(TENSORRT_LLM) as url:
        check_attached(cases, at(url), root=tmp_path)
    with (
        serving(TENSORRT_LLM | {"/version": b'{"version": "1.1.0"}'}) as url,
        pytest.raises(UnsupportedError, match=r"'tensorrt_llm' 1\.1\.0: is too old; use 1\.2"),
    ):
        check_attached(cases, at(url), root=tmp_path)


def test_the_stable_tensorrt_llm_is_measured_without_its_counters(tmp_path: Path) -> None:
    spec = dataclasses.replace(builders.SPEC, engine="tensorrt_llm", target="a/toy")
    pages = TENSORRT_LLM | {"/version": b'{"version": "1.2.1"}'}
    without_counters = {name: page for name, page in pages.items() if name != "/prometheus/metrics"}
    with serving(without_counters) as url:
        check_attached([dataclasses.replace(builders.CASE, server=spec)], at(url), root=tmp_path)
        server = attached(spec, url, tmp_path)
    assert (server.engine_version, server.counters_pages) == ("1.2.1", ())


@pytest.mark.parametrize(
    ("preferred", "names"),
    [
        (b"null", ""),
        (b'"{\\"top_p\\": 0.9, \\"min_p\\": 0.1}"', ""),
        (
            b'"{\\"stop\\": [\\".\\"], \\"top_k\\": 5, \\"logit_bias\\": {\\"5\\": -9}}"',
            "logit_bias, stop",
        ),
        (b'{"min_new_tokens": 9}', "min_new_tokens"),
        (b'"no JSON"', ""),
    ],
)
def test_defaults_of_sglang_that_requests_do_not_replace_are_refused(
    preferred: bytes, names: str
) -> None:
    field = b'{"preferred_sampling_params":' + preferred + b","
    info = RECORDED_SGLANG["/server_info"].replace(b"{", field, 1)
    pages = {**RECORDED_SGLANG, "/server_info": info}
    if not names:
        assert answers(pages, "sglang").engine == "sglang"
        return
    with pytest.raises(AttachError, match=f"defaults of its own for {names} "):
        answers(pages, "sglang")


def test_sglang_says_it_in_its_settings(tmp_path: Path) -> None:
    """As recorded of 0.5.23. A version may come to say one as a text, or in another form."""
    recorded = dict(RECORDED_SGLANG)
    identity = answers(recorded, "sglang")
    assert identity == Identity(
        engine="sglang",
        version="0.5.23",
        model="tiny-target",
        target="/models/fixtures/models/tiny/target",
        speculates=True,
        speculation={
            "speculative-algorithm": "STANDALONE",
            "speculative-draft-model-path": "/models/fixtures/models/tiny/draft",
            "speculative-num-steps": "3",
            "speculative-eagle-topk": "1",
            "speculative-num-draft-tokens": "4",
        },
    )
    info = recorded["/server_info"]
    plain = info.replace(b'"STANDALONE"', b"null")
    assert answers(recorded | {"/server_info": plain}, "sglang").speculates is False
    steps = b'"speculative_num_steps":'
    as_text = info.replace(steps + b"3", steps + b'"3"')
    assert answers(recorded | {"/server_info": as_text}, "sglang") == identity
    odd = answers(recorded | {"/server_info": info.replace(steps + b"3", steps + b"[3]")}, "sglang")
    assert odd.speculation["speculative-num-draft-tokens"] == "4"
    spec = dataclasses.replace(
        builders.SPEC, engine="sglang", target="tiny/target", draft="d/draft"
    )
    with serving(RECORDED_SGLANG) as url:
        words = "its speculative-num-steps is '3', but the case needs '8'"
        refuse(dataclasses.replace(spec, draft_tokens=8), url, tmp_path, words)


READY = b'{"name":"%b","version":"1","state":"READY"}'


@pytest.mark.parametrize(
    ("index", "backend", "message"),
    [
        (
            b"[%b,%b]" % (READY % b"one", READY % b"two"),
            b"vllm",
            "2 models are READY: 'one', 'two', needed one; load only the model",
        ),
        (b"[]", b"vllm", "0 models are READY: none, needed one; load only the model"),
        (
            b"[%b]" % READY % b"one",
            b"tensorrtllm",
            "model 'one' has the backend 'tensorrtllm', needed 'vllm'; load a model",
        ),
    ],
    ids=["two", "none", "backend"],
)
def test_triton_is_taken_with_one_model_of_its_vllm_backend(
    tmp_path: Path, index: bytes, backend: bytes, message: str
) -> None:
    """As a real tritonserver 2.51 words it."""
    pages = {
        "/v2": b'{"name":"triton","version":"2.51.0","extensions":[]}',
        "/v2/repository/index": index,
        "/v2/models/one/config": b'{"name":"one","platform":"","backend":"%b"}' % backend,
    }
    spec = dataclasses.replace(builders.SPEC, engine="triton")
    with serving(pages) as url:
        refuse(spec, url, tmp_path, f"server at {url}: {message}")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("body", [b"<html>", b'{"data": []}', b"\xff"])
def test_what_cannot_be_read_is_no_engine(engine: str, body: bytes) -> None:
    assert not answers({"/v1/models": body}, engine).engine
