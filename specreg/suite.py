"""One run of the suite: from the options to servers, measurements, verdicts and baselines.

The pytest plugin and the fixtures hold one of these and do nothing by themselves.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.datasets import Prompt, dataset_named
from specreg.datasets._dataset import prompts_sha256
from specreg.engines import engine_named
from specreg.engines._engine import Requirement
from specreg.environments import EngineEnvironment, engine_environment
from specreg.errors import DatasetError, SpecregError
from specreg.expectation import Recorded, look_up, record_measurements, settings_of
from specreg.figures import figures_of, record_figures
from specreg.identity import Environment
from specreg.journal import Journal, Key
from specreg.matrix import Case, ServerSpec, Tier
from specreg.measurement import Measurement, measure
from specreg.metrics import Metric
from specreg.models import model_sha256, resolve_model
from specreg.protocols import Form
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
        return self.spec.id + self._suffix

    def case_id(self, case: Case) -> str:
        """The same of a case on this launch."""
        return case.id + self._suffix

    @property
    def _suffix(self) -> str:
        return f"-launch{self.number}" if self.number > 1 else ""


@dataclass(slots=True, kw_only=True)
class Starting:
    """A server that starts when it is first asked for; one that failed to isn't tried again."""

    launch: Launch
    start: Callable[[], Server]
    _server: Server | None = None
    _error: SpecregError | None = None

    @property
    def server(self) -> Server:
        """The running server.

        Raises:
            SpecregError: it didn't start.
        """
        if self._error is not None:
            raise self._error
        if self._server is None:
            try:
                self._server = self.start()
            except SpecregError as error:
                self._error = error
                raise
        return self._server


def check_form(case: Case, prompts: Iterable[Prompt]) -> None:
    """Token ids are no chat.

    Raises:
        DatasetError: the case puts them into one.
    """
    if case.form is Form.CHAT and any(prompt.token_ids for prompt in prompts):
        message = (
            f"dataset '{case.dataset}': its prompts are token ids, which are no chat;"
            f" set form = \"completions\" for '{case.id}' in the matrix"
        )
        raise DatasetError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a run needs, and what has come of it so far.

    Attributes:
        root: the repository's root.
        tier: what runs; `environment`: on what.
        baselines: the folder of the baselines.
        launches: how many launches of each server are measured.
        update_reason: why baselines are recorded, None when they aren't.
        engine_version: which to install, None for the engine's own choice.
        engine_python: an interpreter that has the engine, None to make an environment.
        ready_within_s: how long a server may take to its first token.
        run_folder: where this run leaves logs, figures and its journal.
        journal: of this run; earlier: what the run that is resumed had measured.
        show: is told what goes on.
        verdicts, measurements: so far, in the order of the run; taken_over: of the earlier run.
    """

    root: Path
    tier: Tier
    environment: Environment
    baselines: Path
    launches: int
    update_reason: str | None
    engine_version: str | None
    engine_python: str | None
    ready_within_s: float
    run_folder: Path
    journal: Journal
    earlier: Mapping[Key, Measurement]
    show: Callable[[str], None]
    verdicts: list[Verdict] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    taken_over: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the engines run on a GPU."""
        return self.tier.needs_gpus > 0

    def prompts(self, case: Case) -> tuple[Prompt, ...]:
        """The prompts of the case.

        Raises:
            DatasetError: the dataset can't be read, holds fewer than the case asks for, or token
                ids for a chat.
        """
        prompts = dataset_named(case.dataset).load_prompts(self.root)
        if len(prompts) < case.prompts:
            message = (
                f"dataset '{case.dataset}': has {len(prompts)} prompts, '{case.id}' asks for"
                f" {case.prompts}; lower prompts in the matrix"
            )
            raise DatasetError(message)
        check_form(case, prompts)
        return prompts[: case.prompts]

    @contextlib.contextmanager
    def start(self, launch: Launch, beside: "Starting | None" = None) -> Iterator["Starting"]:
        """The server of a launch for as long as the context lasts; it starts when first asked for.

        One that runs beside it already is taken if it is the same.
        """
        if beside is not None and beside.launch == launch:
            yield beside
            return
        with contextlib.ExitStack() as stack:
            yield Starting(launch=launch, start=lambda: stack.enter_context(self._server(launch)))

    def measure(
        self, case: Case, server: "Starting", control: "Starting | None", *, look: int = 1
    ) -> Measurement:
        """Measures a case, or takes over what the run that is resumed has; and remembers it.

        Args:
            case: what to measure.
            server: the case's.
            control: the one beside it, None for no speedup.
            look: 2 for another measurement on the same launch.
        """
        name = server.launch.case_id(case) + ("-look2" if look > 1 else "")
        key = self._key(case, server.launch.number, look)
        measurement = self.earlier.get(key)
        if measurement is None:
            beside = control.server if control is not None else None
            running = server.server
            self.journal.begin(key)
            measurement = measure(
                case,
                running,
                beside,
                self.prompts(case),
                show=self.show,
                record=self.journal.record_round,
            )
            self.journal.end(measurement)
        else:
            self.taken_over.append(name)
        figures = figures_of(measurement, server.launch.number)
        record_figures(self.run_folder / "figures" / f"{name}.json", figures)
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
        for case_id in dict.fromkeys(m.case.id for m in self.measurements):
            measurements = [m for m in self.measurements if m.case.id == case_id]
            try:
                written.append(self._record(measurements[0].case, measurements))
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

    def _server(self, launch: Launch) -> contextlib.AbstractContextManager[Server]:
        return start_server(
            launch.spec,
            self._engine_environment(launch.spec.engine),
            root=self.root,
            log_path=self.run_folder / "logs" / f"{launch.id}.log",
            on_gpu=self.on_gpu,
            ready_within_s=self.ready_within_s,
            show=self.show,
        )

    def _key(self, case: Case, launch: int, look: int) -> Key:
        spec = case.server
        models = [resolve_model(self.root, name) for name in (spec.target, spec.draft) if name]
        requirement = self._requirement(spec.engine)
        files = [prompts_sha256(self.prompts(case)), *map(model_sha256, models)]
        return Key(
            case=msgspec.json.encode(case).decode(),
            case_id=case.id,
            launch=launch,
            look=look,
            environment=self.environment.name,
            engine=self.engine_python or requirement.pin,
            files_sha256=" ".join(files),
        )

    def _requirement(self, engine: str) -> Requirement:
        requirement = engine_named(engine).requirement(on_gpu=self.on_gpu)
        return dataclasses.replace(requirement, version=self.engine_version or requirement.version)

    def _engine_environment(self, engine: str) -> EngineEnvironment:
        requirement = self._requirement(engine)
        if self.engine_python is None:
            return engine_environment(requirement, show=self.show)
        return EngineEnvironment(
            python=self.engine_python,
            package=requirement.package,
            version="",
            torch_source="as it is",
        )
