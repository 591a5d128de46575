"""Say what failed, and why, in one block for each case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specreg.report.quantities import label_of, render_value
from specreg.verdicts.judge import Verdict

_AS_ABOVE = "(as above)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What pytest shows of a failed test in place of a traceback.

    Attributes:
        message: one line, for the short summary; text: all of it.
        case_id: whose block tells it too; empty where none does.
    """

    message: str
    text: str
    case_id: str = ""

    @property
    def reprcrash(self) -> "Failure":
        """Where pytest looks for the message."""
        return self

    def __str__(self) -> str:
        return self.text


def failure_of(verdict: Verdict) -> Failure:
    """Of a test whose verdict doesn't hold."""
    return Failure(
        message=f"{verdict.outcome}: {sentence_of(verdict)}",
        text=render_failures([verdict]),
        case_id=verdict.case_id,
    )


def sentence_of(verdict: Verdict) -> str:
    """What was measured, and how far from what was recorded, each number with its unit.

    `tpot p50 2.1 ms, recorded 2 ms: worse by 5.2 % (2.1 to 8.0 %), tolerated are 3 %`
    """
    measured, change = _measured(verdict), verdict.change_frac
    if change is None or verdict.low_frac is None or verdict.high_frac is None:
        return measured
    up, down = ("more", "less") if verdict.two_sided else ("better", "worse")
    bounds = sorted((verdict.low_frac, verdict.high_frac), key=abs)
    if verdict.low_frac * verdict.high_frac >= 0:
        between = " to ".join(f"{100 * abs(bound):.1f}" for bound in bounds) + " %"
    else:
        between = f"{-100 * verdict.low_frac:.1f} % {down} to {100 * verdict.high_frac:.1f} % {up}"
    said = (
        f"{measured}, recorded {render_value(verdict.metric, verdict.expected)}:"
        f" {down if change < 0 else up} by {100 * abs(change):.1f} % ({between})"
    )
    if verdict.tolerance_frac is not None:
        said += f", tolerated are {100 * verdict.tolerance_frac:.3g} %"
    return f"{said}; {verdict.cause}" if verdict.cause else said


def render_skip(verdict: Verdict) -> str:
    """Why a test is skipped, in one line."""
    why = " ".join(verdict.reason.split())
    return f"{verdict.case_id}, {_measured(verdict)}: {verdict.outcome}, {why}"


def render_blocks(verdicts: Sequence[Verdict], errors: Mapping[str, str]) -> Mapping[str, str]:
    """By case that failed, in the order of the run, what went wrong with it.

    Args:
        verdicts: of the run.
        errors: by case that failed otherwise than by a verdict, what was said, in full; it is told
            once, whatever it has in common with an earlier case.
    """
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.fails:
            cases.setdefault(verdict.case_id, []).append(verdict)
    told: set[str] = set()
    blocks = {}
    for case_id, failed in cases.items():
        error = errors.get(case_id, "")
        head = error.partition("\n")[0]
        blocks[case_id] = render_failures(failed, f"{head}\n{_AS_ABOVE}" if head in told else error)
        told |= {head} - {""}
    return blocks


def render_failures(verdicts: Sequence[Verdict], error: str = "") -> str:
    """What went wrong with one case: a line for each metric, and below them each reason once.

    Args:
        verdicts: those that don't hold.
        error: what was said, in full; in place of the reason that is its first line.
    """
    lines = []
    for outcome in dict.fromkeys(verdict.outcome for verdict in verdicts):
        alike = [verdict for verdict in verdicts if verdict.outcome is outcome]
        compared = [verdict for verdict in alike if verdict.change_frac is not None]
        others = [_measured(verdict) for verdict in alike if verdict.change_frac is None]
        said = [*map(sentence_of, compared), *filter(None, [", ".join(others)])]
        lines += [f"{outcome}: {one}" for one in said]
        # Those of one kind differ in figures that the lines above have.
        reasons = {one.reason.partition(":")[0]: one.reason for one in reversed(alike)}
        for reason in reversed(reasons.values()):
            whole = error if reason and reason == error.partition("\n")[0] else reason
            lines += [f"  {line}" for line in whole.splitlines()]
    return "\n".join(lines)


def _measured(verdict: Verdict) -> str:
    """`acceptance length 2.19 tokens`; without the value where there is none."""
    label = label_of(verdict.metric)
    if verdict.value is None:
        return label
    return f"{label} {render_value(verdict.metric, verdict.value)}"
