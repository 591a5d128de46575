"""What servers said, with something wrong in it, ends in a named error or in a valid reading."""

import dataclasses
import functools
import itertools
import json
import math
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from specreg.acceptance.checks import check_counters, check_requests
from specreg.core.errors import AnswerError, InvalidMeasurementError
from specreg.engines.registry import ENGINES, engine_named
from specreg.engines.vllm import VllmWireFormat
from specreg.engines.wire_format import AnswerSettings, Form
from specreg.load.chat_client import FinishedRequest
from specreg.measurement.arm import read_acceptance
from specreg.measurement.measure import values_of
from specreg.measurement.metrics import Replay
from specreg.servers.attach import _facts
from tests.fuzz.mutations import cut, json_of, page_of, stream_of
from tests.fuzz.trying import Sample, try_all
from tests.unit import builders
from tests.unit.builders.wires import Wire, replay_wire

RECORDINGS = builders.ROOT / "fixtures/recordings"
ONE = builders.with_request(builders.with_concurrency(1), output_cap_tokens=64)


def read_stream(protocol: str, form: Form, _: Path, content: bytes) -> None:
    """Asks, keeps what came as a ledger does, and makes figures of it."""
    case = builders.with_request(ONE, form=form, request_timeout_s=10.0)
    events: list[bytes] = []

    def keep(finished: FinishedRequest) -> None:
        events.append(msgspec.json.encode(finished))
        assert msgspec.json.decode(events[-1], type=FinishedRequest) == finished

    wire = Wire(list(cut(random.Random(len(content)), content)))  # noqa: S311 - no secret
    only = builders.PROMPTS[:1]
    clock = time.monotonic_ns
    done = replay_wire(wire, case, only, record=keep, clock=clock, engine=protocol)
    assert len(events) == 1
    check_requests(done.traces)
    (trace,) = done.traces
    assert trace.tokens == trace.usage_tokens
    assert 0 <= trace.tokens < 2_000
    assert len(trace.chunk_sizes) < 2_000
    spec = dataclasses.replace(builders.SPEC, method="eagle3")
    record = read_acceptance(spec, ENGINES[protocol].wire_format, done.traces, None, None)
    values_of(case, Replay(rounds=(done,), control_rounds=(), acceptance=record))


def read_page(protocol: str, before: bytes, _: Path, page: bytes) -> None:
    first = ENGINES[protocol].wire_format.parse_counters(before.decode())
    last = ENGINES[protocol].wire_format.parse_counters(page.decode(errors="replace"))
    msgspec.json.encode(dataclasses.asdict(check_counters(first, last)))


def read_identity(engine: str, pages: dict[str, bytes], path: str, _: object, page: bytes) -> None:
    """What a server is, held against what is asked for."""

    def fetch(_: str, asked_path: str) -> bytes:
        if asked_path not in pages:
            raise AnswerError(f"HTTP 404 from {asked_path}", status=404)
        return page if asked_path == path else pages[asked_path]

    identity = engine_named(engine).identify(fetch)
    spec = dataclasses.replace(builders.SPEC, engine=engine)
    facts = _facts(spec, "some/target", None, identity)
    wrong_facts = [fact for fact in facts if fact.reported != fact.needed]
    assert all(len(str(fact)) < 5_000 for fact in wrong_facts)
    msgspec.json.encode(dataclasses.asdict(identity))


def read_ids(protocol: str, _: Path, answer: bytes) -> None:
    """Ids, sent back as they would be asked on."""
    api = ENGINES[protocol].token_api
    assert api is not None
    answer_ids = api.complete("toy", (1, 2), AnswerSettings(output_cap_tokens=2)).parse(answer)
    request = api.score("toy", (*answer_ids.prompt, *answer_ids.output), answer_ids.output[:1])
    msgspec.json.encode(request.body)


def read_scores(candidate: int, _: Path, answer: bytes) -> None:
    (score,) = VllmWireFormat().score("toy", (1,), (candidate,)).parse(answer)
    assert math.isfinite(score)


def recorded(path: str) -> bytes:
    return (RECORDINGS / path).read_bytes()


