"""The answer of a gate: upgrade, don't, or undecided and what it would take to decide."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specreg.compare.judging import (
    DIFFERS,
    LAUNCHES_PER_BLOCK,
    SPEED_LAUNCHES,
    Rules,
    SideLaunch,
    causes_of,
    is_lost,
    judge_subject,
)
from specreg.compare.pairs import Subject
from specreg.measurement.metrics import GATE_METRICS
from specreg.verdicts.judge import GOOD, Outcome, Verdict

_SETTLED = GOOD | {Outcome.MEASURED, Outcome.NOT_COMPARABLE}
_LEFT_OPEN = "left open, as the case is lost already"
_FEW_EQUAL_FRAC = 0.5


class Answer(StrEnum):
    """Whether B may take the place of A."""

    UPGRADE = "upgrade"
    DONT = "don't"
    UNDECIDED = "undecided"

    @property
    def exit_status(self) -> int:
        """0, 1 and 10, as of a run of the suite."""
        return {Answer.UPGRADE: 0, Answer.DONT: 1, Answer.UNDECIDED: 10}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a gate decided.

    Attributes:
        answer: in a word; reasons: why, the weightiest first; takes: what it would take to decide.
        verdicts: on each pair, on its answers too.
        control: on side A against itself.
    """

    answer: Answer
    reasons: tuple[str, ...]
    takes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    control: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long launches take.

    Attributes:
        launch_s: by pair, one launch more of each side; a pair isn't there before its first one.
        longest_s: what was up at the same time, from its start to its end.
        is_up: whether it was `--minutes` that ended the gate.
    """

    launch_s: Mapping[str, float]
    longest_s: float = 0.0
    is_up: bool = False


NO_PACE = Pace(launch_s={})


def decide(
    subjects: Sequence[Subject],
    launches: Sequence[SideLaunch],
    rules: Rules,
    answers: Sequence[Verdict] = (),
    pace: Pace = NO_PACE,
) -> Decision:
    """The answer that some launches give.

    Args:
        subjects: what is compared; of the control `other` is A itself.
        launches: so far, of all pairs and sides, as they came.
        rules: see there.
        answers: whether both sides answer the same, a verdict on each pair.
        pace: how long launches take, for what else it would take.
    """
    controls = [one for one in subjects if one.is_control]
    strict = rules.of_control(sum(len(one.deciding) for one in controls))
    control = [one for it in controls for one in judge_subject(it, launches, strict)]
    moved = [one for one in control if one.outcome in DIFFERS]
    wrong = [one for one in answers if one.outcome is Outcome.WRONG]
    verdicts: list[Verdict] = []
    for subject in subjects:
        if not subject.is_control:
            judged = judge_subject(subject, launches, rules)
            judged = tuple(_unless_moved(one, moved) for one in judged)
            lost = subject.pair.id in {one.case_id for one in wrong}
            verdicts += _left_open(judged, lost=lost)
    regressed = [one for one in verdicts if one.outcome is Outcome.REGRESSED]
    unclear = [one for one in (*verdicts, *answers) if one.outcome not in _SETTLED]
    if wrong or regressed:
        answer = Answer.DONT
    elif moved or unclear or not verdicts:
        answer = Answer.UNDECIDED
    else:
        answer = Answer.UPGRADE
    return Decision(
        answer=answer,
        reasons=(*_of_answers(answers), *_reasons(regressed), *_moved(moved)),
        takes=tuple(takes_of(unclear, rules, pace)) if answer is Answer.UNDECIDED else (),
        verdicts=(*verdicts, *answers),
        control=tuple(control),
    )


def _unless_moved(verdict: Verdict, moved: Sequence[Verdict]) -> Verdict:
    """Of what the machine moves by itself nothing can be said."""
    if verdict.metric not in {one.metric for one in moved} or verdict.outcome is Outcome.MEASURED:
        return verdict
    reason = "MACHINE_MOVED: side A differs from itself; quieten the machine, and run again"
    return dataclasses.replace(verdict, outcome=Outcome.INVALID, reason=reason)


def _left_open(verdicts: Sequence[Verdict], *, lost: bool) -> Sequence[Verdict]:
    """The verdicts on a pair; where it is lost, what is undecided stays so."""
    if not (lost or is_lost(verdicts)):
        return verdicts
    return [
        dataclasses.replace(one, reason=_LEFT_OPEN) if one.outcome is Outcome.INCONCLUSIVE else one
        for one in verdicts
    ]


def _of_answers(answers: Iterable[Verdict]) -> Iterator[str]:
    """What is to be known of the answers: that they differ, or can't be told, or mostly round."""
    for one in answers:
        few = one.value is not None and one.value < _FEW_EQUAL_FRAC
        if one.outcome in {Outcome.WRONG, Outcome.INVALID} or (one.outcome is Outcome.PASS and few):
            yield f"{one.case_id}: {one.reason}"


