"""`specreg`: what is done with baselines besides running the suite."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specreg.baseline import (
    Baseline,
    load_baseline,
    parse_baseline,
    record_baseline,
    render_schema,
)
from specreg.consulting import expected_steps
from specreg.errors import BaselineError, SpecregError, UnknownNameError
from specreg.expectation import Shelf, settings_in
from specreg.history import history_path, learned, load_history
from specreg.identity import current_environment, find_gpus
from specreg.importing import ImportAbout, parse_import
from specreg.matrix import Case, Tier, all_case_ids, load_tier
from specreg.published import record_published
from specreg.report.baselines import render_changes, render_list
from specreg.report.engines import render_support
from specreg.report.explain import render_explanation
from specreg.report.json import RunVerdict, load_verdict
from specreg.report.oracle import render_oracle

_WIDTH = 110

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Baselines of speculative decoding: what is expected, and what was recorded.",
)
baselines = typer.Typer(no_args_is_help=True, help="What was recorded.")
app.add_typer(baselines, name="baselines")

RootOption = Annotated[Path, typer.Option("--root", help="the repository's root")]
FolderOption = Annotated[Path, typer.Option("--baselines", help="their folder, from the root")]
MatrixOption = Annotated[Path, typer.Option("--matrix", help="the tiers' folder, from the root")]
RunsOption = Annotated[Path, typer.Option("--runs", help="the runs' folder, from the root")]
TierOption = Annotated[str | None, typer.Option("--tier", help="gpu where there is one, else cpu")]

HERE = Path()
BASELINES = Path("baselines")
MATRIX = Path("fixtures/matrix")
RUNS = Path(".specreg/runs")


def main() -> None:
    """The command line; an error of specreg is its message alone, with status 1."""
    try:
        app()
    except SpecregError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(1) from error


@app.command()
def explain(
    case: Annotated[str, typer.Argument(help="its id, e.g. vllm-eagle3-tiny-toy-c4")],
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Print what is expected of a case, where that comes from, and what the case can see."""
    found = _tier(root / matrix, tier)
    one = _case(found, case)
    shelf = _shelf(root / folder, found)
    known = shelf.look_up(one, settings_in(root, one))
    history = load_history(history_path((root / runs).parent / "history", shelf.environment.name))
    typer.echo(render_explanation(one, known, history.get(case, ()), width=_WIDTH))


@app.command()
def oracle(
    case: Annotated[str, typer.Argument(help="its id, e.g. vllm-eagle3-tiny-toy-c4")],
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
) -> None:
    """Print the acceptance that a case should have, by its models, beside what was recorded.

    The target's greedy answers come from the reference engine; needs torch, 1 to 5 GB.
    """
    found = _tier(root / matrix, tier)
    one = _case(found, case)
    on_gpu = found.needs_gpus > 0
    prompts, steps = expected_steps(
        one, root.resolve(), on_gpu=on_gpu, show=lambda text: typer.echo(text, err=True)
    )
    known = _shelf(root / folder, found).look_up(one, settings_in(root, one))
    typer.echo(render_oracle(one, prompts, steps, known))


@app.command()
def engines() -> None:
    """Print which engine has which method, in Markdown."""
    typer.echo(render_support())


@app.command()
def selftest(
    nights: Annotated[int, typer.Option(help="identical nights to simulate")] = 200,
) -> None:
    """Plant known changes and simulate identical nights; print what was caught, and what wasn't."""
    from specreg.selftest import run_selftest  # noqa: PLC0415 - seconds of simulation

    text, holds = run_selftest(nights)
    typer.echo(text)
    raise typer.Exit(0 if holds else 1)


@baselines.command("list")
def list_baselines(root: RootOption = HERE, folder: FolderOption = BASELINES) -> None:
    """Print all baselines: what was recorded where, when and why."""
    typer.echo(
        render_list([(path, _readable(path)) for path in _paths(root / folder)], width=_WIDTH)
    )


@baselines.command()
def diff(
    revision: Annotated[str, typer.Argument(help="of git, to compare with")] = "HEAD",
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
) -> None:
    """Print what the baselines on disk change against those of a revision."""
    _check_revision(root, revision)
    changes, unreadable = [], []
    for path in _paths(root / folder):
        old, new = _baseline_at(revision, path), _readable(path)
        if isinstance(new, str):
            unreadable.append(new)
        elif old != new:
            changes.append((path, old, new))
    if changes:
        typer.echo(render_changes(changes, width=_WIDTH))
    typer.echo("\n".join(unreadable) or ("" if changes else f"as in {revision}"), nl=not changes)


