"""Which cases of a tier run here, and why the others don't."""

from collections.abc import Iterator, Mapping

from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.matrix.models import check_model_code
from specreg.report.doctor import Finding, in_the_way, note, of_error, ok
from specreg.suite.preflight.scene import Scene


def examine_cases(scene: Scene) -> Iterator[Finding]:
    """How many run; what a run would leave out; and what would end it before it began."""
    if scene.tier is None:
        yield of_error("tier", scene.why_no_tier)
        return
    name, of = scene.tier.name, len(scene.tier.cases)
    refused = {case.id: why for case in scene.running if (why := _refusal(scene, case))}
    runs = len(scene.running) - len(refused)
    says = f"{runs} of {of} cases of tier '{name}' run here"
    if runs:
        yield ok("cases", says)
    else:
        yield in_the_way("cases", says, "do what is said of them, or choose another tier")
    for why, ids in _by_reason(refused).items():
        yield of_error("cases", f"{ids}: {why}")
    for why, ids in _by_reason(scene.skipped).items():
        yield note("cases", f"{ids}: {why}", "left out; run them on a machine that has that")


def _by_reason(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """The cases of each reason, in words: one by its id, several by their number and the first."""
    cases: dict[str, list[str]] = {}
    for case_id, why in reasons.items():
        cases.setdefault(why.removeprefix(f"{case_id} "), []).append(case_id)
    return {
        why: ids[0] if len(ids) == 1 else f"{len(ids)} cases, {ids[0]} the first"
        for why, ids in cases.items()
    }


def _refusal(scene: Scene, case: Case) -> str:
    """Why a run with this case would end before anything is measured, empty where it wouldn't."""
    try:
        scene.provision.check([case])
        check_model_code(scene.root, case.server)
    except SpecregError as error:
        return str(error)
    return ""
