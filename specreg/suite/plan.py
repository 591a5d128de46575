"""What a run is about to do, written before it starts anything."""

import datetime as dt
import hashlib
import socket
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

import msgspec

from specreg.baselines.record import commit_of
from specreg.core.names import CaseId, Name
from specreg.matrix.case import Tier
from specreg.suite.context import RunContext
from specreg.suite.machine import gpus_of
from specreg.suite.options import (
    MOST_LAUNCHES_ASKED,
    MOST_PROMPTS_ASKED,
    MOST_SHARDS,
    Inconclusive,
    Options,
)
from specreg.suite.selection import Selection
from specreg.telemetry.identity import Environment

PLAN = "plan.json"
JOURNAL = "journal.jsonl"
COPIED = ("logs", "power")
"""The folders of a run that are those of its servers and devices."""


PLAN_VERSION: Literal[1] = 1
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_SHARDS)]
_Gib = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run was asked for, as facts: how many prompts it replays, and how it judges.

    A merge compares them between shards and says what it measured by them. None of them is a path,
    a program or a URL: those are the merging side's own.
    """

    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=MOST_PROMPTS_ASKED)] | None = None
    inconclusive: Inconclusive = "fail"
    oracle: bool = False
    engine: Name | None = None
    engine_version: _Word | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is about to do, written before it starts anything.

    `gpus_gib` is of each GPU and None where that isn't known, `reason` None where nothing is
    recorded. `number` and `of` are 0 where the run isn't cut, `shards` the cases of each. `asked`,
    the metrics and checks, and `skipped`, what it needs, are by case.
    """

    schema_version: Literal[1] = PLAN_VERSION
    run: Name
    began_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    host: _Word
    commit: _Word
    tier: Name
    matrix_sha256: _Word
    environment: Environment
    gpus_gib: Annotated[tuple[_Gib | None, ...], msgspec.Meta(max_length=1024)] = ()
    options: PlanOptions
    reason: _Text | None
    launches: Annotated[int, msgspec.Meta(ge=1, le=MOST_LAUNCHES_ASKED)]
    number: _Number = 0
    of: _Number = 0
    shards: Annotated[tuple[tuple[CaseId, ...], ...], msgspec.Meta(max_length=MOST_SHARDS)] = ()
    asked: dict[CaseId, tuple[Name, ...]]
    skipped: dict[CaseId, _Text] = {}
    no_power: _Text = ""
    driver_version: _Word = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"shard {self.number}/{self.of}" if self.of else f"'{self.run}'"


def matrix_sha256(tier: Tier) -> str:
    """A checksum of all settings of a tier's cases."""
    return hashlib.sha256("\n".join(case.key for case in tier.cases).encode()).hexdigest()


def plan_of(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]]
) -> RunPlan:
    """Return what a run is about to do.

    Args:
        context: what is fixed for the run.
        selection: what its tests need.
        shards: the cases of each shard, if the run is one of them.
    """
    gpus = gpus_of(context.options)
    return RunPlan(
        run=context.run_folder.name,
        began_at=context.clock.began_at.replace(microsecond=0),
        host=socket.gethostname(),
        commit=commit_of(context.root),
        tier=context.tier.name,
        matrix_sha256=matrix_sha256(context.tier),
        environment=context.environment,
        gpus_gib=gpus.memory_gib,
        options=plan_options(context.options),
        reason=(context.options.reason or "").strip() if context.is_recording else None,
        launches=context.launches,
        number=context.options.part[0] if context.options.part else 0,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case: tuple(sorted(names)) for case, names in selection.names.items()},
        skipped=dict(selection.skipped),
        no_power=selection.no_power,
        driver_version=gpus.driver_version,
    )


def plan_options(options: Options) -> PlanOptions:
    """What a merge has to know of the options of a run."""
    names = PlanOptions.__struct_fields__
    return PlanOptions(**{name: getattr(options, name) for name in names})
