"""About how long a case takes, worked out by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from specreg.baselines.estimate import START_S, Estimate, estimate_of, run_s
from specreg.baselines.store import BaselineStore
from specreg.engines.server_spec import Parallel, ServerSpec, Sizes
from specreg.matrix.case import Arrivals, Case, Load
from tests.unit import builders
from tests.unit.builders import record

PLAIN = builders.with_request(builders.PLAIN_CASE, prompts=20)
CASE = builders.with_request(dataclasses.replace(builders.CASE, control=PLAIN.server), prompts=20)
ASKED = 20 + 7 * 2
"""Prompts of the case, and to warm up at two in flight."""


def estimate(folder: Path, case: Case = CASE, kind: str = "cpu") -> Estimate:
    """Of a case by what this machine and others recorded."""
    store = BaselineStore(folder=folder, environment=builders.ENVIRONMENT)
    return estimate_of(case, store, kind)


def apart(_: Sequence[ServerSpec]) -> bool:
    """Memory holds no further server."""
    return False


def speed(tokens_per_s: float) -> dict[str, float]:
    return {"throughput_tokens_per_s": tokens_per_s}


def test_what_was_recorded_is_tokens_of_an_answer_over_their_speed(tmp_path: Path) -> None:
    """Each answer of the case has 1 + 6 + 4 tokens, at 50, 110 or 500 per second: 0.1 s each.

    The control's baseline says no tokens, so they are as many as may be. The case's server is asked
    once more for the checks.
    """
    of = builders.counts(1, 1, 1, 1)
    record(tmp_path, builders.baseline(speed(50.0), speed(110.0), speed(500.0), of=of))
    record(tmp_path, builders.baseline(speed(40.0)), PLAIN.id)
    time = estimate(tmp_path)
    assert time.case_s == pytest.approx((0.1 + 20 / 40) * ASKED + 0.1 * 20)
    assert time.control_s == pytest.approx(20 / 40 * ASKED)
    assert time.source == "recorded"
    watched = builders.with_judging(CASE, power_s=60.0)
    assert estimate(tmp_path, watched).case_s == pytest.approx(time.case_s + 2 * 60)


def test_each_turn_of_a_conversation_has_an_answer(tmp_path: Path) -> None:
    baseline = builders.baseline(speed(110.0), of=builders.counts(1, 1, 1, 1))
    assert baseline.acceptance is not None
    answers = tuple(
        msgspec.structs.replace(prompt, turn=turn)
        for prompt in baseline.acceptance.prompts
        for turn in (1, 2)
    )
    twice = msgspec.structs.replace(baseline.acceptance, prompts=answers)
    alone = dataclasses.replace(CASE, control=None)
    record(tmp_path, msgspec.structs.replace(baseline, acceptance=twice), alone.id)
    assert estimate(tmp_path, alone).case_s == pytest.approx(0.2 * ASKED), "nothing to check"


def test_another_machine_of_the_kind_is_better_than_a_guess(tmp_path: Path) -> None:
    environment = builders.OTHER_ENVIRONMENT
    record(tmp_path, builders.baseline(speed(100.0), environment=environment))
    record(tmp_path, builders.baseline({"tpot_p50_ms": 1.0}), PLAIN.id)
    assert estimate(tmp_path).source == f"recorded on {environment.name} and guess"
    assert estimate(tmp_path, kind="gpu").source == "guess"
    record(tmp_path, builders.baseline(speed(50.0)))
    assert estimate(tmp_path).source == "recorded and guess", "its own machine's comes first"


def test_a_guess_reads_all_weights_in_each_step(tmp_path: Path) -> None:
    """Of 15.6 GiB that is 10 ms; 20 of them for two requests at once are 0.1 s each."""
    sizes = Sizes(target_gib=15.6, draft_gib=0.0, token_kib=128.0)
    case = dataclasses.replace(PLAIN, server=dataclasses.replace(PLAIN.server, sizes=sizes))
    assert estimate(tmp_path, case, "gpu").case_s == pytest.approx(0.1 * ASKED)
    assert estimate(tmp_path, PLAIN, "gpu").case_s == pytest.approx(0.03 * ASKED)


def test_a_rate_takes_its_time_and_a_duration_too(tmp_path: Path) -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_s=0.5, duration_s=30.0)
    case = dataclasses.replace(PLAIN, load=load)
    record(tmp_path, builders.baseline(speed(100.0)), case.id)
    assert estimate(tmp_path, case).case_s == pytest.approx(2.0 * 7 + 4 * 30)


def test_a_run_starts_each_server_once_and_counts_each_gpu() -> None:
    estimates = {CASE.id: Estimate(100.0, "guess"), PLAIN.id: Estimate(50.0, "guess")}
    assert run_s((PLAIN, CASE), estimates, "cpu", apart) == 2 * START_S["cpu"] + 150
    wide = dataclasses.replace(CASE.server, parallel=Parallel(tensor=4))
    over_four = dataclasses.replace(CASE, server=wide, control=None)
    assert run_s([over_four], estimates, "gpu", apart) == 4 * (START_S["gpu"] + 100)


def test_a_control_is_asked_once_for_the_cases_that_memory_holds_beside_it() -> None:
    """It takes as long as the longest needs it: 40 s, or 50 s where it is a case of its own."""
    ngram = dataclasses.replace(CASE, server=dataclasses.replace(CASE.server, method="ngram"))
    estimates = {
        PLAIN.id: Estimate(50.0, "guess"),
        CASE.id: Estimate(100.0, "guess", control_s=40.0),
        ngram.id: Estimate(70.0, "guess", control_s=30.0),
    }
    starts_s = 3 * START_S["cpu"]
    together_s = run_s((PLAIN, CASE, ngram), estimates, "cpu", lambda _: True)
    assert together_s == starts_s + 50 + 60 + 40
    without_plain_s = run_s((CASE, ngram), estimates, "cpu", lambda _: True)
    assert without_plain_s == starts_s + 40 + 60 + 40
    two_at_once_s = run_s((PLAIN, CASE, ngram), estimates, "cpu", lambda specs: len(specs) <= 2)
    assert two_at_once_s == starts_s + (50 + 60) + 70
