"""What is fixed for a run once its options are read."""

import datetime as dt
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from specreg.baselines.comparison import CaseBaselines, differing_settings
from specreg.baselines.schema import Baseline
from specreg.baselines.store import BaselineStore, load_settings
from specreg.core.errors import BaselineError
from specreg.datasets.hub import is_offline
from specreg.matrix.case import Case, CaseSettings, Tier, in_run_order
from specreg.measurement.metrics import METRICS
from specreg.runs.goals import CaseLaunch
from specreg.servers.provision import Provision
from specreg.suite.attached import addresses_of
from specreg.suite.options import LAUNCHES_TO_RECORD, WITHOUT_HISTORY, Options, options_to_repeat
from specreg.telemetry.identity import Environment, ProcessorLoad
from specreg.verdicts.history import NO_HISTORY, History, load_history

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """The time of day during a run, which stays right if somebody sets the machine's clock.

    Attributes:
        began_at: when the run began, in UTC.
        began_ns: the same moment on the monotonic clock.
        monotonic_ns: the monotonic clock.
    """

    began_at: dt.datetime
    began_ns: int
    monotonic_ns: Callable[[], int] = time.monotonic_ns

    @classmethod
    def start(cls) -> Self:
        """Return a clock of a run that begins now."""
        return cls(began_at=dt.datetime.now(tz=dt.UTC), began_ns=time.monotonic_ns())

    def now(self) -> dt.datetime:
        """Return the start of the run plus the time since, in UTC."""
        passed_us = (self.monotonic_ns() - self.began_ns) // _NS_PER_US
        return self.began_at + dt.timedelta(microseconds=passed_us)

    def now_text(self) -> str:
        """Return the time as ISO 8601 in UTC, to the second."""
        return self.now().isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What is fixed for a run: its machine, its tier, its options and its folders.

    Attributes:
        name: the name of the run in the history and in documents.
        root: the root of the repository.
        tier: the cases that the run may measure.
        environment: the kind of machine, whose name is the folder of its baselines.
        options: the options that the user gave.
        run_folder: the folder of the run's ledger, logs and reports.
        provision: where the engines come from.
        store: the baselines that apply to this machine.
        clock: the time of day.
        commit: the commit of the repository when the run was measured; empty without one.
        is_worker: True if this process is a worker of pytest-xdist, which measures a part of the
            run.
        nights_left_out: the names of earlier runs that aren't judged with.
        processor_load: the load of this machine when the run began; None if the run was merged from
            shards, which may come from other machines.
        machine: the identity of this machine among those of its kind; empty if unknown.
    """

    name: str
    root: Path
    tier: Tier
    environment: Environment
    options: Options
    run_folder: Path
    provision: Provision
    store: BaselineStore
    clock: RunClock
    commit: str = ""
    is_worker: bool = False
    nights_left_out: AbstractSet[str] = frozenset()
    processor_load: ProcessorLoad | None = None
    machine: str = ""

    @property
    def launches(self) -> int:
        """The number of launches of each server that are planned."""
        if self.options.launches is not None:
            return self.options.launches
        if self.is_recording:
            return LAUNCHES_TO_RECORD
        return 1

    @property
    def is_recording(self) -> bool:
        """True if baselines are recorded, and nothing is judged."""
        return self.options.update_baselines

    @property
    def is_part(self) -> bool:
        """True if the run is one of several that are merged. Then it writes no baselines itself."""
        return self.is_worker or self.options.shard is not None

    @property
    def skips_unfetched(self) -> bool:
        """True if a case whose models can't be fetched is skipped; False if it is INVALID."""
        return not self.options.require_tier or is_offline()

    @property
    def softened(self) -> AbstractSet[str]:
        """The metrics whose tests always pass if they are INCONCLUSIVE."""
        if self.options.inconclusive == "warn":
            return METRICS.keys()
        if self.options.inconclusive == "warn-speed":
            return {name for name, metric in METRICS.items() if metric.by_launch}
        return set()

    @property
    def has_history(self) -> bool:
        """True if the history of this machine is read, and this run may be added to it."""
        return self.options.history != WITHOUT_HISTORY

    @property
    def holds_by_nights(self) -> bool:
        """True if a verdict that tonight leaves undecided passes, if later nights can decide it."""
        return self.has_history and self.options.inconclusive == "nights"

    def load_history(self) -> History:
        """Return the nights of the cases that can be judged; none if the user wants no history.

        These are the cases of the tier, and those that have a baseline of this machine.
        """
        if not self.has_history:
            return NO_HISTORY
        case_ids = {case.id for case in self.tier.cases}
        case_ids.update(path.stem for path in self.store.own_paths())
        history = load_history(self.history_path, dt.datetime.now(tz=dt.UTC), case_ids)
        return history.without(*self.nights_left_out)

    @property
    def history_path(self) -> Path:
        """The file with the history of this machine."""
        folder = self.options.history or Path(self.options.runs).parent / "history"
        return self.root / folder / f"{self.environment.name}.jsonl"

    def case_launches(self) -> Iterator[CaseLaunch]:
        """Yield the cases of the tier on each launch, in the order in which a run measures them.

        Cases that share a server follow one another. If the user has chosen an engine, the cases of
        other engines are left out.
        """
        cases = in_run_order(self.tier.cases)
        for number in range(1, self.launches + 1):
            for case in cases:
                if self.options.engine in {None, case.server.engine}:
                    yield CaseLaunch.of(case, number)

    def settings(self, case: Case) -> CaseSettings:
        """Return the settings that two measurements of a case must share to be compared.

        Raises:
            SpecregError: the models or the prompts of the case can't be read.
        """
        return load_settings(self.root, case)

    def baselines_of(self, case: Case) -> CaseBaselines:
        """Return the baselines of a case, of this machine and of others.

        Raises:
            BaselineError: a baseline can't be read.
            SpecregError: the models or the prompts of the case can't be read.
        """
        return self.store.look_up(case, self.settings(case))

    def exact_baseline(self, case: Case) -> Baseline | None:
        """Return this machine's baseline of a case, if it has the present settings of the case.

        Returns:
            None if there is no such baseline, or if it can't be read.

        Raises:
            SpecregError: the models or the prompts of the case can't be read.
        """
        try:
            known = self.baselines_of(case)
        except BaselineError:
            return None
        if known.exact is None or differing_settings(known.exact.case, known.settings):
            return None
        return known.exact


def store_of(
    options: Options, root: Path, environment: Environment, tier_name: str | None
) -> BaselineStore:
    """Return the baselines of a machine, in the folder that the options name.

    Args:
        options: the options that the user gave.
        root: the root of the repository.
        environment: the environment of the machine.
        tier_name: the tier that a command has to name; None for the machine's default.
    """
    return BaselineStore(
        folder=root / options.baselines,
        environment=environment,
        options=options_to_repeat(options, tier_name),
    )


def provision_of(
    options: Options,
    *,
    on_gpu: bool,
    show: Callable[[str], None],
    tell: Callable[[str], None] = print,
) -> Provision:
    """Return where the engines of a run come from.

    Args:
        options: the options that the user gave.
        on_gpu: True if the engines run on GPUs.
        show: shows a line of progress, which may be switched off.
        tell: prints a line that is always shown.

    Raises:
        AttachError: as in `addresses_of`.
    """
    attached, attached_control = addresses_of(options)
    return Provision(
        on_gpu=on_gpu,
        version=options.engine_version,
        python=options.engine_python,
        attached=attached,
        attached_control=attached_control,
        show=show,
        tell=tell,
        waits=not options.no_wait,
        image=options.image or "",
        container_runtime=options.container_runtime or "",
    )
