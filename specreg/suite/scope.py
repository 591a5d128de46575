"""What a run covers: its cases, what it asks of them, and what is known of them."""

import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from specreg.baselines.comparison import CaseBaselines
from specreg.baselines.store import BaselineStore, settings_in
from specreg.core.errors import BaselineError
from specreg.correctness.checks import CHECKS, CorrectnessCheck, checks_of
from specreg.datasets.prompts import prompts_sha256
from specreg.matrix.case import Case, CaseSettings, Tier
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.journal import Key
from specreg.measurement.metrics import METRICS, RECORDED, Family, Metric, metrics_of
from specreg.servers.launch import Launch, launches_of
from specreg.servers.provision import Provision
from specreg.suite.options import Options, options_to_repeat
from specreg.suite.plan import MergedShards
from specreg.telemetry.identity import Environment, ProcessorLoad

_LAUNCHES_TO_RECORD = 3


@dataclass(slots=True, kw_only=True)
class Scope:
    """What a run covers.

    Attributes:
        show: is told what goes on; tell: what must be printed in any case.
        asked: by case, the metrics that this run judges; one that isn't there is asked for all.
        skipped: by case that was asked for and can't run here, what it needs.
        unfetched: by case that isn't skipped, why its models can't be fetched; skips_unfetched:
            whether such a case is skipped, not INVALID.
        no_power: why power can't be measured, empty where it can or isn't asked for.
        load: of the processor when the run began; None where others measured.
        shares_machine: whether other processes of the same run measure on this machine.
        merged: what other processes measured, None where this one measures.
        merged_run, ended_at: of shards, the name of the whole run, and when the last one was done.
    """

    options: Options = field(default_factory=Options)
    root: Path
    tier: Tier
    environment: Environment
    run_folder: Path
    show: Callable[[str], None]
    tell: Callable[[str], None] = print
    store: BaselineStore = field(init=False)
    provision: Provision = field(init=False)
    asked: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unfetched: Mapping[str, str] = field(default_factory=dict)
    skips_unfetched: bool = True
    no_power: str = ""
    load: ProcessorLoad | None = None
    shares_machine: bool = False
    merged: MergedShards | None = None
    merged_run: str = ""
    ended_at: str = ""
    began_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(tz=dt.UTC))
    began_ns: int = field(default_factory=time.monotonic_ns)
    _known: tuple[Case, CaseBaselines] | None = None

    def __post_init__(self) -> None:
        options = self.options
        self.store = BaselineStore(
            folder=self.root / options.baselines,
            environment=self.environment,
            options=options_to_repeat(options, self.tier.name),
        )
        self.provision = Provision(
            on_gpu=self.tier.needs_gpus > 0,
            version=options.engine_version,
            python=options.engine_python,
            url=options.attach.rstrip("/") if options.attach else None,
            show=self.show,
            tell=self.tell,
            waits=not options.no_wait,
        )

    @property
    def launches(self) -> int:
        """How many launches of each server are measured."""
        return self.options.launches or (_LAUNCHES_TO_RECORD if self.records else 1)

    @property
    def records(self) -> bool:
        """Whether baselines are recorded, and nothing is judged."""
        return self.options.update_baselines

    @property
    def history(self) -> Path:
        """The file of what the runs on this machine did."""
        folder = self.options.history or Path(self.options.runs).parent / "history"
        return self.root / folder / f"{self.environment.name}.jsonl"

    @property
    def softened(self) -> AbstractSet[str]:
        """The metrics whose tests pass where an effect is INCONCLUSIVE."""
        asked = self.options.inconclusive
        speeds = {name for name, metric in METRICS.items() if metric.by_launch}
        return {"fail": set(), "warn": METRICS.keys(), "warn-speed": speeds}[asked]

    @property
    def now(self) -> dt.datetime:
        """The run's start plus the time since, whatever became of the wall clock."""
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

    def asked_by(
        self, marker: str, name: str, case: Case, server: Launch
    ) -> Sequence[Metric | CorrectnessCheck]:
        """What the tests of a family, or of a correctness check, ask of a case on a launch."""
        if name == RECORDED.name:  # once, of what the run may measure and time
            judged = any(metric.is_judged(case) for metric in METRICS.values())
            return [RECORDED] if server.number == 1 and case.speed and judged else []
        if marker == "family":
            return metrics_of(case, Family(name))
        return [check for check in self.checks_of(case, server.number) if check.name == name]

    def checks_of(self, case: Case, launch: int) -> Sequence[CorrectnessCheck]:
        """The correctness checks that this run makes of a case, on the first launch alone."""
        checks = checks_of(case, with_torch=self.options.oracle) if launch == 1 else ()
        return [one for one in checks if one.name in self.asked.get(case.id, CHECKS)]

    def asked_of(self, case: Case) -> tuple[Metric, ...]:
        """The metrics that this run judges of a case."""
        asked = self.asked.get(case.id, METRICS.keys())
        return tuple(m for m in METRICS.values() if m.name in asked and m.is_judged(case))

    def asks_speed(self, case: Case) -> bool:
        """Whether the run wants to know how fast a case is.

        A case whose speeds are all shown alone is timed whenever it is measured.
        """
        speeds = [one for one in METRICS.values() if one.by_launch and one.applies_to(case)]
        only_shown = bool(speeds) and not any(one.is_judged(case) for one in speeds)
        recorded = (self.records and case.speed) or RECORDED.name in self.asked.get(case.id, ())
        return only_shown or recorded or any(one.by_launch for one in self.asked_of(case))

    def least_s(self, case: Case) -> float:
        """How long a case's servers are asked at least; 0 where no recorded speed waits for it."""
        if not self.asks_speed(case):
            return 0.0
        if self.records:
            return case.least_s
        try:
            exact = self.known_of(case).exact
        except BaselineError:
            return 0.0
        return case.least_s if exact and exact.launches else 0.0

    @property
    def asks_for_all(self) -> bool:
        """Whether the run judges everything that the tier has, on all its prompts."""
        for case in self.tier.cases:
            metrics = (metric for metric in METRICS.values() if metric.is_judged(case))
            measurable = {one.name for one in metrics if not self.why_dark(case, one)}
            if case.matrix_prompts or not self.asked.get(case.id, frozenset()) >= measurable:
                return False
        return True

    def why_dark(self, case: Case, what: Metric | CorrectnessCheck) -> str:
        """Why a metric of power can't be measured; empty of any other."""
        is_power = isinstance(what, Metric) and what.family is Family.POWER
        return self.provision.why_no_power(case.server) if is_power else ""

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
        spec = case.server
        models = [resolve_model(self.root, name) for name in (spec.target, spec.draft) if name]
        requirement = self.provision.requirement(spec)
        files = [prompts_sha256(load_case_prompts(self.root, case)), *map(model_sha256, models)]
        return Key(
            case=case.key,
            case_id=case.id,
            launch=launch,
            asked="record" if self.records else asked,
            environment=self.environment.name,
            engine=f"{self.provision.python or ''} {requirement.pin}".strip(),
            files_sha256=" ".join(files),
        )
