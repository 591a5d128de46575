"""A second look: what is seen twice, stands out among many, and isn't the machine's doing."""

import dataclasses
from collections.abc import Sequence

import pytest

from specreg.baselines.comparison import BaselineComparison, compare
from specreg.measurement.metrics import Replay
from specreg.verdicts.multiple_testing import blame_machine, hold_together
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit import builders

SPEED = "throughput_tokens_per_s"
TIME = "tpot_p50_ms"
LENGTH = "acceptance_length_tokens"
WORSE, FINE = Outcome.REGRESSED, Outcome.PASS


def verdict(
    outcome: Outcome, *, case_id: str = "case", metric: str = SPEED, p: float = 0.001
) -> Verdict:
    """A verdict on something that was compared."""
    change = -0.2 if outcome is WORSE else 0.0
    return Verdict(
        case_id=case_id,
        metric=metric,
        outcome=outcome,
        comparison=Comparison(change_frac=change, p_worse=p),
    )


def of_cases(*outcomes: Outcome, metric: str = SPEED) -> tuple[Verdict, ...]:
    """A verdict for each of several cases."""
    each = enumerate(outcomes)
    return tuple(verdict(one, case_id=f"case-{number}", metric=metric) for number, one in each)


def outcomes(verdicts: Sequence[Verdict]) -> list[Outcome]:
    return [one.outcome for one in verdicts]


def among(chances: Sequence[float], figures: int) -> list[Verdict]:
    """Losses of these chances, and others that hold, so many speeds in all."""
    losses = [verdict(WORSE, case_id=f"case-{n}", p=p) for n, p in enumerate(chances)]
    others = [verdict(FINE, case_id=f"fine-{n}", p=0.5) for n in range(figures - len(losses))]
    return [*losses, *others]


@pytest.mark.parametrize(
    ("chances", "figures", "kept"),
    [
        pytest.param([0.009], 1, 1, id="one-alone-has-the-whole-level"),
        pytest.param([0.006], 2, 0, id="one-of-two-has-half"),
        pytest.param([0.004], 2, 1, id="less-than-half"),
        pytest.param([0.002, 0.003, 0.0045, 0.009], 4, 4, id="each-has-what-the-last-left"),
        pytest.param([0.002, 0.0035, 0.0045, 0.009], 4, 1, id="none-after-one-that-fails"),
        pytest.param([0.0026, 0.0026, 0.0026, 0.0026], 4, 0, id="the-clearest-fails"),
    ],
)
def test_what_stands_out_by_holm_is_kept(chances: list[float], figures: int, kept: int) -> None:
    """Of four: at most 1/4, 1/3, 1/2 and the whole of 1 %, from the clearest on."""
    held = hold_together(among(chances, figures))[: len(chances)]
    assert outcomes(held) == [WORSE] * kept + [Outcome.INCONCLUSIVE] * (len(chances) - kept)


def test_acceptance_and_speed_are_counted_apart_and_each_figure_once() -> None:
    """Of 2 speeds 0.004 stands; of 3 acceptances it does not, one of them judged twice."""
    speeds = [verdict(WORSE, p=0.004), verdict(FINE, metric=TIME, p=0.5)]
    length = verdict(WORSE, metric=LENGTH, p=0.004)
    others = [verdict(FINE, case_id=name, metric=LENGTH, p=0.5) for name in ("a", "b")]
    held = hold_together([*speeds, length, length, *others])
    assert outcomes(held) == [WORSE, FINE, *[Outcome.INCONCLUSIVE] * 2, FINE, FINE]


@pytest.mark.parametrize("metric", [SPEED, TIME, "ttft_p50_ms", "goodput_requests_per_s"])
def test_what_most_cases_do_alike_is_the_machines_doing(metric: str) -> None:
    verdicts = of_cases(WORSE, FINE, WORSE, Outcome.INCONCLUSIVE, WORSE, metric=metric)
    blamed, no = blame_machine(verdicts, {}), Outcome.INVALID
    assert outcomes(blamed) == [no, FINE, no, Outcome.INCONCLUSIVE, no]
    assert blamed[0].explanation == (
        "MACHINE_MOVED: 3 of 5 cases became worse alike, so it isn't this case's doing; quieten"
        " the machine and run again, or compare two engines side by side"
    )
    assert (blamed[1], blamed[3]) == (verdicts[1], verdicts[3])


