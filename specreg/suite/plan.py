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
    MAX_LAUNCHES_ASKED,
    MAX_PROMPTS_ASKED,
    MAX_SHARDS,
    Inconclusive,
    Options,
)
from specreg.suite.selection import Selection
from specreg.telemetry.identity import Environment

PLAN = "plan.json"
"""The file of a run's folder that holds its plan."""
JOURNAL = "journal.jsonl"
"""The file of a run's folder that holds what it measured."""
COPIED = ("logs", "power")
"""The folders of a run that hold what its servers and devices left; a merge copies them."""
PLAN_VERSION: Literal[1] = 1
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Word = Annotated[str, msgspec.Meta(max_length=128)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)]
_Gib = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that decide what a run measures and how it judges.

    A merge compares them between shards. None of them is a path, a program or a URL: the machine
    that merges has its own.
    """

    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROMPTS_ASKED)] | None = None
    inconclusive: Inconclusive = "nights"
    oracle: bool = False
    engine: Name | None = None
    engine_version: _Word | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is about to do, written before it starts anything.

    Attributes:
        gpus_gib: the memory of each GPU, None for one whose driver doesn't say.
        reason: why baselines are recorded, None if the run judges.
        number: the shard, from 1; 0 if the run isn't cut.
        of: into how many shards the run is cut; 0 if it isn't.
        shards: the cases of each shard.
        asked: the metrics and checks of each case.
        skipped: by case that can't run on the machine, what it needs.
        no_power: why power isn't measured.
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
    launches: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAUNCHES_ASKED)]
    number: _Number = 0
    of: _Number = 0
    shards: Annotated[tuple[tuple[CaseId, ...], ...], msgspec.Meta(max_length=MAX_SHARDS)] = ()
    asked: dict[CaseId, tuple[Name, ...]]
    skipped: dict[CaseId, _Text] = {}
    no_power: _Text = ""
    driver_version: _Word = ""

    @property
    def name(self) -> str:
        """What people call the run."""
        return f"shard {self.number}/{self.of}" if self.of else f"'{self.run}'"


def matrix_sha256(tier: Tier) -> str:
    """Return a checksum of all settings of a tier's cases."""
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
    reason = (context.options.reason or "").strip() if context.is_recording else None
    number, _ = context.options.part or (0, 0)
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
        reason=reason,
        launches=context.launches,
        number=number,
        of=len(shards),
        shards=tuple(map(tuple, shards)),
        asked={case_id: tuple(sorted(names)) for case_id, names in selection.names.items()},
        skipped=dict(selection.skipped),
        no_power=selection.no_power,
        driver_version=gpus.driver_version,
    )


def plan_options(options: Options) -> PlanOptions:
    """Return what a merge has to know about the options of a run."""
    names = PlanOptions.__struct_fields__
    return PlanOptions(**{name: getattr(options, name) for name in names})
