"""Commands that need no run: `specreg matrix`, `baselines`, `engines`, `prepare`, `selftest`."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from specreg.baselines.estimate import (
    READ_GIB_PER_S,
    START_S,
    Estimate,
    estimate_of,
    run_on_gpus_s,
    run_s,
)
from specreg.baselines.schema import baseline_files, read_baselines, render_baseline_schema
from specreg.baselines.store import BaselineStore
from specreg.cli import DEFAULT_OPTIONS, HERE, RootOption, TierOption, say
from specreg.core.counted import counted
from specreg.core.errors import UnsupportedError
from specreg.core.files import data_dir
from specreg.datasets.prepare import prepare as prepare_set
from specreg.datasets.prepare import prepare_command
from specreg.datasets.table import dataset_named
from specreg.engines.registry import methods_by_engine
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, Tier, render_memory
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import METRICS, check_allowed
from specreg.report.document import Tone
from specreg.report.parts import Commands, Details, Part, Table, Text, VerdictLine
from specreg.report.screen import screen_here
from specreg.report.tables import NOTHING, Layout, format_number, render_rows
from specreg.report.terminal import render_view
from specreg.servers.memory import fit_together
from specreg.suite.options import LAUNCHES_TO_RECORD
from specreg.telemetry.identity import Gpus, current_environment, find_gpus

_S_PER_MIN = 60.0
_USUAL_GPU_GIB = 79.6
"""The memory of an H100. On a machine without a GPU, times are estimated for it."""

_FEWEST_SERIES = 10
"""With fewer series the rows of the new judge of nights are shown, and not judged."""


def baselines(
    output: Annotated[
        Literal["list", "schema"],
        typer.Argument(help="list, or schema for the JSON Schema of a file", metavar="WHAT"),
    ] = "list",
    root: RootOption = HERE,
) -> None:
    """List the baselines with date, engine and reason; status 1 if one of them can't be read.

    Examples:
        specreg baselines
        specreg baselines schema
    """
    if output == "schema":
        typer.echo(render_baseline_schema(), nl=False)
        return
    by_path, errors = read_baselines(baseline_files(root / DEFAULT_OPTIONS.baselines))
    acceptance_length = METRICS["acceptance_length_tokens"]
    throughput = METRICS["throughput_tokens_per_s"]
    rows: list[Sequence[str]] = []
    environment = ""
    for path, baseline in by_path.items():
        if path.parent.name != environment:
            environment = path.parent.name
            rows.append([environment])
        provenance = baseline.provenance
        # A reason may have several lines. Here it is one.
        reason = " ".join(provenance.reason.split())
        cells = (
            f"  {path.stem}",
            provenance.recorded_on,
            f"{baseline.case.engine} {provenance.engine_version}",
            str(len(baseline.launches)),
            format_number(baseline.expected_value(acceptance_length)),
            format_number(baseline.expected_value(throughput)),
            reason,
        )
        rows.append(cells)

    head = (
        "baseline",
        "recorded",
        "engine",
        "launches",
        "acceptance\nlength",
        "\ntokens/s",
        "reason",
    )
    screen = screen_here()
    table = render_rows(
        head,
        rows,
        screen,
        Layout(left=("recorded", "engine"), folded=("reason",), optional=("launches",)),
    )
    say("\n".join((table, *errors)), styled=screen.color)
    raise typer.Exit(int(bool(errors)))


def engines() -> None:
    """Print which engine has which method, and which methods were tried on a real server."""
    screen = screen_here()
    head, *rows = methods_by_engine()
    # A cell has several words, and a narrow terminal shows each on a line of its own.
    say(render_rows(head, rows, screen, Layout(folded=head)), styled=screen.color)


def prepare(
    name: Annotated[str, typer.Argument(help="a prompt set, such as gsm8k")],
    user_file: Annotated[Path | None, typer.Option("--from", help="your copy of the file")] = None,
) -> None:
    """Fetch a dataset, or read your copy, check it, and write the prompts that cases replay.

    No dataset is part of specreg: each has a licence of its own, which is shown first. The prompts
    are written to the folder SPECREG_DATA, or else to specreg's cache.

    Examples:
        specreg prepare gsm8k
        specreg prepare gsm8k --from ~/Downloads/test.jsonl
    """
    prepare_set(
        dataset_named(name),
        data_dir=data_dir(),
        user_file=user_file,
        show=functools.partial(say, err=True),
    )


def selftest(
    series: Annotated[
        int, typer.Option(help="how many machines to simulate for each kind of nights")
    ] = 10,
    seed: Annotated[
        int | None, typer.Option(help="the first seed, for other numbers", min=0)
    ] = None,
) -> None:
    """Simulate nights with and without planted changes, and print how often verdicts err.

    Examples:
        specreg selftest --series 20
        specreg selftest --series 20 --seed 700000
    """
    # Both take seconds to import.
    from specreg.judging.simulation import FIRST_SEED, simulate_frontier, simulate_rows  # noqa: PLC0415
    from specreg.verdicts.selftest import run_selftest  # noqa: PLC0415

    text, holds = run_selftest()
    say(text)
    seed = FIRST_SEED if seed is None else seed
    text, rows_hold = simulate_rows(series, seed=seed)
    say(f"\nspeeds of all nights, judged by the nights before\n{text}")
    say(f"\nwhat fewer false alarms cost\n{simulate_frontier(series, seed)}")
    if series < _FEWEST_SERIES:
        # One unlucky series of a few exceeds any limit.
        say(f"NOT JUDGED: these rows need {_FEWEST_SERIES} series, and {series} were simulated")
        rows_hold = True

    raise typer.Exit(0 if holds and rows_hold else 1)


def tier_of(folder: Path, name: str | None) -> Tier:
    """Load a tier, with the model pairs that the GPUs of this machine hold.

    Args:
        folder: the folder of the tiers.
        name: the name of the tier; None for `gpu` on a machine with a GPU, else `cpu`.

    Raises:
        SensorError: no tier is named, and the GPU driver or the GPUs can't be used.
        SpecregError: as for `load_tier`.
    """
    gpus = find_gpus()
    # With a broken driver, a machine with GPUs would look like one without, and get the tier `cpu`.
    if name is None:
        gpus.check_usable()
        name = "gpu" if gpus.devices else "cpu"
    return load_tier(folder, name).chosen(gpus.memory_gib)


def matrix(
    tier: TierOption = None,
    root: RootOption = HERE,
    *,
    text: Annotated[str, typer.Option("-k", help="only cases whose id contains this")] = "",
    commands: Annotated[
        bool, typer.Option("--commands", help="print each server's environment and command")
    ] = False,
) -> None:
    """Print a tier's cases, what each needs, and about how long it takes.

    Examples:
        specreg matrix
        specreg matrix --tier cpu -k eagle3
        specreg matrix --tier cpu --commands
    """
    folder = root / DEFAULT_OPTIONS.matrix
    chosen = tier_of(folder, tier)
    cases = tuple(case for case in chosen.cases if text.lower() in case.id.lower())
    if not cases:
        raise UnsupportedError(
            f"-k '{text}': no case of tier '{chosen.name}' has it in its id; leave it out to see"
            " all ids"
        )

    chosen = dataclasses.replace(chosen, cases=cases)
    if commands:
        say(_render_commands(root.resolve(), chosen))
        return
    for case in chosen.cases:
        check_allowed(case, chosen.locations[case.id])
    gpus = find_gpus()
    environment = current_environment(gpus=chosen.gpus_used(gpus.memory_gib))
    store = BaselineStore(folder=root / DEFAULT_OPTIONS.baselines, environment=environment)
    kind = "gpu" if chosen.needs_gpus else "cpu"
    estimates = {case.id: estimate_of(case, store, kind) for case in chosen.cases}
    screen = screen_here()
    tiers = Text(f"tiers: {', '.join(tier_names(folder))}")
    view = (*view_of_tier(chosen, estimates, gpus), tiers)
    say(render_view(view, screen), styled=screen.color)


def _render_commands(root: Path, tier: Tier) -> str:
    """Render the command of each server of a tier, below the ids of the cases that it serves."""
    # What starts servers takes a second to import.
    from specreg.servers.provision import Provision  # noqa: PLC0415
    from specreg.servers.shell_command import shell_command  # noqa: PLC0415

    provision = Provision(on_gpu=tier.needs_gpus > 0, show=say)
    ids_by_server: dict[ServerSpec, list[str]] = {}
    for case in tier.cases:
        for spec in dict.fromkeys((case.control, case.server)):
            if spec is not None:
                ids_by_server.setdefault(spec, []).append(case.id)

    return "\n\n".join(
        f"# {', '.join(case_ids)}\n{shell_command(root, spec, provision)}"
        for spec, case_ids in ids_by_server.items()
    )


def view_of_tier(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus) -> Iterator[Part]:
    """Yield whether the cases fit, how long they take, what each needs, and what to prepare.

    Args:
        estimates: how long each case takes, by its id.
        gpus: the GPUs of this machine.
    """
    yield _fit_line(tier, gpus)
    yield from map(Text, _time_lines(tier, estimates, gpus))
    if any("guess" in estimate.source for estimate in estimates.values()):
        reads = f"a step reads all weights at {READ_GIB_PER_S:.0f} GiB/s"
        yield Text(f"guess: assumes that {reads}, and that no draft is accepted")
    on_gpu = tier.needs_gpus > 0
    rows = [_matrix_row(case, estimates[case.id], on_gpu=on_gpu) for case in tier.cases]
    columns = ("case", "GPUs", "GiB each", "prompts", "minutes", "by")
    yield Table(columns, rows, Layout(folded=("by",)))
    for location, understood in tier.commands.items():
        yield Details(f"keys read from the command of {location}", tuple(map(Text, understood)))
    shown_pairs = dict.fromkeys(case.server.models for case in tier.cases)
    licences = [f"{pair}: {tier.licences[pair]}" for pair in shown_pairs if pair in tier.licences]
    if licences:
        yield Details("licences of the models", tuple(map(Text, licences)))
    names = sorted({case.request.dataset for case in tier.cases})

    # Only a dataset that needs to be prepared has a licence.
    licensed = [dataset for dataset in map(dataset_named, names) if dataset.licence]
    if licensed:
        yield Commands("prepare first", tuple(map(prepare_command, licensed)))


def _time_lines(tier: Tier, estimates: Mapping[str, Estimate], gpus: Gpus) -> Iterator[str]:
    """Yield estimates of how long it takes to run and to record a tier, on one GPU and on all."""
    kind = "gpu" if tier.needs_gpus else "cpu"

    # Without a GPU, the times are estimated for a usual GPU.
    one_gpu = ""
    if tier.needs_gpus:
        one_gpu = " on one GPU" if gpus.devices else f" on one GPU of {_USUAL_GPU_GIB:.0f} GiB"
    gpus_gib: Sequence[float | None] = ()
    if tier.needs_gpus:
        gpus_gib = gpus.memory_gib or (_USUAL_GPU_GIB,)
    fit = functools.partial(fit_together, gpus_gib=gpus_gib)
    night_s = run_s(tier.cases, estimates, kind, fit)
    recording_s = LAUNCHES_TO_RECORD * night_s
    yield (
        f"one run takes about {_hours(night_s)}{one_gpu}, {START_S[kind]:.0f} s of it for each"
        " server's start"
    )
    yield (
        f"recording it, {LAUNCHES_TO_RECORD} launches, takes about {_hours(recording_s)}{one_gpu},"
        f" and up to {DEFAULT_OPTIONS.record_minutes:.0f} min more where further launches help"
        f" (--specreg-record-minutes)"
    )
    gpu_count = len(gpus.devices)
    if tier.needs_gpus and gpu_count > 1:
        shared_s = run_on_gpus_s(tier.cases, estimates, gpu_count)
        recording_s = LAUNCHES_TO_RECORD * shared_s
        yield (
            f"with -n auto on these {gpu_count} GPUs a run takes about {_hours(shared_s)},"
            f" recording it about {_hours(recording_s)}"
        )


def _hours(seconds: float) -> str:
    """Render a time in hours and minutes, such as `6 h 30 min`."""
    hours, minutes = divmod(math.ceil(seconds / _S_PER_MIN), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _fit_line(tier: Tier, gpus: Gpus) -> VerdictLine:
    """Return how many cases fit a machine, and how much memory the others need."""
    cases = counted(len(tier.cases), "case")
    unfit_ids = tier.unmet(gpus.memory_gib).keys()
    if not unfit_ids:
        return VerdictLine(tone=Tone.GOOD, text=f"Tier {tier.name}: {cases}, all fit here")
    memory = render_memory(gpus.memory_gib) or f"no GPU ({gpus.why_none})"
    text = f"{len(unfit_ids)} of {cases} don't fit this machine: {memory}"
    needs_by_pair: dict[str, list[float]] = {}
    for case in tier.cases:
        if gpus.devices and case.id in unfit_ids and case.memory_gib is not None:
            needs_by_pair.setdefault(case.server.models, []).append(case.memory_gib)
    needs = [
        f"{len(needed_gib)} of {pair} need {math.ceil(max(needed_gib))} GiB"
        for pair, needed_gib in needs_by_pair.items()
    ]
    if needs:
        text = f"{text}; on each GPU, {', '.join(needs)}"
    return VerdictLine(tone=Tone.DOUBT, text=text)


def _matrix_row(case: Case, estimate: Estimate, *, on_gpu: bool) -> tuple[str, ...]:
    gpus = NOTHING
    memory = NOTHING
    if on_gpu:
        gpus = str(case.server.parallel.gpus_by_node)
        if case.memory_gib is not None:
            memory = str(math.ceil(case.memory_gib))

    minutes = f"{estimate.case_s / _S_PER_MIN:.1f}"
    return case.id, gpus, memory, str(case.request.prompts), minutes, estimate.source
