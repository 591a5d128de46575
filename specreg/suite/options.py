"""The options of a run, each declared once: a field with its flag, default and help."""

import dataclasses
from dataclasses import dataclass
from typing import Any

_OF_ONE_RUN = frozenset(
    (
        "tier",
        "require_tier",
        "update_baselines",
        "reason",
        "launches",
        "record_minutes",
        "resume",
        "shard",
    )
)


def _option(flag: str, default: object, text: str, **argparse: object) -> Any:  # noqa: ANN401 - like dataclasses.field
    metadata = {"flag": flag, "argparse": {"default": default, "help": text, **argparse}}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    tier: str | None = _option(
        "--specreg-tier", None, "which matrix to run (default: gpu where there is one, else cpu)"
    )
    require_tier: bool = _option(
        "--specreg-require-tier",
        default=False,
        text="fail at once where the machine lacks what the tier needs (default: skip its cases)",
        action="store_true",
    )
    update_baselines: bool = _option(
        "--update-baselines",
        default=False,
        text="record the baselines of the cases that run, and of no others",
        action="store_true",
    )
    reason: str | None = _option(
        "--reason",
        None,
        "why baselines are recorded (default: the engine, its version, the commit)",
    )
    launches: int | None = _option(
        "--specreg-launches",
        None,
        "how many launches of each server to measure, 1 or more (default: 3 to record, else 1)",
        type=int,
    )
    record_minutes: float = _option(
        "--specreg-record-minutes",
        10.0,
        "for how long launches beyond the first three may be measured to record what runs can"
        " tell, in minutes; none with --specreg-launches",
        type=float,
    )
    num_prompts: int | None = _option(
        "--num-prompts",
        None,
        "how many prompts each case replays, spread over their categories (default: its own"
        " number); acceptance is compared prompt by prompt then, speed isn't",
        type=int,
    )
    inconclusive: str = _option(
        "--specreg-inconclusive",
        "fail",
        "what a test does where the measurements can't tell: fail, or warn and pass; warn-speed is"
        " for speeds alone, where neighbours move the machine",
        choices=("fail", "warn", "warn-speed"),
    )
    shard: str | None = _option(
        "--specreg-shard",
        None,
        "run the I-th of N parts of the run, cut by expected time, I from 1; specreg merge joins"
        " them. list/N shows them, list each server group",
        metavar="I/N|list",
    )
    oracle: bool = _option(
        "--specreg-oracle",
        default=False,
        text="hold each engine's steps against what its models give; needs torch, 1 to 5 GB",
        action="store_true",
    )
    matrix: str = _option(
        "--specreg-matrix", "fixtures/matrix", "the folder of the tiers, from the root"
    )
    baselines: str = _option(
        "--specreg-baselines", "baselines", "the folder of the baselines, from the root"
    )
    runs: str = _option(
        "--specreg-runs",
        ".specreg/runs",
        "the folder of what each run leaves: logs, journal, reports; from the root",
    )
    history: str | None = _option(
        "--specreg-history",
        None,
        "the folder of what all runs did, a line for each case and run; from the root (default:"
        " history, beside the folder of the runs)",
    )
    no_wait: bool = _option(
        "--specreg-no-wait",
        default=False,
        text="fail at once where another run of specreg has the GPU (default: wait until it ends)",
        action="store_true",
    )
    resume: bool = _option(
        "--specreg-resume",
        default=False,
        text="go on with the last run that was cut off: what it finished isn't measured again",
        action="store_true",
    )
    engine_version: str | None = _option(
        "--specreg-engine-version",
        None,
        "the engine's version to install, e.g. 0.31.0 (default: the one that specreg knows best)",
    )
    engine_python: str | None = _option(
        "--specreg-engine-python",
        None,
        "an interpreter that has the engine already (default: an environment made by uv, cached)",
    )
    attach: str | None = _option(
        "--specreg-attach",
        None,
        "the URL of a server that somebody else runs, http://HOST:PORT; choose its cases with -k",
    )
    engine: str | None = _option(
        "--engine", None, "the engine whose cases to run (default: all; needed to attach)"
    )
    ready_within_s: float = _option(
        "--specreg-ready-within-s",
        600.0,
        "how long a server may take to its first token, in seconds",
        type=float,
    )


def options_to_repeat(options: Options, tier: str) -> tuple[str, ...]:
    """What to type to run cases of a tier as they were run: all that isn't left at its default.

    Options that are of one run alone, a reason for instance, are left out.
    """
    given = [
        (field.metadata["flag"], getattr(options, field.name))
        for field in dataclasses.fields(Options)
        if field.name not in _OF_ONE_RUN and getattr(options, field.name) != field.default
    ]
    told = (flag if value is True else f"{flag}={value}" for flag, value in given)
    return (f"--specreg-tier={tier}", *told)
