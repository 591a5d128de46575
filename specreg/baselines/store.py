"""What is expected of a case: its prompts, its settings, and what the baselines know of it."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines import schema
from specreg.baselines.comparison import CaseBaselines, of_any_number, spreads_of
from specreg.baselines.schema import Baseline, PublishedFigure
from specreg.core.errors import BaselineError
from specreg.core.values import readable_values
from specreg.datasets.prompts import Prompt, prompts_sha256
from specreg.engines.engine import ServerSettings, taken
from specreg.matrix.case import Case, CaseSettings, Load, RequestSettings
from specreg.matrix.models import model_sha256, served_models
from specreg.matrix.prompts import load_case_prompts
from specreg.stats.intervals import Spread
from specreg.telemetry.identity import Environment


def settings_in(root: Path, case: Case) -> CaseSettings:
    """The settings of a case, with the files of a repository."""
    target, _ = served_models(root, case.server)
    return settings_of(case, target, load_case_prompts(root, case))


def settings_of(case: Case, target: str, prompts: Sequence[Prompt]) -> CaseSettings:
    """Return what must be equal for two measurements of a case to be compared.

    Of the dataset's prompts those of a run by the matrix and of its extension count. Texts are as a
    baseline's file holds them, without secrets.
    """
    server = case.server
    target_sha256 = model_sha256(target)
    settings = CaseSettings(
        **taken(ServerSettings, server),
        **taken(RequestSettings, case),
        **taken(Load, case.load),
        engine=server.engine,
        method=server.method,
        draft_tokens=server.draft_tokens,
        target_sha256=target_sha256,
        # A folder is told by its files, wherever it lies; a hub id by its name alone.
        target="" if target_sha256 else server.target,
        prompts_sha256=prompts_sha256(prompts[: 2 * (case.matrix_prompts or case.prompts)]),
        limits=case.limits,
        prompts=case.matrix_prompts or case.prompts,
        num_prompts=case.prompts if case.matrix_prompts else None,
    )
    return readable_values(settings)


@dataclass(frozen=True, kw_only=True)
class BaselineStore:
    """The baselines in a folder that apply to one machine; what all cases share is read once.

    `options` are those with which pytest runs the cases that are looked up, the tier among them.
    """

    folder: Path
    environment: Environment
    options: tuple[str, ...] = ()

    @functools.cached_property
    def spreads(self) -> Mapping[str, Spread]:
        """By metric, how launches of this machine differ."""
        return spreads_of(self.own().values())

    @functools.cached_property
    def published(self) -> tuple[PublishedFigure, ...]:
        """The published figures; raises BaselineError where one can't be read."""
        return schema.load_published(self.folder)

    def path(self, case_id: str) -> Path:
        """Where a case's baseline lies."""
        return self.folder / self.environment.name / f"{case_id}.json"

    def look_up(self, case: Case, settings: CaseSettings) -> CaseBaselines:
        """What is known of a case; raises BaselineError where its baseline can't be read."""
        exact = self._exact(case)
        nearest = None if exact else self._nearest(case, of_any_number(settings))
        known = exact is not None or nearest is not None
        return CaseBaselines(
            environment=self.environment,
            settings=settings,
            exact=exact,
            nearest=nearest,
            published=None if known else schema.published_for(case, self.published),
            control=self._control(case, settings),
            spreads=self.spreads,
            options=self.options,
        )

    def files(self, case_ids: Iterable[str]) -> Iterator[Path]:
        """The files that say what is expected of the cases: this machine's, else all others'."""
        for own in map(self.path, case_ids):
            yield from [own] if own.exists() else sorted(self.folder.glob(f"*/{own.name}"))

    def own(self) -> Mapping[Path, Baseline]:
        """The baselines of this machine that can be read."""
        return schema.read_baselines(self._own_files())[0]

    def unused(self, case_ids: Iterable[str]) -> tuple[Path, ...]:
        """The files of this machine that none of the cases asks for."""
        return tuple(sorted(set(self._own_files()) - set(map(self.path, case_ids))))

    def _own_files(self) -> list[Path]:
        return sorted((self.folder / self.environment.name).glob("*.json"))

    def _exact(self, case: Case) -> Baseline | None:
        found = schema.load_baseline(self.path(case.id))
        return found if found is not None and found.environment == self.environment else None

    def _nearest(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """Return the baseline of the most similar other machine with the same settings."""

        def shared_facts(other: Baseline) -> int:
            here, there = self.environment, other.environment
            fields = Environment.__struct_fields__
            return sum(getattr(here, field) == getattr(there, field) for field in fields)

        found, _ = schema.read_baselines(sorted(self.folder.glob(f"*/{case.id}.json")))
        alike = [baseline for baseline in found.values() if baseline.case == settings]
        return max(alike, key=shared_facts, default=None)

    def _control(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """Return the baseline of the same settings without speculation."""
        if case.control is None:
            return None
        wanted = dataclasses.replace(
            settings,
            method="none",
            draft_tokens=0,
            tree=None,
            parallel=settings.parallel.without_draft,
        )
        with contextlib.suppress(BaselineError):  # its own case reports it
            found = self._exact(dataclasses.replace(case, server=case.control, control=None))
            return found if found is not None and found.case == wanted else None
        return None
