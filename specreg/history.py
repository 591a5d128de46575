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
from specreg.comparison import expected_value
from specreg.intervals import Spread
from specreg.journal import mend_torn_line
from specreg.measurement import Measurement
from specreg.metrics import METRICS, Metric, better_frac
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
        values: by metric, the geometric mean over the launches; launches: how many they were.
        outcomes: by metric, the word.
    """

    run: str
    case_id: str
    settings_sha256: str
    engine_version: str
    draft_sha256: str
    values: dict[str, float]
    outcomes: dict[str, str]
    launches: int = 1


def settings_sha256(settings: CaseSettings) -> str:
    """A checksum of all that must be equal to compare."""
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()


def lived_through(
    run: str,
    launches: Sequence[Measurement],
    verdicts: Iterable[Verdict],
    settings: CaseSettings,
) -> Lived:
    """What a run did with a case: its valid launches, one at least, and the verdicts on them."""
    first = launches[0]
    values = {}
    for name in METRICS:
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


def load_history(path: Path, case_id: str) -> tuple[Lived, ...]:
    """The lines of a case, the oldest first; a line that can't be read is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=Lived))
    return tuple(one for one in found if one.case_id == case_id)


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


def headroom_frac(metric: Metric, baseline: Baseline, lived: Sequence[Lived]) -> float | None:
    """How far a baseline lies below the last seven runs on average: a loss that would pass.

    None while fewer than five runs are known, or where one of them wasn't better.
    """
    expected = expected_value(metric, baseline)
    values = [one.values[metric.name] for one in lived if metric.name in one.values][-_LAST_RUNS:]
    if expected is None or len(values) < _FEWEST_RUNS:
        return None
    better = [better_frac(metric, value, expected) for value in values]
    return statistics.fmean(better) if min(better) > 0 else None