def _reasons(lost: Sequence[Verdict]) -> Iterator[str]:
    for case_id, ones in _by_case(lost).items():
        figures = ", ".join(f"{one.metric} {one.change_frac:+.1%}" for one in ones)
        yield f"{case_id} is worse by {causes_of(ones)}: {figures}"


def _moved(moved: Sequence[Verdict]) -> Iterator[str]:
    for one in moved:
        yield (
            f"the machine moved: side A differs from itself in {one.metric} of {one.case_id} by"
            f" {one.change_frac:+.1%}"
        )


def _by_case(verdicts: Iterable[Verdict]) -> Mapping[str, list[Verdict]]:
    by_case: dict[str, list[Verdict]] = {}
    for one in verdicts:
        by_case.setdefault(one.case_id, []).append(one)
    return by_case


def launches_for(verdict: Verdict) -> int | None:
    """About how many launches of each side would decide; None where no number would."""
    if verdict.metric not in GATE_METRICS or verdict.outcome is not Outcome.INCONCLUSIVE:
        return None
    if verdict.needed_launches is not None or verdict.low_frac is not None:
        return verdict.needed_launches or None
    least = SPEED_LAUNCHES if GATE_METRICS[verdict.metric].by_launch else LAUNCHES_PER_BLOCK
    return max(least, verdict.launches + LAUNCHES_PER_BLOCK)


def takes_of(unclear: Sequence[Verdict], rules: Rules, pace: Pace) -> Iterator[str]:
    """What it would take to decide: first what to type, then why, in a line per pair."""
    wanting = {
        case_id: list(filter(None, map(launches_for, ones)))
        for case_id, ones in _by_case(unclear).items()
    }
    most = max((max(needed, default=0) for needed in wanting.values()), default=0)
    if most:
        had = {one.case_id: one.launches for one in unclear}
        more_s = sum(
            (max(needed) - had[case_id]) * pace.launch_s.get(case_id, 0.0)
            for case_id, needed in wanting.items()
            if needed
        )
        # A launch is begun only where one as long as the longest so far would still end in time.
        minutes = math.ceil((more_s + pace.longest_s) / 60)
        options = ["--resume"]
        options += [f"--launches {most}"] if most > rules.launches else []
        options += [f"--minutes {minutes}"] if pace.is_up else []
        known = all(one.low_frac is not None for one in unclear if launches_for(one))
        more = f", {minutes} minutes more" if pace.launch_s else ""
        yield (
            f"{'about' if known else 'at least'} {most} launches of each side{more}: type the same"
            f" with {' '.join(options)}; a quieter machine needs fewer"
        )
    for case_id, ones in _by_case(unclear).items():
        whys: dict[str, list[str]] = {}
        for one in ones:
            whys.setdefault(one.reason or "there is no telling", []).append(one.metric)
        yield f"{case_id}: " + "; ".join(f"{why} ({', '.join(of)})" for why, of in whys.items())
