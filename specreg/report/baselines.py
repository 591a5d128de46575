"""Baselines as tables: what there is, and what changes."""

from collections.abc import Sequence
from pathlib import Path

from specreg.baselines.comparison import expected_value
from specreg.baselines.record import Recorded
from specreg.baselines.schema import Baseline
from specreg.measurement.metrics import METRICS
from specreg.report.terminal import format_number, render_recorded

_COLUMNS = ("baseline", "recorded", "engine", "prompts", "launches", "AL", "tokens/s", "reason")


def render_list(baselines: Sequence[tuple[Path, Baseline | str]]) -> str:
    """A line for each file, never wrapped; one that can't be read says why.

    Args:
        baselines: path and content, or why there is none.
    """
    rows = [_COLUMNS, *(_cells(path, one) for path, one in baselines if not isinstance(one, str))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join([*lines, *(one for _, one in baselines if isinstance(one, str))])


def render_changes(changes: Sequence[tuple[Path, Baseline | None, Baseline]], *, width: int) -> str:
    """Old and new value of each metric of some files; `None` for a file that is new."""
    recorded = [Recorded(path=path, old=old, new=new) for path, old, new in changes]
    return render_recorded(recorded, width=width, color=False)


def _cells(path: Path, baseline: Baseline) -> tuple[str, ...]:
    prompts = {one.id for one in baseline.acceptance.prompts} if baseline.acceptance else ()
    values = (
        expected_value(METRICS[name], baseline)
        for name in ("acceptance_length_tokens", "throughput_tokens_per_s")
    )
    return (
        f"{path.parent.name}/{path.stem}",
        baseline.provenance.recorded_on,
        f"{baseline.case.engine}=={baseline.provenance.engine_version}",
        str(len(prompts)),
        str(len(baseline.launches)),
        *map(format_number, values),
        " ".join(baseline.provenance.reason.split()),
    )