@baselines.command()
def prune(
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Remove this machine's baselines that no case of any tier asks for.

    Refused unless the last run judged its whole tier and nothing failed.
    """
    last = _last_verdict(root / runs)
    if last is None or not last.complete or last.exit_status:
        said = (
            "there is none" if last is None else f"'{last.run}' was filtered, cut short or failed"
        )
        raise BaselineError(
            f"prune: refused, the last run must have judged its whole tier and passed, and {said};"
            " run the suite without -k first"
        )
    shelf = _shelf(root / folder, _tier(root / matrix, tier))
    if last.environment != shelf.environment.name:
        raise BaselineError(
            f"prune: refused, the last run was on '{last.environment}', this is"
            f" '{shelf.environment.name}'; run the suite here, or give its --tier"
        )
    unused = shelf.unused(all_case_ids(root / matrix))
    for path in unused:
        path.unlink()
        typer.echo(f"removed {path}")
    typer.echo(f"{len(unused)} removed of {shelf.environment.name}")


@baselines.command()
def learn(
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
    runs: RunsOption = RUNS,
) -> None:
    """Write how hours differ into this machine's baselines, from the history of identical runs.

    Nothing else of them changes. It takes five runs of a case or more.
    """
    shelf = _shelf(root / folder, _tier(root / matrix, tier))
    history = load_history(history_path((root / runs).parent / "history", shelf.environment.name))
    for path in _paths(root / folder):
        if path.parent.name != shelf.environment.name:
            continue
        old = _readable(path)
        if isinstance(old, str):
            typer.echo(old)
            continue
        new = learned(old, history.get(path.stem, ()))
        if new == old:
            continue
        record_baseline(path, new)
        shown = (f"{name} {noise.between_frac:.1%}" for name, noise in new.noise.items())
        typer.echo(f"{path.stem}: {', '.join(shown)}")


@baselines.command("import")
def import_figures(
    file: Annotated[Path, typer.Argument(help="what another tool wrote")],
    case: Annotated[str, typer.Option(help="the id of the case that it is of")],
    conditions: Annotated[str, typer.Option(help="prompts, sampling and machine, in a sentence")],
    tier: TierOption = None,
    root: RootOption = HERE,
    folder: FolderOption = BASELINES,
    matrix: MatrixOption = MATRIX,
) -> None:
    """Take the acceptance that another tool measured as a published figure of a case.

    Reads the results of vllm bench serve, specdec_bench and aiperf, and {"expected",
    "tolerance_pct"}. A figure is what a case is judged against where nothing was recorded.
    """
    one = _case(_tier(root / matrix, tier), case)
    if one.server.tree is not None:
        message = (
            f"import for '{case}': a published figure doesn't say how the drafts branched; record"
            " the case with --update-baselines"
        )
        raise BaselineError(message)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BaselineError(f"import '{file}': {error.strerror}; name a file") from error
    about = ImportAbout(
        method=one.server.method,
        target=one.server.target,
        draft=one.server.draft,
        dataset=one.dataset,
        draft_tokens=one.server.draft_tokens,
        temperature=one.temperature,
        conditions=conditions,
        turns=one.turns,
        output_cap_tokens=one.output_cap_tokens,
    )
    path = root / folder / "published" / f"{case}.json"
    record_published(path, parse_import(content, str(file), about))
    typer.echo(f"wrote {path}")


@baselines.command()
def schema() -> None:
    """Print the JSON Schema of a baseline file."""
    typer.echo(render_schema(), nl=False)


def _tier(matrix: Path, name: str | None) -> Tier:
    return load_tier(matrix, name or ("gpu" if find_gpus().names else "cpu"))


def _shelf(folder: Path, tier: Tier) -> Shelf:
    return Shelf(folder=folder, environment=current_environment(needs_gpus=tier.needs_gpus))


def _paths(folder: Path) -> Iterator[Path]:
    """The files of baselines; published figures are none."""
    yield from (path for path in sorted(folder.glob("*/*.json")) if path.parent.name != "published")


def _case(tier: Tier, case_id: str) -> Case:
    cases = {one.id: one for one in tier.cases}
    if case_id not in cases:
        raise UnknownNameError("case", case_id, cases, f"tier '{tier.name}'")
    return cases[case_id]


def _readable(path: Path) -> Baseline | str:
    """A baseline, or why it can't be read."""
    try:
        return load_baseline(path) or "it went away"
    except BaselineError as error:
        return str(error)


def _baseline_at(revision: str, path: Path) -> Baseline | None:
    """A baseline as git has it, None where it hasn't, or in another form."""
    where = path.resolve()
    command = ("git", "-C", str(where.parent), "show", f"{revision}:./{where.name}")
    done = _git(*command)
    with contextlib.suppress(BaselineError):
        return parse_baseline(done.stdout, path) if done.returncode == 0 else None
    return None


def _git(*command: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, capture_output=True)  # noqa: S603
    except OSError as error:
        raise BaselineError(f"git: {error.strerror}; install it to compare revisions") from error


def _check_revision(root: Path, revision: str) -> None:
    command = ("git", "-C", str(root), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if _git(*command).returncode:
        message = f"revision '{revision}': git knows none of this name in '{root}'; see git log"
        raise BaselineError(message)


def _last_verdict(runs: Path) -> RunVerdict | None:
    """What the last run decided, None without one."""
    folders = sorted(path for path in runs.glob("*") if path.is_dir())
    return load_verdict(folders[-1] / "verdict.json") if folders else None
