"""One run of the suite: from the options to servers, measurements, verdicts and baselines.

The pytest plugin and the fixtures hold one of these and do nothing by themselves.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specreg.datasets import Prompt, dataset_named
from specreg.engines import engine_named
from specreg.environments import EngineEnvironment, engine_environment
from specreg.errors import DatasetError, SpecregError
from specreg.expectation import Recorded, look_up, record_measurements, settings_of
from specreg.identity import Environment
from specreg.matrix import Case, ServerSpec, Tier
from specreg.measurement import Measurement, measure
from specreg.metrics import Metric
from specreg.server import Server, start_server
from specreg.verdict import Outcome, Verdict, confirm, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a server: what is started, and the how-manieth time, from 1."""

    spec: ServerSpec
    number: int

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`, with `-launch2` from the second on."""
        return self.spec.id + (f"-launch{self.number}" if self.number > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a run needs, and what has come of it so far.

    Attributes:
        root: the repository's root.
        tier: what runs; `environment`: on what.
        baselines: the folder of the baselines.
        launches: how many launches of each server are measured.
        update_reason: why baselines are recorded, None when they aren't.
        engine_python: an interpreter that has the engine, None to make an environment.
        ready_within_s: how long a server may take to its first token.
        log_folder: of the servers' output.
        show: is told what goes on.
        verdicts, measurements: so far, in the order of the run.
    """

    root: Path
    tier: Tier
    environment: Environment
    baselines: Path
    launches: int
    update_reason: str | None
    engine_python: str | None
    ready_within_s: float
    log_folder: Path
    show: Callable[[str], None]
    verdicts: list[Verdict] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the engines run on a GPU."""
        return self.tier.needs_gpus > 0

    def prompts(self, case: Case) -> tuple[Prompt, ...]:
        """The prompts of the case.

        Raises:
            DatasetError: the dataset can't be read, or holds fewer than the case asks for.
        """
        prompts = dataset_named(case.dataset).load_prompts(self.root)
        if len(prompts) < case.prompts:
            message = (
                f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' asks for"
                f" {case.prompts}; lower prompts in the matrix"
            )
            raise DatasetError(message)
        return prompts[: case.prompts]

    @contextlib.contextmanager
    def start(self, launch: Launch, beside: Server | None = None) -> Iterator[Server]:
        """The server of a launch for as long as the context lasts.

        One that runs beside it already is taken if it is the same.
        """
        if beside is not None and beside.spec == launch.spec:
            yield beside
            return
        with start_server(
            launch.spec,
            self._engine_environment(launch.spec.engine),
            root=self.root,
            log_path=self.log_folder / f"{launch.id}.log",
            on_gpu=self.on_gpu,
            ready_within_s=self.ready_within_s,
            show=self.show,
        ) as server:
            yield server

    def measure(self, case: Case, server: Server, control: Server | None) -> Measurement:
        """Measures a case and remembers the measurement."""
        measurement = measure(case, server, control, self.prompts(case), show=self.show)
        self.measurements.append(measurement)
        return measurement

    def judge(
        self, metric: Metric, measurement: Measurement, again: Callable[[], Measurement]
    ) -> Verdict:
        """Judges a metric and remembers the verdict; while recording, only validity counts.

        Args:
            metric: what to judge.
            measurement: of the case.
            again: measures the case once more; called when a speed looks worse.
        """
        case, value = measurement.case, measurement.values.get(metric.name)
        if self.update_reason is not None and measurement.invalid is None and value is not None:
            verdict = Verdict(
                case_id=case.id, metric=metric.name, outcome=Outcome.MEASURED, value=value
            )
        else:
            settings = settings_of(measurement, self.prompts(case))
            known = look_up(self.baselines, case, settings, self.environment)
            verdict = judge(metric, measurement, known)
            if verdict.outcome is Outcome.REGRESSED and metric.by_launch:
                verdict = confirm(verdict, judge(metric, again(), known))
        self.verdicts.append(verdict)
        return verdict

    def note_failure(self, case: Case, metric: Metric, reason: str) -> None:
        """Remembers that a metric could not be judged, so that no table leaves it out."""
        verdict = Verdict(
            case_id=case.id, metric=metric.name, outcome=Outcome.INVALID, reason=reason
        )
        self.verdicts.append(verdict)

    def record(self) -> tuple[tuple[Recorded, ...], tuple[str, ...]]:
        """Writes the baselines of the cases whose launches were all measured.

        Returns:
            What was written, and in words what was not and why.
        """
        written: list[Recorded] = []
        refused: list[str] = []
        for case in dict.fromkeys(m.case for m in self.measurements):
            measurements = [m for m in self.measurements if m.case == case]
            try:
                written.append(self._record(case, measurements))
            except SpecregError as error:
                refused.append(str(error))
        return tuple(written), tuple(refused)

    def _record(self, case: Case, measurements: list[Measurement]) -> Recorded:
        if len(measurements) < self.launches:
            message = (
                f"baseline of '{case.id}': not written, {len(measurements)} of"
                f" {self.launches} launches were measured; select the whole case: -k {case.id}-"
            )
            raise SpecregError(message)
        return record_measurements(
            self.baselines,
            measurements,
            settings_of(measurements[0], self.prompts(case)),
            self.environment,
            reason=self.update_reason or "",
        )

    def _engine_environment(self, engine: str) -> EngineEnvironment:
        requirement = engine_named(engine).requirement(on_gpu=self.on_gpu)
        if self.engine_python is None:
            return engine_environment(requirement, show=self.show)
        return EngineEnvironment(
            python=self.engine_python,
            package=requirement.package,
            version="as it is",
            torch_source="as it is",
        )
