"""What a run covers: its cases, what it asks of them, and what is known of them."""

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.store import BaselineStore, settings_in
from specreg.datasets.prompts import prompts_sha256
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import CaseSettings
from specreg.measurement.journal import Key
from specreg.measurement.metrics import METRICS, Family, Metric
from specreg.servers.launch import Launch, launches_of
from specreg.servers.provision import Provision
from specreg.suite.options import Options
from specreg.telemetry.identity import Environment, ProcessorLoad


@dataclass(slots=True, kw_only=True)
class Scope:
    """What a run covers.

    Attributes:
        options: what the user asked for.
        root: the repository's root; tier: what runs; store: the baselines of this machine.
        launches: how many launches of each server are measured.
        update_reason: why baselines are recorded, empty for the usual; None when they aren't.
        provision: where the engines come from.
        run_folder: where this run leaves logs and its journal; history: the folder of
            what all runs did.
        softened: the metrics whose tests pass where an effect is INCONCLUSIVE.
        asked: by case, the metrics that this run judges; one that isn't there is asked for all.
        skipped: by case that was asked for and can't run here, what it needs.
        unfetched: by case that isn't skipped, why its models can't be fetched; skips_unfetched:
            whether such a case is skipped, not INVALID.
        no_power: why power can't be measured, empty where it can or isn't asked for.
        load: of the processor when the run began; None where others measured.
        shares_machine: whether other processes of the same run measure on this machine.
        hosts, driver_version, torch_versions, ended_at, merged_run: of what other processes
            measured: the machine and what the engine ran with by case, the driver of the GPUs, when
            the last of them was done, and the name of the whole run.
        began_at, began_ns: when it began, on the wall and on the monotonic clock.
    """

    options: Options = field(default_factory=Options)
    root: Path
    tier: Tier
    store: BaselineStore
    launches: int
    update_reason: str | None
    provision: Provision
    run_folder: Path
    history: Path
    softened: AbstractSet[str] = frozenset()
    asked: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unfetched: Mapping[str, str] = field(default_factory=dict)
    skips_unfetched: bool = True
    no_power: str = ""
    load: ProcessorLoad | None = None
    shares_machine: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)
    driver_version: str | None = None
    torch_versions: Mapping[str, str] = field(default_factory=dict)
    ended_at: str = ""
    merged_run: str = ""
    began_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(tz=dt.UTC))
    began_ns: int = field(default_factory=time.monotonic_ns)
    _known: tuple[Case, CaseBaselines] | None = None

    @property
    def now(self) -> dt.datetime:
        """The moment, as far from the beginning as it took, whatever became of the wall clock."""
        passed_us = (time.monotonic_ns() - self.began_ns) // 1000
        return self.began_at + dt.timedelta(microseconds=passed_us)

    @property
    def name(self) -> str:
        """What the history and the documents call it; merged shards by the first one's."""
        return self.merged_run or self.run_folder.name

    @property
    def is_part(self) -> bool:
        """Whether the run is one of several that are merged, so that it records nothing itself."""
        return self.shares_machine or self.options.shard is not None

    def setups(self) -> Iterator[tuple[Launch, Launch, Case]]:
        """Control, server and case of everything there is to measure, in the order to do it."""
        specs = list(dict.fromkeys(case.server for case in self.tier.cases))
        in_order = sorted(self.tier.cases, key=lambda case: specs.index(case.server))
        for number in range(1, self.launches + 1):
            for case in in_order:
                if self.options.engine in {None, case.server.engine}:
                    yield *launches_of(case, number), case

    @property
    def environment(self) -> Environment:
        """The machine."""
        return self.store.environment

    def asked_of(self, case: Case) -> tuple[Metric, ...]:
        """The metrics that this run judges of a case."""
        asked = self.asked.get(case.id, METRICS.keys())
        return tuple(m for m in METRICS.values() if m.name in asked and m.is_judged(case))

    def asks_speed(self, case: Case) -> bool:
        """Whether the run wants to know how fast a case is."""
        recording = self.update_reason is not None
        return recording or any(metric.by_launch for metric in self.asked_of(case))

    @property
    def asks_for_all(self) -> bool:
        """Whether the run judges everything that the tier has, on all its prompts."""
        for case in self.tier.cases:
            dark = bool(self.provision.why_no_power(case.server))
            measurable = {
                metric.name
                for metric in METRICS.values()
                if metric.is_judged(case) and not (dark and metric.family is Family.POWER)
            }
            asked = self.asked.get(case.id, frozenset())
            if case.matrix_prompts or not asked >= measurable:
                return False
        return True

    def settings(self, case: Case) -> CaseSettings:
        """What must be equal for another measurement of the case to be compared."""
        return settings_in(self.root, case)

    def known_of(self, case: Case) -> CaseBaselines:
        """What the baselines know of a case; raises BaselineError where one can't be read."""
        if self._known is None or self._known[0] != case:
            self._known = case, self.store.look_up(case, self.settings(case))
        return self._known[1]

    def key(self, case: Case, launch: int) -> Key:
        """What has to be equal for an earlier run's measurement to be taken over."""
        asked = "all" if self.asks_speed(case) else "acceptance"  # others' prompts or no control
        if self.update_reason is not None:
            asked = "record"
        spec = case.server
        models = [resolve_model(self.root, name) for name in (spec.target, spec.draft) if name]
        requirement = self.provision.requirement(spec)
        files = [prompts_sha256(load_case_prompts(self.root, case)), *map(model_sha256, models)]
        return Key(
            case=case.key,
            case_id=case.id,
            launch=launch,
            asked=asked,
            environment=self.environment.name,
            engine=f"{self.provision.python or ''} {requirement.pin}".strip(),
            files_sha256=" ".join(files),
        )
