"""What a run's servers run in: installed once, taken as it is, or found on PATH."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from specreg.core.errors import SensorError, UnsupportedError
from specreg.engines.engine import Engine, Requirement
from specreg.engines.methods import is_older
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case, ServerSpec
from specreg.matrix.schema import NO_LIMITS
from specreg.servers.environments import (
    EngineEnvironment,
    engine_environment,
    installed_version,
    why_not,
)
from specreg.servers.gpu_lease import lease_gpus
from specreg.telemetry.devices import devices_of
from specreg.telemetry.identity import Gpus, find_gpus
from specreg.telemetry.sensor import Device


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
    """

    on_gpu: bool
    version: str | None
    python: str | None
    url: str | None
    show: Callable[[str], None]
    tell: Callable[[str], None] = print
    waits: bool = True

    @property
    def found_gpus(self) -> Gpus:
        """The GPUs of the machine that they run on."""
        return find_gpus()

    def check(self, cases: Collection[Case]) -> None:
        """Check that each case could be measured, as far as that is known beforehand.

        Raises:
            UnsupportedError: an engine doesn't run here, isn't installed, or can't be as asked; or
                its version, arguments or spread don't fit a case.
        """
        engines = sorted({case.server.engine for case in cases})
        if len(engines) > 1 and (self.version or self.python):
            message = (
                f"--specreg-engine-version and -python: '{self.version or self.python}' is of one"
                f" engine, the run has {', '.join(engines)}; say --engine"
            )
            raise UnsupportedError(message)
        for spec in dict.fromkeys(case.server for case in cases):
            engine = engine_named(spec.engine)
            if why := self._why_not_installed(engine, {**os.environ, **dict(spec.engine_env)}):
                raise UnsupportedError(why)
            engine.check(spec)
            if spec.parallel.nodes > 1:
                message = (
                    f"parallel.nodes = {spec.parallel.nodes}: servers are started on this machine"
                    " alone; start it as its engine says, and measure it with --specreg-attach=URL"
                )
                raise UnsupportedError(message)
        for case in cases:
            check_version(case, self.requirement(case.server).version)

    def _why_not_installed(self, engine: Engine, variables: Mapping[str, str]) -> str:
        """Why an engine isn't there, nor specreg's to install; empty where it is."""
        version, python, program = self.version, self.python, engine.program
        if program is not None:
            given = [
                f"{name} '{one}'"
                for name, one in (("version", version), ("python", python))
                if one is not None
            ]
            if given:
                is_one = f"engine '{engine.name}' is the program '{program}' on PATH"
                return f"{given[0]}: {is_one}; leave it out"
            if shutil.which(program) is None:
                advice = "run where it is installed, or leave the engine's cases out"
                return f"engine '{engine.name}': no program '{program}' on PATH; {advice}"
        elif python is not None:
            if version is not None:
                return (
                    f"version '{version}' with python '{python}': an interpreter has the version"
                    " that it has; leave one of them out"
                )
            if why := why_not(python, engine.module, variables=variables):
                return f"python '{python}': {why}; install {engine.name} there, or name another"
        return ""

    def environment(self, spec: ServerSpec) -> EngineEnvironment:
        """What a server runs in; made if it isn't there, or as `engine_environment` says."""
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
        """What a server runs with."""
        return installed_version(self.environment(spec).python, "torch")

    def devices(self, spec: ServerSpec) -> tuple[Device, ...]:
        """What a server runs on.

        Raises:
            SensorError: nothing shows it.
        """
        if self.url is not None:
            raise SensorError("power: what the attached server runs on isn't known here")
        gpus = spec.parallel.gpus if self.on_gpu else 0
        return devices_of(gpus, {**os.environ, **dict(spec.engine_env)})

    def leased(
        self, spec: ServerSpec, *, beside_starting: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """A server's GPUs for as long as the context lasts; nothing of one that has none of ours.

        See `lease_gpus`.
        """
        return lease_gpus(
            spec.parallel.gpus if self.on_gpu and self.url is None else 0,
            {**os.environ, **dict(spec.engine_env)},
            waits=self.waits,
            tell=self.tell,
            beside_starting=beside_starting,
        )

    def why_no_power(self, spec: ServerSpec) -> str:
        """Why the power of a server can't be read; empty where it can."""
        try:
            whys = [device.why_not for device in self.devices(spec) if device.why_not]
        except SensorError as error:
            return str(error)
        return "; ".join(dict.fromkeys(whys))

    def requirement(self, spec: ServerSpec) -> Requirement:
        """What to install for a server, or what is there; the version is "" where it isn't known.

        Raises:
            UnsupportedError: the engine doesn't run here.
        """
        engine = engine_named(spec.engine)
        if self.url is not None:
            return Requirement(package=self.url, version="")
        wanted = engine.requirement(on_gpu=self.on_gpu)
        if engine.program is None and self.python is not None:
            # Built from source, an engine for CPUs too is called as its module.
            usual = installed_version(self.python, wanted.package)
            package = wanted.package if usual else engine.module
            version = usual or installed_version(self.python, package)
            return dataclasses.replace(wanted, package=package, version=version)
        spelling = engine.spelling_of(spec.method)
        ray = engine.ray_packages if spec.parallel.ray else ()
        extras = (*wanted.extras, *spelling.packages, *ray)
        return dataclasses.replace(wanted, version=self.version or wanted.version, extras=extras)


def check_version(case: Case, version: str) -> None:
    """Check that a version of a case's engine can measure it; "" is any version.

    Raises:
        UnsupportedError: it is too old, or takes no such prompts.
    """
    engine = engine_named(case.server.engine)
    if is_older(version, engine.oldest):
        message = f"engine '{engine.name}' {version}: is too old; take {engine.oldest} or newer"
        raise UnsupportedError(message)
    if case.form is Form.CHAT and engine.wire_format.takes_text_alone:
        message = (
            f"engine '{engine.name}': takes a text, neither a chat nor token ids; set form ="
            ' "completions" in the matrix, with a dataset of texts'
        )
        raise UnsupportedError(message)
    # Of answers that come at once: what only a stream tells.
    for applies, reason in (
        (
            not engine.wire_format.answers_whole,
            f"engine '{engine.name}' is asked for streams alone",
        ),
        (case.speculates, "only the chunks of a stream tell its acceptance"),
        (case.limits != NO_LIMITS, "limits on TTFT and TPOT are kept in a stream"),
    ):
        if applies and not case.stream:
            message = f"case '{case.id}' with stream = false: {reason}; leave one of them out"
            raise UnsupportedError(message)
