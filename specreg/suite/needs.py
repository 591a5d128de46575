"""Examine what a run needs: a port, room on disks, memory, engines, models, prompts, baselines."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from specreg.baselines.schema import baseline_files, check_baselines
from specreg.core.commands import install_command
from specreg.core.errors import DatasetError, ModelError, SpecregError
from specreg.core.files import cache_dir
from specreg.datasets.hub import has_token, hub_cache_dir, is_installed, is_offline
from specreg.datasets.table import dataset_named
from specreg.engines.registry import engine_named
from specreg.matrix.models import (
    check_model_code,
    is_hub_id,
    missing_files,
    missing_of_hub,
    resolve_model,
)
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.widening import lacking_bytes
from specreg.report.doctor import Finding, in_the_way, note, of_error, ok
from specreg.servers.environments import installed_environment
from specreg.servers.memory import free_gib
from specreg.servers.start import free_port
from specreg.suite.preflight import (
    Check,
    Preflight,
    examine_acceptance,
    examine_driver,
    examine_environment,
    examine_gpus,
    examine_load,
    examine_power,
    examine_processor,
    examine_speed,
    examine_use,
)

_GIB = 2**30
_ENVIRONMENT_GIB = 7.0
"""The most that an engine's environment was seen to take."""
_RUN_GIB = 0.5
"""Of a run's logs, journal and samples; 1.5 MB were seen on a CPU."""


def examine_port(_: Preflight) -> Iterator[Finding]:
    """Whether servers can listen at 127.0.0.1."""
    try:
        free_port()
    except OSError as error:
        advice = "let this process open sockets; a sandbox may forbid it"
        yield in_the_way("port", f"127.0.0.1 can't be bound, {error.strerror}", advice)
    else:
        yield ok("port", "127.0.0.1 can be bound")


def examine_disks(preflight: Preflight) -> Iterator[Finding]:
    """Whether there is room, and the right to write, where a run writes; a line for each disk."""
    disks: dict[int, list[tuple[str, Path, float]]] = {}
    for what, folder, needed_gib in _written(preflight):
        absolute = folder.resolve()
        place = next(path for path in (absolute, *absolute.parents) if path.exists())
        if not os.access(place, os.W_OK):
            advice = "give yourself the right to write there, or name another folder"
            yield in_the_way("disk", f"{what}: '{place}' can't be written to", advice)
            continue
        disks.setdefault(place.stat().st_dev, []).append((what, place, needed_gib))
    for written in disks.values():
        left_gib = shutil.disk_usage(written[0][1]).free / _GIB
        needed_gib = sum(each_gib for _, _, each_gib in written)
        names = ", ".join(what for what, _, _ in written)
        says = f"{left_gib:.1f} GiB free for {names}; about {needed_gib:.1f} GiB needed"
        if left_gib < needed_gib:
            advice = "make room, or name other folders: SPECREG_CACHE, HF_HUB_CACHE, --specreg-runs"
            yield in_the_way("disk", says, advice)
        else:
            yield ok("disk", says)


def _written(preflight: Preflight) -> Iterator[tuple[str, Path, float]]:
    """What is written, where, and about how much, in GiB."""
    if preflight.tier is not None:
        new = [one for one in preflight.requirements if installed_environment(one) is None]
        yield "engines", cache_dir(), _ENVIRONMENT_GIB * len(new)
        with contextlib.suppress(ModelError):  # the finding on it says so
            if needed_bytes := lacking_bytes(preflight.root, preflight.servers):
                yield "widened models", cache_dir(), needed_bytes / _GIB
        if cache := hub_cache_dir():
            sizes = _sizes_gib(preflight).items()
            lacking = [gib for name, gib in sizes if is_hub_id(name) and missing_of_hub(name)]
            yield "models", cache, sum(lacking)
    yield "runs", preflight.runs, _RUN_GIB


def examine_memory(preflight: Preflight) -> Iterator[Finding]:
    """Whether the models of the largest case fit, beside those of its control."""
    left_gib, needed_gib = free_gib(), 0.0
    for case in preflight.running if not preflight.provision.on_gpu else ():
        specs = (case.server, case.control)
        sizes = [spec.sizes for spec in specs if spec is not None and spec.sizes is not None]
        weights_gib = sum(one.target_gib + (one.draft_gib or 0.0) for one in sizes)
        needed_gib = max(needed_gib, weights_gib)
    says = f"{left_gib:.1f} GiB free"
    if left_gib < needed_gib:
        says = f"{says}, and the models of the largest case take {needed_gib:.1f}"
        yield in_the_way("memory", says, "end what takes it, or choose smaller models")
    else:
        yield ok("memory", says)


