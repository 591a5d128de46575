"""`specreg doctor`, `merge` and `ray`: check a machine, merge shards, or run them on a cluster."""

import contextlib
import io
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from specreg.baselines.record import COMMIT, commit_of
from specreg.cli import DEFAULT_OPTIONS, HERE, RootOption, TierOption, naming, say
from specreg.compare.options import parse_tolerances
from specreg.core.commands import install_command
from specreg.core.errors import SpecregError, check_name
from specreg.core.files import real_path
from specreg.core.processes import clean_up, end_process, new_temporary, start_process
from specreg.core.received import received_files, write_received
from specreg.measurement.metrics import METRICS
from specreg.report.files import FILE_NAME
from specreg.report.progress import Progress
from specreg.report.screen import screen_here
from specreg.report.terminal import render_report, render_view
from specreg.runs.ledger import LEDGER
from specreg.suite.configure import open_context
from specreg.suite.document import report_of, run_verdict
from specreg.suite.finish import record_run
from specreg.suite.judged_again import judge_again
from specreg.suite.merge import merge_shards, open_merged
from specreg.suite.new_baselines import record_baselines
from specreg.suite.options import Inconclusive, Options, options_typed
from specreg.suite.plan import PLAN
from specreg.suite.preflight import Severity, examine, view_of_findings
from specreg.suite.remarks import remarks_of
from specreg.suite.shard_runs import has_plan, load_shard
from specreg.suite.shards import SHARDS_FILE, Shard
from specreg.verdicts.status import exit_status

_BYTES_PER_GIB = 2**30
_ShardResult = tuple[int, str, dict[str, bytes]]
"""The exit status of a shard, the last lines that it printed, and the files of its run by name."""
_ANSWERS_WITHIN_S = 10.0
_LEFT_OUT = (".git", ".specreg", ".nox", ".venv", "**/__pycache__", "**/.mypy_cache")
"""The parts of the repository that no node needs."""
_TASK_VARIABLES = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""Settings of the processes in which Ray runs the shards.

