"""What it would take is something that one can type, and how long that takes in all."""

from specreg.compare.gate.judging import Judged, Rules
from specreg.compare.gate.needs import Pace, Time, takes_of
from specreg.compare.gate.quantities import ACCEPTANCE, OUTPUT, QUANTITIES
from specreg.verdicts.judge import Outcome

STEP, PREFILL = "step_p50_ms", "ttft_p50_ms"
RULES = Rules(blocks=8, figures=3)
X1, X4, Y = "x-c1", "x-c4", "y-c1"
TIME = Time(
    paces=(
        Pace(case_ids=frozenset({X1, X4}), launch_s=180.0),
        Pace(case_ids=frozenset({Y}), launch_s=300.0),
    ),
    longest_s=90.0,
)


def left(
    case_id: str,
    quantity: str,
    *,
    launches: int = 4,
    needed: int | None = None,
    prompts: int | None = None,
    reason: str = "",
    outcome: Outcome = Outcome.INCONCLUSIVE,
) -> Judged:
    """A figure that is undecided."""
    return Judged(
        case_id=case_id,
        quantity=quantity,
        cause=QUANTITIES[quantity].cause,
        outcome=outcome,
        reason=reason,
        low_frac=None if reason else -0.1,
        tolerance_frac=0.03,
        launches=launches,
        needed_launches=needed,
        needed_prompts=prompts,
    )


SOME = (
    left(X1, STEP, needed=8),
    left(X1, OUTPUT, needed=10),
    left(X1, PREFILL, needed=8),
    left(X4, PREFILL, needed=14),
)
FEW = left(Y, STEP, launches=2, reason="too few launches")


def test_launches_and_minutes_are_summed_over_what_shares_them() -> None:
    """Ten launches more for both cases of the one server, two for the other, and one to spare."""
    time = Time(paces=TIME.paces, longest_s=TIME.longest_s, is_up=True)
    said, *lines = takes_of((*SOME, FEW), RULES, time)
    assert said == (
        "at least 14 launches of each side, 42 minutes more: type the same with --resume"
        " --minutes 42; a quieter machine needs fewer"
    )
    assert lines == [
        (
            "x-c1: about 10 launches instead of 4 (throughput_tokens_per_s);"
            " about 8 launches instead of 4 (step_p50_ms, ttft_p50_ms)"
        ),
        "x-c4: about 14 launches instead of 4 (ttft_p50_ms)",
        "y-c1: too few launches (step_p50_ms)",
    ]


def test_where_it_was_the_launches_these_are_named() -> None:
    said, *_ = takes_of(SOME, Rules(blocks=2, figures=3), TIME)
    assert said.startswith("about 14 launches of each side, 32 minutes more: type the same with")
    assert "with --resume --launches 14; a quieter" in said


def test_without_any_launch_nobody_knows_the_minutes() -> None:
    none = left(X1, STEP, launches=0, reason="side A has no launch yet")
    said, *_ = takes_of((none,), RULES, Time())
    assert said.startswith("at least 4 launches of each side: type the same with --resume; ")


def test_more_prompts_take_a_new_gate() -> None:
    some = (left(X1, ACCEPTANCE, prompts=60), left(X4, ACCEPTANCE, prompts=240))
    said, *lines = takes_of(some, RULES, TIME)
    assert said == (
        "about 240 prompts: a new gate, with --prompts 240 and another --out; --resume goes on with"
        " the same prompts only"
    )
    assert lines == [
        "x-c1: about 60 prompts (acceptance_length_tokens)",
        "x-c4: about 240 prompts (acceptance_length_tokens)",
    ]


def test_what_no_launch_would_decide_names_no_launches() -> None:
    died = left(X1, STEP, outcome=Outcome.INVALID, reason="side B: it died")
    assert takes_of((died, left(X4, STEP)), RULES, TIME) == (
        "x-c1: side B: it died (step_p50_ms)",
        "x-c4: nobody can tell (step_p50_ms)",
    )
    assert takes_of((), RULES, TIME) == ()
