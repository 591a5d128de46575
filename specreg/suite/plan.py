"""The plan of a run: what it will measure and judge. It is written before anything starts."""

import datetime as dt
import hashlib
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

import msgspec

from specreg.core.names import CaseId, Name
from specreg.core.readable import Label
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
"""The file of the plan in a run's folder."""
COPIED = ("logs", "power")
"""The folders of a run that a merge copies: the logs of servers, and the power of devices."""
PLAN_VERSION: Literal[1] = 1
# A merge reads plans from other machines, so the lengths of texts and the numbers are bounded.
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Word = Annotated[Label, msgspec.Meta(max_length=128)]
_ShardNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)]
_Gib = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that decide what a run measures and how it judges.

    A merge compares them between shards. Paths, programs and URLs aren't among them, because the
    machine that merges uses its own.
    """

    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROMPTS_ASKED)] | None = None
    inconclusive: Inconclusive = "nights"
    oracle: bool = False
    engine: Name | None = None
    engine_version: _Word | None = None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run will measure and judge, and on which machine.

    Attributes:
        schema_version: the version of this document's form.
        run: the name of the run.
        began_at: when the run began.
        machine: the identity of the machine; empty if unknown.
        machines: the machine of each case that another one measured, in a merged run, by case id.
        commit: the commit of the repository.
        tier: the name of the tier.
        cases_sha256: the checksum of all settings of the tier's cases.
        environment: the machine's hardware.
        gpus_gib: the memory of each GPU in GiB; None if neither its driver nor the user has given
            it.
        options: the options that decide what is measured and how it is judged.
        reason: why baselines are recorded, empty without a given reason; None if the run judges.
        launches: the number of launches of each server that are planned.
        shard_number: the number of the shard, from 1; 0 if the run isn't sharded.
        shards_in_all: how many shards the run has; 0 if it isn't sharded.
        shards: the ids of each shard's cases.
        names: the metrics and checks that are judged, by case id.
        skipped: why a case is skipped, by case id.
        no_power: why the power of cases can't be measured; empty if there are no such cases.
        driver_version: the version of the GPUs' driver; empty without a GPU.
        attached: the URL of the server that others had started; empty if specreg starts servers.
        attached_control: the URL of its control; empty without one.
    """

    schema_version: Literal[1] = PLAN_VERSION
    run: Name
    began_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    machine: _Word = ""
    machines: dict[CaseId, _Word] = {}
    commit: _Word
    tier: Name
    cases_sha256: _Word = msgspec.field(name="matrix_sha256")
    environment: Environment
    gpus_gib: Annotated[tuple[_Gib | None, ...], msgspec.Meta(max_length=1024)] = ()
    options: PlanOptions
    reason: _Text | None
    launches: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAUNCHES_ASKED)]
    shard_number: _ShardNumber = msgspec.field(default=0, name="number")
    shards_in_all: _ShardNumber = msgspec.field(default=0, name="of")
    shards: Annotated[tuple[tuple[CaseId, ...], ...], msgspec.Meta(max_length=MAX_SHARDS)] = ()
    names: dict[CaseId, tuple[Name, ...]] = msgspec.field(name="asked")
    skipped: dict[CaseId, _Text] = {}
    no_power: _Text = ""
    driver_version: _Word = ""
    attached: _Text = ""
    attached_control: _Text = ""

    @property
    def name(self) -> str:
        """The name of the run in messages."""
        if self.shards_in_all:
            return f"shard {self.shard_number}/{self.shards_in_all}"
        return f"'{self.run}'"


def cases_sha256(tier: Tier) -> str:
    """Return a checksum of all settings of a tier's cases."""
    keys = "\n".join(case.key for case in tier.cases)
    return hashlib.sha256(keys.encode()).hexdigest()


def plan_of(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]]
) -> RunPlan:
    """Return the plan of a run.

    Args:
        context: what is fixed for the run.
        selection: what its tests need.
        shards: the ids of each shard's cases; empty if the run isn't sharded.
    """
    gpus = gpus_of(context.options)
    attached = context.provision.attached
    control = context.provision.attached_control
    reason = None
    if context.is_recording:
        reason = (context.options.reason or "").strip()
    shard_number, _ = context.options.part or (0, 0)

    # Sorted, because a set has no order, and equal selections must have equal plans.
    sorted_names = {case_id: tuple(sorted(names)) for case_id, names in selection.names.items()}
    return RunPlan(
        run=context.run_folder.name,
        began_at=context.clock.began_at.replace(microsecond=0),
        machine=context.machine,
        commit=context.commit,
        tier=context.tier.name,
        cases_sha256=cases_sha256(context.tier),
        environment=context.environment,
        gpus_gib=gpus.memory_gib,
        options=plan_options(context.options),
        reason=reason,
        launches=context.launches,
        shard_number=shard_number,
        shards_in_all=len(shards),
        shards=tuple(tuple(case_ids) for case_ids in shards),
        names=sorted_names,
        skipped=dict(selection.skipped),
        no_power=selection.no_power,
        driver_version=gpus.driver_version,
        attached=attached.url if attached else "",
        attached_control=control.url if control else "",
    )


def plan_options(options: Options) -> PlanOptions:
    """Return the options of a run that a merge compares."""
    names = PlanOptions.__struct_fields__
    return PlanOptions(**{name: getattr(options, name) for name in names})
