"""The answer: outcomes in; upgrade, don't, or undecided and what it would take out."""

import itertools
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from specreg.compare.gate.judging import (
    DIFFERS,
    Judged,
    Rules,
    Subject,
    as_moved,
    is_lost,
    judge_subject,
)
from specreg.compare.gate.launched import Launched
from specreg.compare.gate.needs import Time, takes_of
from specreg.compare.gate.quantities import Cause
from specreg.compare.gate.texts import TextsJudged
from specreg.verdicts.judge import GOOD, Outcome

_FEW_EQUAL_FRAC = 0.5
_LEFT_OPEN = "left open, as the case is lost already"
_NO_TIME = Time()


class Answer(StrEnum):
    """Whether B may take the place of A."""

    UPGRADE = "upgrade"
    DONT = "don't"
    UNDECIDED = "undecided"

    @property
    def exit_status(self) -> int:
        """0, 1 and 10, as of a run of the suite."""
        return {Answer.UPGRADE: 0, Answer.DONT: 1, Answer.UNDECIDED: 10}[self]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate decided.

    Attributes:
        answer: in a word; reasons: why, the weightiest first; takes: what it would take to decide.
        judged: each quantity of each case, and of the control (side A against itself).
        control: of the latter.
        texts: whether the answers are the same, by case.
    """

    answer: Answer
    reasons: tuple[str, ...]
    takes: tuple[str, ...]
    judged: tuple[Judged, ...]
    control: tuple[Judged, ...] = ()
    texts: tuple[TextsJudged, ...] = ()


def decide(
    subjects: Sequence[Subject],
    launches: Sequence[Launched],
    rules: Rules,
    texts: Sequence[TextsJudged] = (),
    time: Time = _NO_TIME,
) -> Decision:
    """The answer that some launches give.

    Args:
        subjects: what is compared; of the control `other` is A itself.
        launches: so far, of all cases and arms.
        rules: see there.
        texts: what became of the answers' texts, of each case whose answers must be the same.
        time: what launches take of it, and whether it was up.
    """
    controls = [subject for subject in subjects if subject.is_control]
    strict = rules.of_control(sum(len(subject.deciding) for subject in controls))
    each = {
        subject: judge_subject(subject, launches, strict if subject in controls else rules)
        for subject in subjects
    }
    control = tuple(one for subject, judged in each.items() if subject.is_control for one in judged)
    moved = [one for one in control if one.outcome in DIFFERS and one.decides]
    wrong = [one for one in texts if one.outcome is Outcome.WRONG]
    wrong_ids = {one.case_id for one in wrong}
    judged = tuple(
        itertools.chain.from_iterable(
            _left_open(
                [_unless_moved(one, moved) for one in ones], lost=subject.case_id in wrong_ids
            )
            for subject, ones in each.items()
            if not subject.is_control
        )
    )
    lost = [one for one in judged if one.decides and one.outcome is Outcome.REGRESSED]
    unclear = [one for one in judged if one.decides and one.outcome not in GOOD]
    untold = [one for one in texts if one.outcome is Outcome.INVALID]
    rounded = [one for one in texts if one.outcome is Outcome.PASS and _is_rounded(one)]
    reasons = (
        *(_of_texts(one) for one in (*wrong, *untold)),
        *_reasons(lost),
        *_moved(moved),
        *(_of_texts(one) for one in rounded),
    )
    if wrong or lost:
        answer = Answer.DONT
    elif moved or unclear or untold or not judged:
        answer = Answer.UNDECIDED
    else:
        answer = Answer.UPGRADE
    undecided = [one for one in unclear if one not in lost]
    return Decision(
        answer=answer,
        reasons=reasons,
        takes=(
            *takes_of(undecided, rules, time),
            *(f"{one.case_id}, the answers: --resume compares them once more" for one in untold),
        )
        if answer is Answer.UNDECIDED
        else (),
        judged=judged,
        control=control,
        texts=tuple(texts),
    )


def cause_of(judged: Sequence[Judged]) -> str:
    """What a case's loss comes from, in words; empty where nothing was lost that decides.

    Output is lost by what it is made of: its own row names the cause only where none of the others
    was proven. Of sides that draft in different ways a longer step is no loss by itself.
    """
    lost = [one for one in judged if one.decides and one.outcome is Outcome.REGRESSED]
    own = [str(one.cause) for one in lost if one.cause is not Cause.OUTPUT]
    if own:
        return ", ".join(own)
    parts: Mapping[str, float] = next((one.parts_frac for one in lost if one.parts_frac), {})
    return min(parts, key=parts.__getitem__) if parts else ", ".join(str(one.cause) for one in lost)


def _unless_moved(one: Judged, moved: Sequence[Judged]) -> Judged:
    """Of what the machine moves by itself nothing can be said."""
    return as_moved(one) if one.quantity in {other.quantity for other in moved} else one


def _left_open(judged: Sequence[Judged], *, lost: bool) -> Sequence[Judged]:
    """A case's figures; of what is undecided where the case is lost, that nobody goes on for it."""
    if not (lost or is_lost(judged)):
        return judged
    return [
        msgspec.structs.replace(one, reason=one.reason or _LEFT_OPEN)
        if one.decides and one.outcome is Outcome.INCONCLUSIVE
        else one
        for one in judged
    ]


def _reasons(lost: Sequence[Judged]) -> list[str]:
    by_case: dict[str, list[Judged]] = {}
    for one in lost:
        by_case.setdefault(one.case_id, []).append(one)
    return [
        f"{case_id} is worse by {cause_of(ones)}: "
        + ", ".join(f"{one.quantity} {one.change_frac:+.1%}" for one in ones)
        for case_id, ones in by_case.items()
    ]


def _of_texts(one: TextsJudged) -> str:
    return f"{one.case_id}: {one.reason}"


def _is_rounded(one: TextsJudged) -> bool:
    """Whether most answers part, if only by rounding: somebody should know."""
    return one.equal_frac is not None and one.equal_frac < _FEW_EQUAL_FRAC


def _moved(moved: Sequence[Judged]) -> list[str]:
    return [
        f"the machine moved: side A differs from itself in {one.quantity} of {one.case_id} by"
        f" {one.change_frac:+.1%}"
        for one in moved
    ]
