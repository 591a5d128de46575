"""The history: what each run measured and said in, how identical runs differ out.

`.specreg/history/<environment>.jsonl`, a line for each case of a run. Verdicts don't depend on it;
a baseline that is recorded takes from it how far hours lie apart.
"""

import contextlib
import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from specreg.baseline import Baseline, CaseSettings, Noise
from specreg.comparison import spreads_of
from specreg.intervals import Spread
from specreg.journal import mend_torn_line
from specreg.measurement import Measurement
from specreg.metrics import METRICS, Metric
from specreg.models import model_sha256
from specreg.verdict import Verdict

_FEWEST_RUNS = 5
_LAST_RUNS = 7


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did with a case.

    Attributes:
        run: the name of its folder, which begins with the time in UTC.
        case_id: of the case; settings_sha256: of all that must be equal to compare.
        engine_version, draft_sha256: what was judged.
        values: by metric that was judged, the geometric mean over the launches; launches: how many.
        outcomes: by metric, the word; changes: by metric, against the baseline, better positive.
        baseline_sha256: of that baseline; empty without one.
    """

    run: str
    case_id: str
    settings_sha256: str
    engine_version: str
    draft_sha256: str
    values: dict[str, float]
    outcomes: dict[str, str]
    changes: dict[str, float] = {}
    baseline_sha256: str = ""
    launches: int = 1


def settings_sha256(settings: CaseSettings) -> str:
    """A checksum of all that must be equal to compare."""
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()


def baseline_sha256(baseline: Baseline | None) -> str:
    """A checksum of what a baseline expects, empty of none."""
    if baseline is None:
        return ""
    expects = msgspec.structs.replace(baseline, noise={})
    return hashlib.sha256(msgspec.json.encode(expects)).hexdigest()


def lived_through(
    run: str,
    launches: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    settings: CaseSettings,
    baseline: Baseline | None,
) -> Lived:
    """What a run did with a case: its valid launches, one at least, and the verdicts on them.

    Only what was judged is kept: speeds that nobody asked for were measured without their control,
    or on fewer prompts.
    """
    first = launches[0]
    values = {}
    for name in {verdict.metric: None for verdict in verdicts}:
        found = [one.values[name] for one in launches if one.values.get(name, 0) > 0]
        if found:
            values[name] = statistics.geometric_mean(found)
    return Lived(
        run=run,
        case_id=first.case.id,
        settings_sha256=settings_sha256(settings),
        engine_version=first.engine_version,
        draft_sha256=model_sha256(first.draft) if first.draft else "",
        values=values,
        outcomes={verdict.metric: str(verdict.outcome) for verdict in verdicts},
        changes={v.metric: v.change_frac for v in verdicts if v.change_frac is not None},
        baseline_sha256=baseline_sha256(baseline),
        launches=len(launches),
    )


def history_path(folder: Path, environment: str) -> Path:
    """Where the history of an environment lies."""
    return folder / f"{environment}.jsonl"


def record_history(path: Path, lived: Iterable[Lived]) -> None:
    """Adds lines. A disk that refuses loses them, and no verdict."""
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in lived)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            mend_torn_line(file)
            file.write(lines)


def load_history(path: Path) -> Mapping[str, tuple[Lived, ...]]:
    """By case's id its lines, the oldest first; a line that can't be read is left out.

    Of a run that was gone on with only the last line of a case counts: it measured it once.
    """
    found: dict[str, dict[str, Lived]] = {}
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                lived = msgspec.json.decode(line, type=Lived)
                found.setdefault(lived.case_id, {})[lived.run] = lived
    return {case_id: tuple(by_run.values()) for case_id, by_run in found.items()}


def unreadable_lines(path: Path) -> int:
    """How many lines of a history `load_history` leaves out."""
    count = 0
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            try:
                msgspec.json.decode(line, type=Lived)
            except (msgspec.DecodeError, UnicodeDecodeError):
                count += 1
    return count


def noise_of(identical: Sequence[Lived], spreads: Mapping[str, Spread]) -> dict[str, Noise]:
    """How identical runs differ, beyond what the launches of one run do.

    s_b² = var(ln x over the runs) - s_w² / k for runs of k launches, no less than 0.

    Args:
        identical: runs of one case with the same settings, engine and draft.
        spreads: by metric, how launches within a run differ.

    Returns:
        By metric of launches; nothing of those seen in fewer than five runs.
    """
    found = {}
    for name in (metric.name for metric in METRICS.values() if metric.by_launch):
        seen = [one for one in identical if one.values.get(name, 0) > 0]
        if len(seen) >= _FEWEST_RUNS and name in spreads:
            within = spreads[name].within_frac ** 2 * statistics.fmean(1 / r.launches for r in seen)
            beyond = statistics.variance(math.log(one.values[name]) for one in seen) - within
            found[name] = Noise(between_frac=math.sqrt(max(beyond, 0.0)), runs=len(seen))
    return found


def identical_to(
    lived: Iterable[Lived], settings: CaseSettings, engine_version: str, draft_sha256: str
) -> list[Lived]:
    """The runs with these settings, this engine and this draft."""
    alike = (settings_sha256(settings), engine_version, draft_sha256)
    return [
        one for one in lived if (one.settings_sha256, one.engine_version, one.draft_sha256) == alike
    ]


def learned(baseline: Baseline, lived: Iterable[Lived]) -> Baseline:
    """The baseline with what identical runs tell of hours, as far as they tell anything new.

    Identical are those of the same settings, engine's version and draft.
    """
    by = baseline.provenance
    identical = identical_to(lived, baseline.case, by.engine_version, by.draft_sha256)
    noise = {**baseline.noise, **noise_of(identical, spreads_of((baseline,)))}
    return msgspec.structs.replace(baseline, noise=noise)


def headroom_frac(metric: Metric, baseline: Baseline, lived: Sequence[Lived]) -> float | None:
    """How far a baseline lies below the last seven runs on average: a loss that would pass.

    None while fewer than five runs were judged against it, or where one of them wasn't better.
    """
    sha256 = baseline_sha256(baseline)
    changes = [
        one.changes[metric.name]
        for one in lived
        if one.baseline_sha256 == sha256 and metric.name in one.changes
    ][-_LAST_RUNS:]
    if len(changes) < _FEWEST_RUNS or min(changes) <= 0:
        return None
    return statistics.fmean(changes)
