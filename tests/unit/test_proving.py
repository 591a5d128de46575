"""Proofs, on a server whose answers are written down by hand."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.datasets import Prompt
from specreg.engines import engine_named
from specreg.errors import InvalidMeasurementError
from specreg.foresight import Foresee
from specreg.matrix import Case
from specreg.proving import (
    LOSSLESS,
    ORACLE,
    SAMPLING,
    Scene,
    _judge_oracle,
    proofs_of,
    prove_oracle,
)
from specreg.questions import Foreseen, Question
from specreg.verdict import Outcome, Verdict
from tests.unit import builders

ANSWERED = {
    "output_ids": [4, 5, 6, 7, 8],
    "meta_info": {
        "spec_num_correct_drafts": 2,
        "spec_num_proposed_drafts": 6,
        "spec_correct_drafts_histogram": [0, 2],
    },
}
"""By SGLang, of three drafts per step: both steps accepted one, and the histogram ends there."""


class Generates(BaseHTTPRequestHandler):
    """`/generate`."""

    def do_POST(self) -> None:
        """The same to everybody."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWERED).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Its URL, while it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Generates) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def foresees(*, accepted: int = 1, gap_nats: float = 0.0) -> Foresee:
    """Models that get as many drafts right everywhere, and would have said what was said or not."""

    def foresee(question: Question) -> Foreseen:
        texts = question.texts
        return Foreseen(
            accepted=tuple((accepted,) * len(text.ids) for text in texts), gaps_nats=(gap_nats,)
        )

    return foresee


def consult(foresee: Foresee) -> Verdict:
    """What the oracle says of those answers."""
    spec = dataclasses.replace(builders.SPEC, engine="sglang", method="eagle3", draft_tokens=3)
    with listening() as url:
        server = dataclasses.replace(builders.server(url), engine=engine_named("sglang"), spec=spec)
        return prove_oracle(
            Scene(
                case=dataclasses.replace(builders.CASE, server=spec),
                server=server,
                control=None,
                prompts=[Prompt(id="ids", category="any", token_ids=(1, 2, 3))],
                foresee=foresee,
                models=("target", "head"),
            )
        )


def test_a_histogram_that_ends_at_the_most_accepted_tells_the_same_steps() -> None:
    verdict = consult(foresees())

    assert (verdict.outcome, verdict.value, verdict.expected) == (Outcome.PASS, 2.0, 2.0)
    assert verdict.reason == ""


def test_other_steps_than_the_models_give_are_wrong_and_named() -> None:
    verdict = consult(foresees(accepted=3))

    assert (verdict.outcome, verdict.value, verdict.expected) == (Outcome.WRONG, 2.0, 4.0)
    assert "1 of 1 answers took other steps" in verdict.reason
    said = "'ids' S 2, A 2 (2, 0, 0), D 6 instead of S 1, A 3 (1, 1, 1), D 3"
    assert said in verdict.reason
    assert verdict.fails


def judged(counted: StepCounts, foreseen: StepCounts, rounding_nats: float = 0.25) -> Verdict:
    """What is thought of one answer's steps."""
    return _judge_oracle(
        Scene(
            case=dataclasses.replace(builders.CASE, rounding_nats=rounding_nats),
            server=builders.server("http://127.0.0.1:9"),
            control=None,
            prompts=[Prompt(id="ids", category="any", token_ids=(1, 2, 3))],
            foresee=foresees(),
            models=("target", "head"),
        ),
        [counted],
        [foreseen],
        [0.2],
    )


FORESEEN = StepCounts.from_histogram((100, 0, 145), 735)


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param(StepCounts.from_histogram((50, 0, 72), 366), id="half the steps"),
        pytest.param(StepCounts.from_histogram((100, 0, 145), 500), id="fewer drafts"),
        pytest.param(StepCounts.from_histogram((104, 0, 141), 735), id="fewer accepted"),
    ],
)
def test_an_engine_that_drafts_otherwise_is_wrong(counted: StepCounts) -> None:
    assert judged(counted, FORESEEN).outcome is Outcome.WRONG
    assert judged(FORESEEN, FORESEEN).outcome is Outcome.PASS


def test_where_nothing_was_drafted_nothing_is_proved() -> None:
    with pytest.raises(InvalidMeasurementError, match="NOTHING_DRAFTED"):
        judged(NO_STEPS, NO_STEPS)
    assert judged(NO_STEPS, FORESEEN).outcome is Outcome.WRONG


def test_a_demand_for_every_token_asks_nothing_more_of_other_kernels() -> None:
    assert judged(FORESEEN, FORESEEN, rounding_nats=0.0).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("gap_nats", "outcome"), [(0.25, Outcome.PASS), (0.26, Outcome.WRONG)], ids=["at", "beyond"]
)
def test_a_token_that_the_target_finds_less_likely_is_wrong_beyond_rounding(
    gap_nats: float, outcome: Outcome
) -> None:
    verdict = consult(foresees(gap_nats=gap_nats))

    assert verdict.outcome is outcome
    assert ("less likely than another: 'ids' by 0.26 nats" in verdict.reason) == verdict.fails


def case_of(engine: str, method: str, *, temperature: float = 0.0, control: bool = True) -> Case:
    """A case, beside a server without speculation or alone."""
    spec = dataclasses.replace(builders.SPEC, engine=engine, method=method)
    return dataclasses.replace(
        builders.CASE, server=spec, temperature=temperature, control=spec if control else None
    )


@pytest.mark.parametrize(
    ("case", "proofs"),
    [
        pytest.param(case_of("vllm", "eagle3"), {LOSSLESS, ORACLE}, id="greedy"),
        pytest.param(case_of("vllm", "eagle3", control=False), {ORACLE}, id="alone"),
        pytest.param(case_of("vllm", "eagle3", temperature=1), {SAMPLING}, id="drawn"),
        pytest.param(case_of("vllm", "eagle3", temperature=1, control=False), set(), id="neither"),
        pytest.param(case_of("vllm", "none"), set(), id="no speculation"),
        pytest.param(case_of("vllm", "medusa"), {LOSSLESS}, id="a method without an oracle"),
        pytest.param(case_of("sglang", "ngram"), {LOSSLESS}, id="a drafter that learns"),
        pytest.param(case_of("sglang", "eagle3_tree"), {LOSSLESS}, id="a tree"),
        pytest.param(case_of("reference", "ngram"), {LOSSLESS, ORACLE}, id="reference"),
        pytest.param(case_of("triton", "eagle3"), set(), id="an engine without ids"),
    ],
)
def test_what_is_proved_depends_on_the_case(case: Case, proofs: set[str]) -> None:
    assert {proof.name for proof in proofs_of(case, with_torch=True)} == proofs
    assert {proof.name for proof in proofs_of(case, with_torch=False)} == proofs - {ORACLE}