def streams() -> Iterable[Sample]:
    spoken = (
        *(
            ("vllm", form, path)
            for form, name in ((Form.CHAT, "chat"), (Form.COMPLETIONS, "comp"))
            for path in RECORDINGS.glob(f"vllm/*/{name}_stream*.txt")
        ),
        ("sglang", Form.CHAT, "sglang/0.5.23/chat_stream.txt"),
        ("sglang", Form.COMPLETIONS, "sglang/0.5.23/generate_stream.txt"),
        ("tensorrt_llm", Form.CHAT, "sglang/0.5.23/chat_stream.txt"),
        ("tensorrt_llm", Form.COMPLETIONS, "sglang/0.5.23/comp_stream.txt"),
        ("triton", Form.COMPLETIONS, "triton/2.51.0/generate_stream.txt"),
        ("reference", Form.CHAT, "reference/5.19.0/chat_stream.txt"),
    )
    for protocol, form, path in spoken:
        reading = functools.partial(read_stream, protocol, form)
        yield Sample(content=recorded(str(path)), wrong=stream_of, read=reading)


_TRTLLM = "trtllm_request_success_total 1.0\n" + "".join(
    f'trtllm_spec_decode_{kind}_tokens_total{{token_position="{at}"}} {20 - at}.0\n'
    for kind in ("drafted", "accepted")
    for at in range(3)
)


def pages() -> Iterable[Sample]:
    pages = sorted(RECORDINGS.glob("vllm/*/metrics_before.txt"))
    for page_before in (*pages, RECORDINGS / "sglang/0.5.23/metrics_before.txt"):
        folder = page_before.parent
        before = page_before.read_bytes()
        reading = functools.partial(read_page, folder.parent.name, before)
        yield Sample(content=(folder / "metrics.txt").read_bytes(), wrong=page_of, read=reading)
    reading = functools.partial(read_page, "tensorrt_llm", b"trtllm_request_success_total 0.0\n")
    yield Sample(content=_TRTLLM.encode(), wrong=page_of, read=reading)


def identities() -> Iterable[Sample]:
    openai = {"/version": b'{"version": "1.3.0"}'}
    by_engine = {
        "vllm": {
            **openai,
            "/v1/models": recorded("vllm/0.32.0/models.json"),
            "/metrics": recorded("vllm/0.32.0/metrics.txt"),
        },
        "sglang": {
            "/v1/models": recorded("sglang/0.5.23/models.json"),
            "/server_info": recorded("sglang/0.5.23/server_info.json"),
        },
        "tensorrt_llm": openai
        | {"/v1/models": b'{"data": [{"id": "toy", "owned_by": "tensorrt_llm"}]}'},
        "triton": {
            "/v2": recorded("triton/2.51.0/server.json"),
            "/v2/repository/index": b'[{"name": "toy", "version": "1", "state": "READY"}]',
            "/v2/models/toy/config": b'{"name": "toy", "platform": "", "backend": "vllm"}',
        },
    }
    for engine, pages in by_engine.items():
        for path, page in pages.items():
            if path != "/metrics":
                reading = functools.partial(read_identity, engine, pages, path)
                yield Sample(content=page, wrong=json_of, read=reading)


def asked_in_ids() -> Iterable[Sample]:
    completion = json.loads(recorded("vllm/0.32.0/completion.json"))
    completion["choices"][0]["token_ids"] = [520, 355, 2]  # as one that was asked for them
    for protocol, answer in (
        ("vllm", json.dumps(completion).encode()),
        ("sglang", recorded("sglang/0.5.23/generate.json")),
    ):
        reading = functools.partial(read_ids, protocol)
        yield Sample(content=answer, wrong=json_of, read=reading)
    scores = recorded("vllm/0.32.0/scores.json")
    candidate = int(re.findall(rb"token_id:(\d+)", scores)[0])
    yield Sample(content=scores, wrong=json_of, read=functools.partial(read_scores, candidate))


KINDS = tuple(tuple(kind()) for kind in (streams, pages, identities, asked_in_ids))


SILENT = {"", "ACCEPTANCE_MISSING", "USAGE_MISSING", "CHUNKS_MERGED"}
"""What is said of acceptance where a recording doesn't tell it, once all of it has been read."""


def test_what_is_sound_is_read(tmp_path: Path) -> None:
    """Otherwise no case would get as far as what is wrong in it."""
    for sound in itertools.chain(*KINDS):
        reason = ""
        try:
            sound.read(tmp_path, sound.content)
        except InvalidMeasurementError as error:
            reason = error.reason.code
        assert reason in SILENT, sound.content


def test_any_answer_ends_in_words_or_in_a_reading(numbers: range, tmp_path: Path) -> None:
    try_all(numbers, KINDS, tmp_path)
