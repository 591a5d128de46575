"""The history of many nights of many cases, as a machine's file holds it."""

import datetime as dt
import random
from pathlib import Path

from specreg.verdicts.history import RunRecord, record_history

FIGURES = {
    "acceptance_length_tokens": 3.1,
    "acceptance_rate_frac": 0.7,
    "throughput_tokens_per_s": 2400.0,
    "ttft_p50_ms": 21.0,
    "tpot_p50_ms": 6.4,
    "speedup_ratio": 1.8,
    "energy_j_per_token": 0.41,
    "power_w": 480.0,
}
LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
"""When the nights of all tests are past."""
FIRST_NIGHT = dt.datetime(2026, 11, 1, 2, 0, tzinfo=dt.UTC)


def write_nights(path: Path, cases: int, nights: int, bad_from: int | None = None) -> None:
    """Write nights of cases that all hold; the throughput of the first one falls from a night on.

    Args:
        path: the file of the machine.
        cases: how many.
        nights: how many.
        bad_from: the number of the first bad night; None if all are fine.
    """
    noise = random.Random(1)  # noqa: S311 - for figures, not for secrets
    records = []
    for night in range(nights):
        moment = FIRST_NIGHT + dt.timedelta(days=night)
        for case in range(cases):
            values = {name: value * noise.gauss(1, 0.01) for name, value in FIGURES.items()}
            outcomes = dict.fromkeys(values, "PASS")
            if bad_from is not None and case == 0 and night >= bad_from:
                values["throughput_tokens_per_s"] *= 0.8
                outcomes["throughput_tokens_per_s"] = "REGRESSED"
            records.append(
                RunRecord(
                    run=f"{moment:%Y%m%dT%H%M%S}-1",
                    case_id=f"vllm-eagle3-llama-3.1-8b-case{case}-c{2 ** (case % 7)}",
                    settings_sha256="ab",
                    engine_version="0.31.0" if night < nights // 2 else "0.32.0",
                    draft_sha256="cd",
                    values=values,
                    outcomes=outcomes,
                )
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    record_history(path, records)
