"""What a tier's cases take: engines, models and prompts, whether they are at hand."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specreg.baselines.schema import baseline_files, check_baselines
from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, ModelError
from specreg.datasets.hub import has_token, is_installed, is_offline
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.models import is_hub_id, missing_files, missing_of_hub, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.report.doctor import Finding, in_the_way, note, of_error, ok
from specreg.servers.environments import installed_environment
from specreg.suite.preflight.scene import Scene


def examine_baselines(scene: Scene) -> Iterator[Finding]:
    """Whether what was recorded can be read."""
    files = tuple(baseline_files(scene.baselines))
    wrong = check_baselines(files)
    yield from (of_error("baselines", one) for one in wrong)
    if not wrong:
        yield ok("baselines", f"{len(files)} files can be read")


def examine_engines(scene: Scene) -> Iterator[Finding]:
    """Which engines are installed, and which a run would install or takes from an interpreter."""
    programs = {engine_named(spec.engine).program for spec in scene.servers}
    python = scene.provision.python
    for requirement in scene.requirements:
        if requirement.package in programs:  # as the finding on its cases says
            continue
        if python is not None:
            if requirement.version:  # else the finding on its cases says that it isn't there
                yield ok("engine", f"{python} has {requirement.package} {requirement.version}")
        elif installed_environment(requirement) is not None:
            yield ok("engine", f"{requirement.pin} is installed")
        else:
            yield note(
                "engine",
                f"{requirement.pin} isn't installed yet",
                "the first run does that, which takes minutes and 3 to 7 GB",
            )


def examine_models(scene: Scene) -> Iterator[Finding]:
    """Which models are at hand and whole, and which the engines would fetch."""
    for reference, size_gib in _models(scene).items():
        if is_hub_id(reference):
            yield _of_hub(reference, size_gib)
        else:
            yield _of_folder(scene.root, reference)


def lacking_gib(scene: Scene) -> float:
    """About how much of models is to be fetched."""
    return sum(
        size_gib
        for reference, size_gib in _models(scene).items()
        if is_hub_id(reference) and missing_of_hub(reference)
    )


def examine_datasets(scene: Scene) -> Iterator[Finding]:
    """Whether there are the prompts that the cases ask for."""
    asking: dict[str, list[Case]] = {}
    for case in scene.running:
        asking.setdefault(case.dataset, []).append(case)
    for name, cases in asking.items():
        if dataset_named(name).tokens is not None:
            yield ok("dataset", f"{name}: made when it is asked for")
        else:
            yield _of_prompts(scene.root, name, cases)


def _models(scene: Scene) -> Mapping[str, float]:
    """By reference what each model of the tier takes, in GiB; 0 where nobody says."""
    found: dict[str, float] = {}
    for spec in scene.servers:
        found[spec.target] = spec.sizes.target_gib if spec.sizes else 0.0
        if spec.draft is not None:
            found[spec.draft] = (spec.sizes.draft_gib if spec.sizes else None) or 0.0
    return found


def _of_hub(reference: str, size_gib: float) -> Finding:
    if not is_installed():
        says = f"{reference}: whether it is in the hub's cache takes huggingface_hub to tell"
        return note("model", says, install_command("datasets"))
    lacks = missing_of_hub(reference)
    if not lacks:
        return ok("model", f"{reference}: in the hub's cache")
    size = f", about {size_gib:.1f} GiB" if size_gib else ""
    says = f"{reference}: not in the hub's cache ({', '.join(lacks)}{size})"
    if is_offline():
        advice = "unset HF_HUB_OFFLINE, or fetch it where there is a network"
        return in_the_way("model", says, advice)
    if has_token():
        return note("model", says, "its engine fetches it, with the token that is set")
    advice = "its engine fetches it; HF_TOKEN isn't set, which a gated model needs"
    return note("model", says, advice)


def _of_folder(root: Path, reference: str) -> Finding:
    try:
        folder = Path(resolve_model(root, reference))
    except ModelError as error:
        return of_error("model", error)
    if missing := missing_files(folder):
        says = f"model folder '{folder}': {', '.join(missing)} missing"
        return in_the_way("model", says, "restore it")
    return ok("model", f"{reference}: whole")


def _of_prompts(root: Path, name: str, cases: Sequence[Case]) -> Finding:
    prompts: tuple[Prompt, ...] = ()
    for case in cases:
        try:
            prompts = load_case_prompts(root, case)
        except ModelError:  # as the finding on it says
            continue
        except DatasetError as error:
            return of_error("dataset", error)
    return ok("dataset", f"{name}: {len(prompts)} prompts")