COMPARED = of_cases(WORSE, WORSE, WORSE, FINE, FINE, FINE)
ALSO = of_cases(WORSE, WORSE, WORSE, FINE, FINE, FINE, metric=TIME)
INVALID = (Verdict(case_id="invalid", metric=SPEED, outcome=Outcome.INVALID),)
OTHER = of_cases(*[WORSE] * 4, metric=LENGTH)


@pytest.mark.parametrize(
    "verdicts",
    [
        pytest.param(of_cases(WORSE, WORSE, FINE, FINE), id="half-of-four"),
        pytest.param(of_cases(WORSE, WORSE, WORSE), id="all-of-three"),
        pytest.param(of_cases(WORSE, WORSE, WORSE) + INVALID, id="three-that-were-compared"),
        pytest.param(COMPARED + ALSO, id="half-in-either-metric"),
        pytest.param(of_cases(WORSE, FINE, FINE, FINE) + OTHER, id="acceptance-beside-a-speed"),
    ],
)
def test_what_fewer_do_is_not(verdicts: tuple[Verdict, ...]) -> None:
    assert blame_machine(iter(verdicts), {}) == verdicts


def beside_control(
    tokens: int, *, within_frac: float = 0.001, tolerance_frac: float = 0.05
) -> BaselineComparison:
    """A launch beside a control that delivered so many tokens in a second, of 1000 recorded."""
    replay = Replay(control_rounds=(builders.replayed(0, 10**9, tokens),))
    case = dataclasses.replace(builders.CASE, tolerances=((SPEED, tolerance_frac),))
    launch = dataclasses.replace(builders.measurement({SPEED: 80.0}, case=case), replay=replay)
    control = builders.baseline({SPEED: 1000.0})
    known = builders.known(control=control, within_frac=within_frac, freedom=20)
    return compare([launch], known)


@pytest.mark.parametrize(
    ("metric", "tokens"),
    [
        pytest.param(SPEED, 1000, id="a-control-that-stays"),
        *((metric, 500) for metric in ("speedup_ratio", LENGTH, "acceptance_pos1_frac")),
    ],
)
def test_what_is_no_fault_of_the_machine_stays(metric: str, tokens: int) -> None:
    """Speculation became slower everywhere; and neither speedup nor acceptance is the machine's."""
    losses = of_cases(*[WORSE] * 6, metric=metric)
    comparisons = {(one.case_id, one.metric): beside_control(tokens) for one in losses}
    assert blame_machine(losses, comparisons) == losses


@pytest.mark.parametrize(
    ("comparison", "outcome"),
    [
        pytest.param(beside_control(900), Outcome.INVALID, id="it-became-worse-too"),
        pytest.param(beside_control(1000), WORSE, id="it-did-not-move"),
        pytest.param(beside_control(1100), WORSE, id="it-became-better"),
        pytest.param(beside_control(960), WORSE, id="by-less-than-tolerated"),
        pytest.param(beside_control(900, within_frac=0.1), WORSE, id="perhaps-by-chance"),
        pytest.param(beside_control(900, tolerance_frac=0.2), WORSE, id="a-wider-tolerance"),
    ],
)
def test_what_the_server_beside_it_does_too_is_the_machines_doing(
    comparison: BaselineComparison, outcome: Outcome
) -> None:
    (blamed,) = blame_machine([verdict(WORSE)], {("case", SPEED): comparison})
    assert blamed.outcome is outcome
    why = "MACHINE_MOVED: the server without speculation beside it became 10.0% worse too"
    assert blamed.explanation.startswith(why if outcome is Outcome.INVALID else "")