When Ray ends a process, it would kill the children of the process. One of these is the supervisor
of the shard, which has to remove the shard's folder.
"""
_POLL_S = 0.1
_SHARD_ENDS_WITHIN_S = 8.0
"""How long a shard may take to end when it has to: more than the 5 s that it gives its server."""


_InconclusiveOption = Annotated[
    str, typer.Option(help="what INCONCLUSIVE does to the status: nights, fail, warn or warn-speed")
]
_MatrixOption = Annotated[str, typer.Option(help="the folder of the tiers, relative to the root")]
_BaselinesOption = Annotated[
    str, typer.Option(help="the folder of the baselines, relative to the root")
]
_HistoryOption = Annotated[
    str | None,
    typer.Option(help="the folder of the history, relative to the root, or none to leave it out"),
]


def doctor(
    tier: TierOption = None,
    root: RootOption = HERE,
    engine_python: Annotated[
        str | None, typer.Option(help="a Python interpreter whose environment has the engine")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="a container image in which all servers run")
    ] = None,
) -> None:
    """Print what this machine is, what can be measured on it, and what is in the way of a tier.

    Status 1 if something is in the way. Nothing is started, fetched or changed.

    Examples:
        specreg doctor
        specreg doctor --tier gpu
    """
    options = Options(tier=tier, engine_python=engine_python, image=image)
    findings = tuple(examine(open_context(root, options, Progress(io.StringIO()))))
    screen = screen_here()
    say(render_view(view_of_findings(findings), screen), styled=screen.color)
    is_blocked = any(finding.state is Severity.IN_THE_WAY for finding in findings)
    raise typer.Exit(int(is_blocked))


def merge(
    runs: Annotated[list[Path], typer.Argument(help="the folders of the shards")],
    into: Annotated[Path, typer.Option(help="the folder of the merged run")],
    root: RootOption = HERE,
    reason: Annotated[
        str | None,
        typer.Option(help="why baselines are recorded (default: the reason of the shards)"),
    ] = None,
    inconclusive: _InconclusiveOption = DEFAULT_OPTIONS.inconclusive,
    matrix: _MatrixOption = DEFAULT_OPTIONS.matrix,
    baselines: _BaselinesOption = DEFAULT_OPTIONS.baselines,
    history: _HistoryOption = DEFAULT_OPTIONS.history,
    *,
    update_baselines: Annotated[
        bool, typer.Option("--update-baselines", help="write the baselines that shards recorded")
    ] = False,
) -> None:
    """Join the shards of a run into one report and one verdict.

    The options of this command decide where tiers and baselines are, how to judge, and whether to
    write baselines. The folders of the shards are only read as data.

    Examples:
        specreg merge .specreg/runs/shard1 .specreg/runs/shard2 --into .specreg/runs/merged
    """
    check_name("--inconclusive", inconclusive, get_args(Inconclusive))
    options = Options(
        update_baselines=update_baselines,
        reason=reason,
        inconclusive=inconclusive,
        matrix=matrix,
        baselines=baselines,
        history=history,
    )
    _merge(runs, into, root, options)


def judge(
    run: Annotated[Path, typer.Argument(help="the folder of the run, which stays as it is")],
    root: RootOption = HERE,
    inconclusive: _InconclusiveOption = DEFAULT_OPTIONS.inconclusive,
    matrix: _MatrixOption = DEFAULT_OPTIONS.matrix,
    baselines: _BaselinesOption = DEFAULT_OPTIONS.baselines,
    history: _HistoryOption = DEFAULT_OPTIONS.history,
    *,
    tolerance: Annotated[
        list[str] | None, typer.Option(help="the tolerated loss of a metric in place of its own")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="the name of an earlier run in the history that isn't judged with"),
    ] = None,
) -> None:
    """Judge a recorded run anew: with other tolerances, newer baselines, or without a night.

    Nothing is started or written.

    Examples:
        specreg judge .specreg/runs/20261128T020000-1
        specreg judge .specreg/runs/20261128T020000-1 --tolerance throughput_tokens_per_s=0.05
    """
    check_name("--inconclusive", inconclusive, get_args(Inconclusive))
    options = Options(
        inconclusive=inconclusive, matrix=matrix, baselines=baselines, history=history
    )
    tolerances_frac = parse_tolerances(tolerance or (), METRICS)
    with naming(run / FILE_NAME, run / LEDGER):
        judged, remarks = judge_again(
            real_path(root), options, run, tolerances_frac, frozenset(without or ())
        )
        result = judged.result()

    status = exit_status(result.verdicts)
    verdict = run_verdict(result, status, cut_short=not judged.is_whole)
    command = shlex.join(("specreg", *sys.argv[1:]))
    report = report_of(result, verdict, command=command, remarks=(*remarks, *remarks_of(result)))
    screen = screen_here()
    say(render_report(report, screen), styled=screen.color)
    raise typer.Exit(status)


def _merge(runs: Sequence[Path], into: Path, root: Path, options: Options) -> None:
    """Join the shards of a run by the options of this machine, show the report, and exit.

    Raises:
        SpecregError: the folder can't be made, a shard can't be read or copied, the shards can't be
            merged here, or the new report can't be read.
        typer.Exit: with the status of the run.
    """
    # Read the shards.
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"--into '{into}': {error.strerror}; name a folder that can be made"
        raise SpecregError(message) from error

    # If no shard has a plan, loading the first one raises an error that names the plan.
    begun = [run for run in runs if has_plan(run)] or runs
    remarks = [
        f"'{run}': no {PLAN}, so it ended before it measured anything"
        for run in runs
        if run not in begun
    ]
    with naming(*(run / name for run in begun for name in (FILE_NAME, LEDGER))):
        shards = sorted(map(load_shard, begun), key=lambda shard: shard.plan.shard_number)
        context = open_merged(real_path(root), options, shards, real_path(into))
        shards_inconclusive = shards[0].plan.options.inconclusive
        if shards_inconclusive != options.inconclusive:
            rule = f"this merge judges with '{options.inconclusive}'"
            remark = f"the shards ran with --specreg-inconclusive={shards_inconclusive}, {rule}"
            remarks.append(remark)

        # Judge their measurements together.
        merged, shard_remarks = merge_shards(context, shards, missing_is_invalid=True)
        remarks += shard_remarks
        result = merged.result()

    failed_otherwise = any(shard.failed_otherwise for shard in shards)
    status = exit_status(result.verdicts) or int(failed_otherwise)

    # Write the baselines, then the report.
    screen = screen_here()
    if context.is_recording:
        recorded, all_written = record_baselines(result, screen)
        status = status or int(bool(remarks) or not all_written)
        say("\n\n".join(recorded), styled=screen.color)

    verdict = run_verdict(result, status, cut_short=not merged.is_whole)
    command = shlex.join(("specreg", "merge", *map(str, runs), "--into", str(into)))
    report, lines = record_run(result, verdict, command=command, remarks=remarks)
    lines.append(f"report: {context.run_folder / 'report.html'}")
    text = "\n".join(lines)
    if report is not None:
        text = render_report(report, screen, details=lines)
    say(text, styled=screen.color)
    raise typer.Exit(status)


def ray(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="arguments of pytest, after --")
    ] = None,
    address: Annotated[
        str, typer.Option(help="the address of the cluster, HOST:PORT or auto")
    ] = "auto",
    shards: Annotated[int, typer.Option(min=1, help="how many shards the run is cut into")] = 4,
    memory_gib: Annotated[
        float, typer.Option(min=0.1, help="the memory that a shard takes of its node")
    ] = 4.0,
    gpu_kind: Annotated[str, typer.Option(help="the kind of GPU, by Ray's name for it: H100")] = "",
    into: Annotated[Path, typer.Option(help="the folder of the merged run")] = Path(
        ".specreg/merged"
    ),
    root: RootOption = HERE,
    *,
    shared: Annotated[
        bool, typer.Option("--shared", help="the nodes share this folder, so no copy is sent")
    ] = False,
) -> None:
    """Run the shards of a run on a Ray cluster, each as a task with its GPUs, and merge them.

    Examples:
        specreg ray --shards 8 -- --specreg-tier=gpu
    """
    try:
        import ray as cluster  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = f"specreg ray: Ray isn't installed; {install_command('ray')}"
        raise SpecregError(message) from error

    # Cut the run. If there are fewer groups of servers than shards, some shards are empty.
    root = real_path(root)
    arguments_given = tuple(arguments or ())
    options = options_typed(arguments_given)
    cut = [shard for shard in _shards(root, shards, arguments_given) if shard.groups]

    # Connect to the cluster.
    environment: dict[str, Any] = {"env_vars": {COMMIT: commit_of(root), **_TASK_VARIABLES}}
    if not shared:
        environment |= {"working_dir": str(root), "excludes": list(_LEFT_OUT)}
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():
            # Ray would wait for more than a minute if nothing listened at the address.
            socket.create_connection((host, int(port)), _ANSWERS_WITHIN_S).close()
        cluster.init(address=address, runtime_env=environment, log_to_driver=True)
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"no cluster answers ({error})"
        message = f"specreg ray --address {address}: {problem}; name another address"
        raise SpecregError(message) from error

    # Start a task for each shard.
    task = cluster.remote(run_shard)
    folder = str(root) if shared else ""
    resources = None
    if gpu_kind:
        # Each node has one unit of the resource that is named after its kind of GPU. Asking for a
        # little of it restricts the task to such nodes.
        resources = {f"accelerator_type:{gpu_kind}": 0.001}

    waiting = {}
    for shard in cut:
        shard_task = task.options(
            name=f"shard {shard.number}/{shards}",
            num_gpus=max(group.gpus for group in shard.groups),
            memory=round(memory_gib * _BYTES_PER_GIB),
            resources=resources,
            # Ray repeats a task only if its node or process is lost. A shard that fails ends its
            # task normally, because it has a report.
            max_retries=1,
        )
        result = shard_task.remote(shard.number, shards, arguments_given, folder)
        waiting[result] = shard.number

    # Collect the folders of the runs, and merge them.
    home = Path(tempfile.mkdtemp(prefix="shards-", dir=root / ".specreg"))
    runs = list(run_folders(cluster, waiting, shards, home))
    cluster.shutdown()
    if not runs:
        raise SpecregError("specreg ray: no shard returned its folder; see the messages above")
    _merge(runs, into, root, options)


def run_folders(
    cluster: Any,  # noqa: ANN401 - the module of Ray, which is an extra
    waiting: dict[Any, int],
    shards: int,
    home: Path,
) -> Iterator[Path]:
    """Yield the folder of each shard's run as the shards end. A shard may end without a folder.

    Args:
        cluster: the module of Ray.
        waiting: the number of each shard, by the reference to the result of its task.
        shards: how many shards the run is cut into.
        home: the folder in which the folders of the runs are written.
    """
    while waiting:
        (done,), _ = cluster.wait(list(waiting), num_returns=1)
        number = waiting.pop(done)
        try:
            status, output, files = msgspec.convert(cluster.get(done), _ShardResult)
        except cluster.exceptions.RayError as error:
            # The message of Ray's own error is a traceback.
            cause = getattr(error, "cause", None) or error
            say(f"shard {number}/{shards}: lost, {cause!r}", err=True)
            continue
        except msgspec.ValidationError as error:
            say(f"shard {number}/{shards}: lost, it returned something else: {error}", err=True)
            continue
        say(f"shard {number}/{shards}: ended with status {status}", err=True)
        if not files:
            say(output, err=True)
            continue
        run_folder = home / str(number)
        try:
            write_received(files, run_folder)
        except OSError as error:
            say(f"shard {number}/{shards}: lost, its folder {error.strerror}", err=True)
            continue
        yield run_folder


def run_shard(number: int, of: int, arguments: tuple[str, ...], folder: str) -> _ShardResult:
    """Run a shard on a node of the cluster, as a task of Ray.

    Args:
        number: the number of the shard, from 1.
        of: how many shards the run is cut into.
        arguments: arguments of pytest.
        folder: the repository, if all nodes share its folder; empty if Ray sends a copy.

    Returns:
        The exit status of pytest, the last lines that it printed, and the content of each file of
        its run's folder by its path there; no files if there is no such folder.
    """
    with interruptible(), contextlib.ExitStack() as cleanups:
        temporary = new_temporary("shard-")
        runs = temporary / "runs"
        command = (
            *(sys.executable, "-m", "pytest", "tests/perf", f"--specreg-shard={number}/{of}"),
            *(f"--specreg-runs={runs}", *arguments),
        )
        # Ray has changed the working folder to that of the copy.
        here = Path(folder) if folder else Path.cwd()
        process = start_process(
            command,
            # The temporary files of the shard are in its folder, which is removed at the end.
            environment={**os.environ, "TMPDIR": str(temporary)},
            log_path=temporary / "said.log",
            cwd=here,
            temporary=temporary,
        )
        # The temporary folder contains the run's folder, so it is removed only after the run's
        # folder was read. If this process is killed first, the supervisor removes it.
        cleanups.callback(clean_up, process)
        # When Ray cancels this task, the shard has to end with it.
        try:
            # Ray cancels a task by an exception, which is raised between two instructions of
            # Python. A single long wait would delay it.
            while (status := process.popen.poll()) is None:
                time.sleep(_POLL_S)
        finally:
            end_process(process, grace_s=_SHARD_ENDS_WITHIN_S)
        run_folder = next(runs.glob(f"*-{number}of{of}"), None)
        files = {}
        if run_folder is not None:
            for path in received_files(run_folder):
                files[str(path)] = (run_folder / path).read_bytes()
        return status, process.last_lines(), files


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt this process, which runs a task of Ray.

    Ray blocks SIGINT in its own processes, and a cluster that was started in the background ignores
    it.
    """
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _shards(root: Path, of: int, arguments: tuple[str, ...]) -> list[Shard]:
    """Have pytest cut the run into `of` shards, and return them.

    Raises:
        SpecregError: pytest failed.
    """
    command = (sys.executable, "-m", "pytest", "tests/perf", "-q", f"--specreg-shard=list/{of}")
    done = subprocess.run(  # noqa: S603 - what the user typed
        (*command, *arguments), check=False, cwd=root, capture_output=True, text=True
    )
    if done.returncode:
        raise SpecregError(
            "specreg ray: the run can't be cut into shards, because pytest ended with status"
            f" {done.returncode}; correct what it reports:\n{done.stdout[-2000:]}{done.stderr}"
        )

    return msgspec.json.decode((root / SHARDS_FILE).read_bytes(), type=list[Shard])
