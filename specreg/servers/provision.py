"""What a run's servers run in: installed once, taken as it is, or found on PATH."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass

from specreg.core.errors import SensorError, UnsupportedError
from specreg.engines.engine import Requirement
from specreg.engines.methods import is_older
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, ServerSpec
from specreg.matrix.schema import NO_LIMITS
from specreg.servers.environments import (
    EngineEnvironment,
    engine_environment,
    installed_version,
    why_not,
)
from specreg.servers.gpu_lease import lease_gpus
from specreg.telemetry.devices import devices_of, why_unreadable
from specreg.telemetry.identity import Gpus, Host, find_gpus
from specreg.telemetry.sensor import Device

VERSION_OPTION = "--specreg-engine-version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the engines of a run come from.

    Attributes:
        on_gpu: whether they run on a GPU.
        version: which to install, None for each engine's own choice.
        python: an interpreter that has the engine, None to make an environment.
        url: of a server that others run, None to start them.
        show: is told what goes on; tell: what must be printed in any case.
        waits: whether to wait for a GPU on which another run of specreg measures.
        site: the machines that they run on; None for this one.
        version_option: what a user chooses a version by; empty for a side of a gate, which has none
            of a run's options.
    """

    on_gpu: bool
    version: str | None
    python: str | None
    url: str | None
    show: Callable[[str], None]
    version_option: str = VERSION_OPTION
    tell: Callable[[str], None] = print
    waits: bool = True
    site: Host | None = None

    @property
    def found_gpus(self) -> Gpus:
        """The GPUs of the machine that they run on."""
        return find_gpus() if self.site is None else self.site.found

    def check(self, cases: Collection[Case]) -> None:
        """Check that each case could be measured, as far as that is known beforehand.

        Raises:
            UnsupportedError: an engine doesn't run here or isn't installed; its version is too
                old for a method, or doesn't tell the acceptance of such prompts; its arguments
                can't be handed on, or its models spread so; or a version or interpreter
                is to be that of several engines, or of one that has its own.
        """
        engines = sorted({case.server.engine for case in cases})
        if len(engines) > 1 and (self.version or self.python):
            message = (
                f"--specreg-engine-version and -python: '{self.version or self.python}' is of one"
                f" engine, the run has {', '.join(engines)}; say --engine"
            )
            raise UnsupportedError(message)
        for spec in dict.fromkeys(case.server for case in cases):
            self._check_installed(spec)
            engine_named(spec.engine).check_arguments(spec.engine_args)
            engine_named(spec.engine).check_parallel(spec.parallel)
            if spec.parallel.nodes > 1:
                message = (
                    f"parallel.nodes = {spec.parallel.nodes}: servers are started on this machine"
                    " alone; start it as its engine says, and measure it with --specreg-attach=URL"
                )
                raise UnsupportedError(message)
        notes = []
        for case in cases:
            version = self.requirement(case.server).version
            check_version(case, version, ours=True, option=self.version_option)
            notes.append(_untested(case.server.engine, version))
        for note in filter(None, dict.fromkeys(notes)):
            self.tell(note)

    def _check_installed(self, spec: ServerSpec) -> None:
        """Check that an engine is there, or that specreg is to install it."""
        engine = engine_named(spec.engine)
        if engine.program is not None:
            self._check_program(engine.name, engine.program)
        elif self.python is not None:
            if self.version is not None:
                message = (
                    f"--specreg-engine-version '{self.version}' with -python: an interpreter has"
                    " the version that it has; leave one of them out"
                )
                raise UnsupportedError(message)
            variables = {**os.environ, **dict(spec.engine_env)}
            why = why_not(self.python, engine.module, variables=variables)
            if why:
                own = "leave it out: then specreg makes an environment"
                message = (
                    f"{self._named('python', self.python)}: {why}; install {engine.name} there, or"
                    f" {own if self.version_option else 'name another place'}"
                )
                raise UnsupportedError(message)

    def _check_program(self, engine: str, program: str) -> None:
        """Check that a program is on PATH, and no other is asked for."""
        for option, given in (("version", self.version), ("python", self.python)):
            if given is not None:
                message = (
                    f"{self._named(option, given)}: engine '{engine}' is the program"
                    f" '{program}' on PATH; leave it out"
                )
                raise UnsupportedError(message)
        if shutil.which(program) is None:
            others = f"leave the engine out: -k 'not {engine}'"
            message = (
                f"engine '{engine}': no program '{program}' on PATH; run where it is installed,"
                f" or {others if self.version_option else 'choose other cases'}"
            )
            raise UnsupportedError(message)

    def _named(self, option: str, given: str) -> str:
        """What was given, as who gave it knows it: by an option of a run, or in a side."""
        return f"{'--specreg-engine-' if self.version_option else ''}{option} '{given}'"

    def environment(self, spec: ServerSpec) -> EngineEnvironment:
        """What a server runs in; made if it isn't there.

        Raises:
            EnvironmentSetupError: it could not be made.
        """
        requirement = self.requirement(spec)
        starts = self.url is None and engine_named(spec.engine).program is None
        if starts and self.python is None:
            return engine_environment(requirement, show=self.show)
        return EngineEnvironment(
            python=self.python or "",
            package=requirement.package,
            version=requirement.version,
            torch_source="as it is",
        )

    def torch_version(self, spec: ServerSpec) -> str:
        """What a server runs with; empty where that isn't known, as of one elsewhere.

        Raises:
            EnvironmentSetupError: its environment could not be made.
        """
        if self.site is not None:
            return ""
        return installed_version(self.environment(spec).python, "torch")

    def devices(self, spec: ServerSpec) -> tuple[Device, ...]:
        """What a server runs on.

        Raises:
            SensorError: nothing shows it.
        """
        if self.url is not None:
            raise SensorError("power: what the attached server runs on isn't known here")
        gpus = spec.parallel.gpus if self.on_gpu else 0
        if self.site is not None:
            return self.site.devices(gpus)
        return devices_of(gpus, {**os.environ, **dict(spec.engine_env)})

    def leased(
        self, spec: ServerSpec, *, beside_starting: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """A server's GPUs for as long as the context lasts; nothing of one that has none of ours.

        Args:
            spec: of the server.
            beside_starting: see `lease`.

        Raises:
            SensorError: nothing shows them; or as `lease` says, once it is entered.
        """
        gpus = spec.parallel.gpus if self.on_gpu and self.url is None else 0
        variables = {**os.environ, **dict(spec.engine_env)}
        return lease_gpus(
            gpus, variables, waits=self.waits, tell=self.tell, beside_starting=beside_starting
        )

    def why_no_power(self, spec: ServerSpec) -> str:
        """Why the power of a server can't be read; empty where it can."""
        try:
            return why_unreadable(self.devices(spec))
        except SensorError as error:
            return str(error)

    def requirement(self, spec: ServerSpec) -> Requirement:
        """What to install for a server, or what is there; the version is "" where it isn't known.

        Raises:
            UnsupportedError: the engine doesn't run here.
        """
        engine = engine_named(spec.engine)
        if self.url is not None:
            return Requirement(package=self.url, version="")
        wanted = engine.requirement(on_gpu=self.on_gpu)
        python = self.python
        if engine.program is None and python is not None:
            # Built from source, an engine for CPUs too is called as its module.
            usual = installed_version(python, wanted.package)
            package = wanted.package if usual else engine.module
            return dataclasses.replace(
                wanted, package=package, version=usual or installed_version(python, package)
            )
        return dataclasses.replace(
            wanted,
            version=self.version or wanted.version,
            extras=(
                *wanted.extras,
                *engine.spelling_of(spec.method).packages,
                *engine.packages(spec.parallel),
            ),
        )


def _untested(engine: str, version: str) -> str:
    """A note on a version that is older than those that specreg was tested with, else empty."""
    oldest = engine_named(engine).oldest
    if not is_older(version, oldest):
        return ""
    return (
        f"engine '{engine}' {version}: older than {oldest}, the oldest that specreg is tested with;"
        " what it takes and tells is read from its own help, metrics and answers"
    )


def check_version(case: Case, version: str, *, ours: bool, option: str = VERSION_OPTION) -> None:
    """Check that a version of a case's engine can measure it; "" is any version.

    Args:
        case: what is to be measured.
        version: of its engine.
        ours: whether we start the server.
        option: what a user chooses a version by then; empty where that goes without saying.

    Raises:
        UnsupportedError: it is too old or too new for the method, or doesn't tell the acceptance of
            such prompts.
    """
    engine, method = engine_named(case.server.engine), case.server.method
    spelling = engine.spelling_of(method)
    first, lost = spelling.since, spelling.until
    how = f" with {option}" if ours and option else ""
    if is_older(version, first):
        message = (
            f"method '{method}': {engine.name} {version} lacks it, or doesn't tell what"
            f" it accepts; take {first} or newer{how}"
        )
        raise UnsupportedError(message)
    if version and lost and not is_older(version, lost):
        message = f"method '{method}': {engine.name} {version} lost it; take one before {lost}{how}"
        raise UnsupportedError(message)
    engine.wire_format.check(case.form, version, ours=ours)
    if not case.stream:
        _check_whole(case, streams_alone=not engine.wire_format.answers_whole)


def _check_whole(case: Case, *, streams_alone: bool) -> None:
    """Check that answers can come at once, and tell what is asked of them.

    Raises:
        UnsupportedError: the engine is asked for streams alone, or only a stream would tell.
    """
    reasons = (
        (streams_alone, f"engine '{case.server.engine}' is asked for streams alone"),
        (case.speculates, "only the chunks of a stream tell its acceptance"),
        (case.limits != NO_LIMITS, "limits on TTFT and TPOT are kept in a stream"),
    )
    for applies, reason in reasons:
        if applies:
            message = f"case '{case.id}' with stream = false: {reason}; leave one of them out"
            raise UnsupportedError(message)
