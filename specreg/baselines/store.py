"""Find the settings of a case, and the baselines that apply to it."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.baselines import schema
from specreg.baselines.comparison import CaseBaselines, CaseSpreads, spreads_of, without_num_prompts
from specreg.baselines.schema import Baseline, PublishedFigure
from specreg.core.errors import BaselineError
from specreg.datasets.prompts import Prompt, prompts_sha256
from specreg.matrix.case import Case, CaseSettings
from specreg.matrix.models import model_sha256, served_models
from specreg.matrix.prompts import load_case_prompts
from specreg.stats.intervals import Spread
from specreg.telemetry.identity import Environment


def load_settings(root: Path, case: Case) -> CaseSettings:
    """Return the settings of a case, with the models and prompts of the repository at `root`.

    Raises:
        UnknownNameError: there is no such dataset.
        DatasetError: the dataset can't be read, or doesn't fit the case.
        ModelError: a model is missing, incomplete or can't be made.
    """
    target, _ = served_models(root, case.server)
    return settings_of(case, target, load_case_prompts(root, case))


def settings_of(case: Case, target: str, prompts: Sequence[Prompt]) -> CaseSettings:
    """Return the settings that must be equal for two measurements of a case to be compared.

    The checksum of the prompts covers those that a run with the tier's settings may replay: the
    case's own, and as many again, the extension, which are replayed if the case's own prompts can't
    decide the acceptance.

    Args:
        target: the folder or the hub id of the target model.
        prompts: all prompts of the dataset, in order.
    """
    return case.identity(
        target_sha256=model_sha256(target),
        prompts_sha256=prompts_sha256(prompts[: 2 * case.request.usual_prompts]),
    )


@dataclass(frozen=True, kw_only=True)
class BaselineStore:
    """The baselines of a repository that apply to one machine.

    Attributes:
        folder: the folder `baselines` of the repository.
        environment: the environment of the machine.
        options: the options with which pytest runs the cases that are looked up, including the
            tier.
    """

    folder: Path
    environment: Environment
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the folder and its subfolders can be read.

        Raises:
            BaselineError: a folder can't be read. Its baselines would otherwise seem to be missing.
        """
        schema.check_folders(self.folder)

    @functools.cached_property
    def spreads_by_case(self) -> Mapping[str, CaseSpreads]:
        """How the launches of each case on this machine vary, by the case's id."""
        spreads = {}
        for path, baseline in self.own().items():
            # The name of the file is the case's id.
            spreads[path.stem] = CaseSpreads.of(baseline.launches, baseline.noise)
        return spreads

    @functools.cached_property
    def published(self) -> tuple[PublishedFigure, ...]:
        """The published figures.

        Raises:
            BaselineError: a published figure can't be read.
        """
        return schema.load_published(self.folder)

    def path(self, case_id: str) -> Path:
        """Return the path of a case's baseline for this machine."""
        return self.folder / self.environment.name / f"{case_id}.json"

    def look_up(self, case: Case, settings: CaseSettings) -> CaseBaselines:
        """Return the baselines that apply to a case with these settings.

        Raises:
            BaselineError: the baseline of the case, or a published figure, can't be read.
        """
        exact = self._exact(case)
        control = self._control(case, settings)

        # Without a baseline of this machine, look for another machine's, then for a publication.
        nearest: Baseline | None = None
        published: PublishedFigure | None = None
        if exact is None:
            nearest = self._nearest(case, without_num_prompts(settings))
        if exact is None and nearest is None:
            published = schema.published_for(case, self.published)
        return CaseBaselines(
            environment=self.environment,
            settings=settings,
            exact=exact,
            nearest=nearest,
            published=published,
            control=control,
            control_spreads=self._control_spreads(case, control),
            options=self.options,
        )

    def files(self, case_ids: Iterable[str]) -> Iterator[Path]:
        """Yield the baseline files of each case: this machine's, or else all other machines'."""
        for case_id in case_ids:
            path = self.path(case_id)
            if path.exists():
                yield path
            else:
                yield from sorted(self.folder.glob(f"*/{path.name}"))

    def own(self) -> Mapping[Path, Baseline]:
        """Return the readable baselines of this machine by their paths."""
        baselines, _ = schema.read_baselines(self.own_paths())
        return baselines

    def unused(self, case_ids: Iterable[str]) -> tuple[Path, ...]:
        """Return the baseline files of this machine that belong to none of these cases."""
        used = {self.path(case_id) for case_id in case_ids}
        return tuple(path for path in self.own_paths() if path not in used)

    def own_paths(self) -> list[Path]:
        """Return the paths of the baselines of this machine, readable or not."""
        return sorted((self.folder / self.environment.name).glob("*.json"))

    def _exact(self, case: Case) -> Baseline | None:
        """Return the baseline of this machine.

        Returns:
            None if it is missing, or if the environment in the file differs from this one in a
            field that the folder's name doesn't show.

        Raises:
            BaselineError: the file can't be read.
        """
        baseline = schema.load_baseline(self.path(case.id))
        if baseline is None or baseline.environment != self.environment:
            return None
        return baseline

    def _nearest(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """Return the baseline of the most similar other machine with the same settings.

        The most similar environment is the one with the most equal fields. Files that can't be read
        are left out.
        """

        def equal_fields(baseline: Baseline) -> int:
            return sum(
                getattr(self.environment, field) == getattr(baseline.environment, field)
                for field in Environment.__struct_fields__
            )

        # Sorted, so that the same one of several equally similar machines is always taken.
        paths = sorted(self.folder.glob(f"*/{case.id}.json"))
        baselines, _ = schema.read_baselines(paths)
        comparable = [baseline for baseline in baselines.values() if baseline.case == settings]
        return max(comparable, key=equal_fields, default=None)

    def _control(self, case: Case, settings: CaseSettings) -> Baseline | None:
        """Return the baseline of the case's control, with the same settings but no speculation."""
        if case.control is None:
            return None
        control_settings = case.control_case.identity(
            target_sha256=settings.target_sha256, prompts_sha256=settings.prompts_sha256
        )
        baseline: Baseline | None = None

        # If the file can't be read, the control's own case reports it.
        with contextlib.suppress(BaselineError):
            baseline = self._exact(case.control_case)
        if baseline is None or baseline.case != control_settings:
            return None
        return baseline

    def _control_spreads(self, case: Case, control: Baseline | None) -> Mapping[str, Spread]:
        """Return how the launches of the control vary.

        Few launches show a spread badly, so it is moved towards the spread of other cases.
        """
        if control is None or case.control is None:
            return {}
        control_id = case.control_case.id
        spreads_of_others = [
            spreads for case_id, spreads in self.spreads_by_case.items() if case_id != control_id
        ]
        return spreads_of(CaseSpreads.of(control.launches, control.noise), spreads_of_others)