def examine_baselines(preflight: Preflight) -> Iterator[Finding]:
    """Whether what was recorded can be read."""
    files = tuple(baseline_files(preflight.baselines))
    wrong = check_baselines(files)
    yield from (of_error("baselines", one) for one in wrong)
    if not wrong:
        yield ok("baselines", f"{len(files)} files can be read")


def examine_engines(preflight: Preflight) -> Iterator[Finding]:
    """Which engines are installed, and which a run would install or takes from an interpreter."""
    programs = {engine_named(spec.engine).program for spec in preflight.servers}
    python = preflight.provision.python
    for requirement in preflight.requirements:
        if requirement.package in programs:  # the finding on its cases says so
            continue
        if python is not None:
            if requirement.version:  # else the finding on its cases says that it isn't there
                yield ok("engine", f"{python} has {requirement.package} {requirement.version}")
        elif installed_environment(requirement) is not None:
            yield ok("engine", f"{requirement.pin} is installed")
        else:
            says = f"{requirement.pin} isn't installed yet"
            yield note("engine", says, "the first run does that, which takes minutes and 3 to 7 GB")


def examine_models(preflight: Preflight) -> Iterator[Finding]:
    """Which models are at hand and whole, and which the engines would fetch."""
    for reference, size_gib in _sizes_gib(preflight).items():
        if is_hub_id(reference):
            yield _of_hub(reference, size_gib)
        else:
            yield _of_folder(preflight.root, reference)


def _sizes_gib(preflight: Preflight) -> Mapping[str, float]:
    """What each model of the tier takes, by reference; 0 where the matrix doesn't say."""
    found: dict[str, float] = {}
    for spec in preflight.servers:
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


def examine_datasets(preflight: Preflight) -> Iterator[Finding]:
    """Whether there are the prompts that the cases ask for."""
    prompts: dict[str, int] = {}
    errors: dict[str, DatasetError] = {}
    for case in preflight.running:
        prompts.setdefault(case.dataset, 0)
        try:
            if dataset_named(case.dataset).tokens is None:
                prompts[case.dataset] = len(load_case_prompts(preflight.root, case))
        except ModelError:  # the finding on it says so
            continue
        except DatasetError as error:
            errors.setdefault(case.dataset, error)
    for name, count in prompts.items():
        if name in errors:
            yield of_error("dataset", errors[name])
        elif dataset_named(name).tokens is not None:
            yield ok("dataset", f"{name}: made when it is asked for")
        else:
            yield ok("dataset", f"{name}: {count} prompts")


def examine_cases(preflight: Preflight) -> Iterator[Finding]:
    """How many run; what a run would leave out; and what would end it before it began."""
    if preflight.tier is None:
        yield of_error("tier", preflight.why_no_tier)
        return
    refused: dict[str, str] = {}
    for case in preflight.running:
        try:
            preflight.provision.check([case])
            check_model_code(preflight.root, case.server)
        except SpecregError as error:
            refused[case.id] = str(error)
    runs = len(preflight.running) - len(refused)
    says = f"{runs} of {len(preflight.tier.cases)} cases of tier '{preflight.tier.name}' run here"
    if runs:
        yield ok("cases", says)
    else:
        yield in_the_way("cases", says, "do what is said of them, or choose another tier")
    for why, ids in _by_reason(refused).items():
        yield of_error("cases", f"{ids}: {why}")
    for why, ids in _by_reason(preflight.skipped).items():
        yield note("cases", f"{ids}: {why}", "left out; run them on a machine that has that")


def _by_reason(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """The cases of each reason, in words: one by its id, several by their number and the first."""
    cases: dict[str, list[str]] = {}
    for case_id, why in reasons.items():
        cases.setdefault(why.removeprefix(f"{case_id} "), []).append(case_id)
    return {
        why: ids[0] if len(ids) == 1 else f"{len(ids)} cases, {ids[0]} the first"
        for why, ids in cases.items()
    }


CHECKS: Mapping[str, tuple[Check, ...]] = {
    "this machine": (examine_environment, examine_processor, examine_gpus, examine_memory),
    "what can be measured": (examine_acceptance, examine_speed, examine_load, examine_power),
    "what a run needs": (
        *(examine_driver, examine_use, examine_port, examine_disks),
        *(examine_engines, examine_models, examine_datasets, examine_baselines, examine_cases),
    ),
}
"""The checks, in the order in which their findings are shown, by heading."""
