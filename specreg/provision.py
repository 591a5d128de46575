"""What a run's servers run in: installed once, taken as it is, or found on PATH."""

import dataclasses
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass

from specreg.engines import engine_named
from specreg.engines._engine import Requirement
from specreg.environments import EngineEnvironment, engine_environment, installed_version
from specreg.errors import UnsupportedError
from specreg.matrix import NO_LIMITS, Case, ServerSpec
from specreg.methods import METHODS, is_older


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the engines of a run come from.

    Attributes:
        on_gpu: whether they run on a GPU.
        version: which to install, None for each engine's own choice.
        python: an interpreter that has the engine, None to make an environment.
        url: of a server that somebody else runs, None to start them.
        show: is told what goes on.
    """

    on_gpu: bool
    version: str | None
    python: str | None
    url: str | None
    show: Callable[[str], None]

    def check(self, cases: Collection[Case]) -> None:
        """Silent where each case could be measured, as far as one can tell beforehand.

        Raises:
            UnsupportedError: an engine doesn't run here or isn't installed; its version is too
                old, for a method too, or doesn't tell the acceptance of such prompts; its
                arguments can't be handed on; or one version or interpreter is to be that of
                several engines.
        """
        engines = sorted({case.server.engine for case in cases})
        if len(engines) > 1 and (self.version or self.python):
            message = (
                f"--specreg-engine-version and -python: '{self.version or self.python}' is of one"
                f" engine, the run has {', '.join(engines)}; say --engine"
            )
            raise UnsupportedError(message)
        for case in cases:
            spec = case.server
            engine = engine_named(spec.engine)
            if engine.program is not None and shutil.which(engine.program) is None:
                message = (
                    f"engine '{spec.engine}': no program '{engine.program}' on PATH; run where it"
                    f" is installed, or leave the engine out: -k 'not {spec.engine}'"
                )
                raise UnsupportedError(message)
            check_version(case, self.requirement(spec).version, ours=True)
            engine.check_arguments(spec.engine_args)

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

    def requirement(self, spec: ServerSpec) -> Requirement:
        """What to install for a server, or what is there; the version is "" where nobody knows.

        Raises:
            UnsupportedError: the engine doesn't run here.
        """
        engine = engine_named(spec.engine)
        if self.url is not None:
            return Requirement(package=self.url, version="")
        wanted = engine.requirement(on_gpu=self.on_gpu)
        if engine.program is None and self.python is not None:
            found = installed_version(self.python, wanted.package)
            return dataclasses.replace(wanted, version=found)
        return dataclasses.replace(
            wanted,
            version=self.version or wanted.version,
            extras=wanted.extras + METHODS[spec.method].packages.get(engine.spelling, ()),
        )


def check_version(case: Case, version: str, *, ours: bool) -> None:
    """Silent where a version of a case's engine can measure it; "" is any version.

    Args:
        case: what is to be measured.
        version: of its engine.
        ours: whether we start the server.

    Raises:
        UnsupportedError: it is too old, for the method too, or too new for that, or doesn't tell
            the acceptance of such prompts.
    """
    engine, method = engine_named(case.server.engine), METHODS[case.server.method]
    first, lost = method.since.get(engine.name, ""), method.until.get(engine.name, "")
    how = " with --specreg-engine-version" if ours else ""
    if is_older(version, engine.oldest):
        message = (
            f"engine '{engine.name}' {version}: needs {engine.oldest} or newer;"
            f" {'choose' if ours else 'attach to'} another{how}"
        )
        raise UnsupportedError(message)
    if is_older(version, first):
        message = (
            f"method '{method.name}': {engine.name} {version} lacks it, or doesn't tell what"
            f" it accepts; take {first} or newer{how}"
        )
        raise UnsupportedError(message)
    if version and lost and not is_older(version, lost):
        message = (
            f"method '{method.name}': {engine.name} {version} lost it; take one before {lost}{how}"
        )
        raise UnsupportedError(message)
    engine.protocol.check(case.form, version, ours=ours)
    if not case.stream:
        _check_whole(case, streams_alone=not engine.protocol.answers_whole)


def _check_whole(case: Case, *, streams_alone: bool) -> None:
    """Silent where answers can come at once, and tell what is asked of them.

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
