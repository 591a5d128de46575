"""The gate: measure an engine on side A and on side B, until it is decided whether B is worse.

The sides are two versions, builds or configurations of the engine.

`open_gate` checks everything that can be checked before anything is measured.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.compare.answers import AnswerComparison
from specreg.compare.judging import Decision, Rules, decide, is_lost, rules_of
from specreg.compare.options import MAX_LAUNCHES, GateOptions
from specreg.compare.pairs import (
    COMPARED,
    Group,
    Pair,
    Side,
    groups_of,
    pairs_of,
    parse_override,
    pinned_pairs,
)
from specreg.compare.plan import Goal, Step, next_step, slots_of
from specreg.compare.progress import render_progress
from specreg.core.errors import (
    DatasetError,
    EnvironmentSetupError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
    UnsupportedError,
)
from specreg.core.files import cause_of
from specreg.core.reasons import Reason
from specreg.core.received import received_files
from specreg.datasets.prompts import prompts_sha256
from specreg.load.chat_client import FinishedRequest, Record
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import model_sha256, resolve_model, served_models
from specreg.matrix.prompts import check_contexts, check_drafts, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Plan, measure, workload_of
from specreg.runs.ledger import LEDGER, ArmLaunch, FailedLaunch, Key, Ledger, MeasuredLaunch
from specreg.servers.handle import ServerHandle
from specreg.servers.installer import packages_sha256
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import Origin, Provision, parse_origin, provision_side
from specreg.servers.server import Server
from specreg.telemetry.identity import Environment, current_environment, find_gpus

_MINUTES_WITHOUT_GPU = 20.0
"""How long all launches may take without a GPU, unless --minutes gives another limit."""
_MAX_TIMES_THE_PROMPTS = 10
"""Two drafts are compared on this many times the prompts of a case, if the dataset has them."""


class SideError(SpecregError):
    """Raised if a side of a gate fails.

    Attributes:
        side: the side that failed.
        started: whether its server had started.
    """

    def __init__(self, side: Side, message: str, *, started: bool = True) -> None:
        super().__init__(message)
        self.side = side
        self.started = started


@dataclass(slots=True, kw_only=True)
class Gate:
    """A gate and its launches so far.

    Attributes:
        options: the options of the command.
        tier: the tier of its cases.
        folder: the folder that it writes to.
        sources: the environments that provide the servers of A and of B.
        installed: for A and for B, the package and its version, and its origin unless it came from
            an index.
        groups: the pairs of cases that are compared. The pairs of a group share their servers.
        together: whether the servers of both sides run at the same time.
        environment: the environment of the machine.
        rules: how many launches there may be, and how strictly they are judged.
        ledger: the launches, and what is written of them.
        key_of: returns the key of a pair's side on the launch with a number.
        answers: the comparison of both sides' answers.
        finished: whether the gate has ended. False if it was interrupted, or if its time was up.
        launcher: simulates a step, and adds what it measured to the ledger. None to start real
            servers.
    """

    options: GateOptions
    tier: Tier
    folder: Path
    sources: Sequence[Provision]
    installed: Sequence[str]
    groups: Sequence[Group]
    together: bool
    environment: Environment
    rules: Rules
    ledger: Ledger
    key_of: Callable[[Pair, Side, int], Key]
    answers: AnswerComparison
    finished: bool = False
    launcher: Callable[["Gate", Step], None] | None = None

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The cases that are compared, as both sides run them."""
        return tuple(itertools.chain.from_iterable(self.groups))

    def source_of(self, side: Side) -> Provision:
        """Return the environment that provides the servers of a side."""
        source_of_a, source_of_b = self.sources
        return source_of_b if side.is_b else source_of_a

    def installed_on(self, side: Side) -> str:
        """Return the package of a side, with its version and its origin; see `installed`."""
        installed_on_a, installed_on_b = self.installed
        return installed_on_b if side.is_b else installed_on_a

    def take_over(self) -> None:
        """Take over the launches that the gate had measured before it was interrupted.

        Raises:
            UnsupportedError: the folder belongs to another gate.
            SpecregError: the ledger can't be read.
        """
        # If a launch was repeated, the last one counts.
        self.ledger.read([self.ledger.path], last=True)
        # All launches in the ledger must be of this gate's pairs. The keys have the number 0 here,
        # because a pair may have launches of any number.
        arms = {self.key_of(pair, side, 0) for pair, side in itertools.product(self.pairs, Side)}
        for key, measurement in self.ledger.recorded.measured.items():
            is_ours = msgspec.structs.replace(key, launch=0) in arms
            if not is_ours or not 1 <= key.launch <= MAX_LAUNCHES:
                message = (
                    f"'{self.ledger.path}': is of another gate; name the same sides, cases and"
                    " options as that gate had, or another --out"
                )
                raise UnsupportedError(message)
            self.ledger.add(
                MeasuredLaunch(
                    case_id=key.case_id,
                    arm=key.arm,
                    number=key.launch,
                    measurement=measurement,
                    is_resumed=True,
                )
            )
        self.answers.take_over()
        # The gate may be resumed with fewer launches than it has already made.
        begun = max((launch.number for launch in self.ledger.launches), default=0)
        if begun > self.rules.launches:
            self.rules = dataclasses.replace(self.rules, launches=begun)
            self.options.show(
                f"--launches {self.options.launches}: launch {begun} was begun before, so all are"
                f" judged as with --launches {begun}"
            )

    def measure(
        self, is_done: Callable[[Decision], bool] | None = None, *, goes_on_until_done: bool = False
    ) -> Decision:
        """Launch both sides until the gate has its answer, or the time is up.

        Args:
            is_done: returns whether the decision of a look is final; None to go on as long as
                further launches could lead to an upgrade.
            goes_on_until_done: whether pairs are launched until the decision is final, even if
                further launches can't lead to an upgrade.

        Raises:
            SpecregError: a side can't start at all, or the ledger can't be written.
        """
        minutes = self.options.minutes
        if minutes is None:
            on_gpu = self.source_of(Side.A).on_gpu
            minutes = math.inf if on_gpu else _MINUTES_WITHOUT_GPU
        deadline_s = time.monotonic() + 60 * minutes
        longest_s = 0.0
        launch = self.launcher or Gate._launch
        goal = Goal(
            groups=self.groups,
            rules=self.rules,
            together=self.together,
            decide=self._decide,
            is_done=is_done or is_lost,
            is_wanted=lambda group: goes_on_until_done or self.answers.wants(group),
        )
        while (step := next_step(self.ledger, goal)) is not None:
            began_s = time.monotonic()
            # Stop if a launch as long as the longest one so far wouldn't end in time.
            if longest_s and began_s + longest_s > deadline_s:
                self._leave_level_to_last_look()
                return self.decide()
            launch(self, step)
            longest_s = max(longest_s, time.monotonic() - began_s)
            *_, last_sides = slots_of(step.number, COMPARED, together=self.together)
            if step.sides == last_sides:
                self._show_progress(step.number, step.group)
        self.finished = True
        return self.decide()

    def _leave_level_to_last_look(self) -> None:
        """Judge as if no further launches had been planned, because there is no time for them.

        The present look is then the last one, and gets the level of the looks that are left out.
        This is valid because the time runs out whatever the figures are.
        """
        begun = max((launch.number for launch in self.ledger.launches), default=0)
        if begun:
            self.rules = dataclasses.replace(self.rules, launches=begun)

    def _show_progress(self, number: int, group: Group) -> None:
        """Show how far the metrics of a group are decided after a launch."""
        for line in render_progress(self.decide(), group, self.rules.looks):
            self.options.show(f"launch {number}, {line}")

    def decide(self) -> Decision:
        """Return the decision on the basis of the launches so far."""
        return self._decide(self.ledger.launches)

    def _decide(self, launches: Sequence[ArmLaunch]) -> Decision:
        return decide(self.pairs, launches, self.rules, self.answers.verdicts)

    def engines(self, side: Side) -> tuple[str, ...]:
        """Return the different engines of a side, each with the version that its server reported.

        There are several if the environment of the side has several.
        """
        engines = set()
        for launch in self.ledger.measured:
            version = launch.measurement.engine_version
            if Side(launch.arm).is_b == side.is_b and version:
                engines.add(f"{launch.case.server.engine} {version}")
        return tuple(sorted(engines))

    def _launch(self, step: Step) -> None:
        """Start the servers of a step, and measure its pairs on them.

        A failure is recorded as a failed launch.

        Raises:
            SideError: the server of a side has never started, neither now nor before.
            MemoryHeldError: another process holds the memory that a server needs.
        """
        group, number, sides = step
        side_names = f"sides {', '.join(sides)}"
        if len(sides) == 1:
            side_names = f"side {sides[0]}"
        # All pairs of a group share their servers. The two ids are equal if no setting differs.
        first_pair = group[0]
        server_ids = dict.fromkeys((first_pair.a.server.id, first_pair.b.server.id))
        self.options.show(f"launch {number}, {side_names}: {' > '.join(server_ids)}")
        handles: dict[Side, ServerHandle] = {}
        servers: dict[Side, Server] = {}
        with contextlib.ExitStack() as stack:
            try:
                # Start all servers before waiting for one, so that they load at the same time.
                for side in sides:
                    with _blaming(side, self.options):
                        handle = self._handle_of(first_pair, side, number)
                        handles[side] = stack.enter_context(handle)
                        handle.poll()
                for side, handle in handles.items():
                    with _blaming(side, self.options):
                        servers[side] = handle.server
                with _naming(servers):
                    for pair in group:
                        self._measure(pair, number, servers)
            except SideError as error:
                # A server that has started before may start again, so only its launch is lost.
                if not error.started and not self._has_started(error.side, group):
                    raise
                self.options.show(f"launch {number}, side {error.side}: {error}")
                self._note_failure(error, group, number)

    def _handle_of(self, pair: Pair, side: Side, number: int) -> ServerHandle:
        """Return the handle of a side's server, without starting it."""
        spec = pair.of(side).server
        log_name = f"{number:03}-{side}-{spec.id}".replace(" ", "")
        return ServerHandle(
            launch=Launch(spec=spec, number=number),
            launcher=ServerLauncher(
                provision=self.source_of(side),
                root=self.options.root,
                ready_within_s=self.options.ready_within_s,
            ),
            log_path=self.folder / "logs" / f"{log_name}.log",
        )

    def _has_started(self, side: Side, group: Group) -> bool:
        """Return whether a side's server has measured a pair of a group before."""
        pair_ids = {pair.id for pair in group}
        return any(
            launch.case_id in pair_ids and Side(launch.arm).is_b == side.is_b
            for launch in self.ledger.measured
        )

    def _note_failure(self, error: SideError, group: Group, number: int) -> None:
        """Record a failed launch for each pair whose launch with this number isn't recorded yet."""
        launched_ids = {
            launch.case_id
            for launch in self.ledger.launches
            if (launch.arm, launch.number) == (error.side, number)
        }
        for pair in group:
            if pair.id not in launched_ids:
                self._note_failed(pair.id, error.side, number, Reason(text=str(error)))

    def _note_failed(self, pair_id: str, side: Side, number: int, reason: Reason) -> None:
        failed = FailedLaunch(case_id=pair_id, arm=side, number=number, reason=reason)
        self.ledger.extend([failed])

    def _measure(self, pair: Pair, number: int, servers: dict[Side, Server]) -> None:
        """Measure a pair on the running servers, and compare its answers.

        If a server died or hangs, all measurements of the pair on this launch are discarded.

        Raises:
            SideError: a server hangs.
            ServerDiedError: a server died.
        """
        options = self.options
        # The requests are kept until it is clear that the launch counts.
        requests: list[list[tuple[int | None, FinishedRequest]]] = [[] for _ in servers]

        def record(arm: int, part: int | None) -> Record:
            return lambda finished: requests[arm].append((part, finished))

        # Measure all running sides in turn.
        arms = [
            Arm(case=pair.of(side), server=server, least_s=options.least_s)
            for side, server in servers.items()
        ]
        plan = Plan(show=lambda _: None, record=record)
        workload = workload_of(pair.a, load_case_prompts(options.root, pair.a))
        measurements = measure(arms, workload, plan)

        # Record sides that measured nothing as failed launches.
        measured = []
        measured_sides = tuple(servers)
        for side, measurement, arm_requests in zip(
            measured_sides, measurements, requests, strict=True
        ):
            if measurement.replay is not None:
                measured.append((side, measurement, arm_requests))
                continue
            reason = next(iter(measurement.invalid.values()), Reason.of("nothing_measured"))
            options.show(f"launch {number}, side {side}, {pair.id}: {reason}")
            self._note_failed(pair.id, side, number, reason)
            # A server that hangs would hang on the pairs that are still to come.
            if reason.code == "HUNG":
                raise SideError(side, str(reason))

        # Compare the answers first: if a server dies meanwhile, the launch must not be recorded.
        # Only the answers of A and B are compared, because A1 and A2 are one side.
        if servers.keys() <= {*COMPARED}:
            by_side = {side: measurement for side, measurement, _ in measured}
            self.answers.ask(pair, servers, number, by_side)
        for side, measurement, arm_requests in measured:
            self.ledger.begin(self.key_of(pair, side, number))
            for part, finished in arm_requests:
                self.ledger.record_round(0, part)(finished)
            self.ledger.end(measurement)
            self.ledger.add(
                MeasuredLaunch(case_id=pair.id, arm=side, number=number, measurement=measurement)
            )


@contextlib.contextmanager
def _blaming(
    side: Side, options: GateOptions, kinds: tuple[type[SpecregError], ...] = (SpecregError,)
) -> Iterator[None]:
    """Turn errors of these kinds into a SideError that names the side that can't start."""
    try:
        yield
    except MemoryHeldError:
        # Another process holds the memory, so neither side is to blame.
        raise
    except kinds as error:
        typed = options.b if side.is_b else options.a
        raise SideError(side, f"side {side} ('{typed}'): {error}", started=False) from error


@contextlib.contextmanager
def _naming(servers: Mapping[Side, Server]) -> Iterator[None]:
    """Turn the death of a server into a SideError that names its side."""
    try:
        yield
    except ServerDiedError:
        for side, server in servers.items():
            try:
                server.check_alive()
            except ServerDiedError as error:
                raise SideError(side, error.head) from error
        raise


def open_gate(options: GateOptions, tier: Tier) -> Gate:
    """Return a gate that is ready to start or to be resumed.

    Raises:
        SideError: a side can't be installed.
        SpecregError: the options ask for something that can't be measured, or the folder can't be
            used.
    """
    # Read the options.
    if options.resume and (options.out is None or not options.out.is_dir()):
        problem = "needs the folder of a gate"
        if options.out is not None:
            problem = f"there is no gate in '{options.out}'"
        raise UnsupportedError(f"--resume: {problem}; name the folder with --out")
    folder = options.folder_in("gates")
    root = options.root
    on_gpu = tier.needs_gpus > 0
    origins = (parse_origin(options.a), parse_origin(options.b))
    overrides_of_a = [parse_override(text) for text in options.a_overrides]
    overrides_of_b = [parse_override(text) for text in options.b_overrides]

    # Choose the pairs that are compared.
    cases = _chosen_cases(options, tier, origins)
    pairs = pairs_of(
        tier, cases, (overrides_of_a, overrides_of_b), prompts=options.prompts, show=options.show
    )
    if options.prompts is None:
        pairs = tuple(_with_more_prompts(root, pair) for pair in pairs)
    if options.pin_length_tokens is not None:
        pairs += pinned_pairs(pairs, options.pin_length_tokens, on_gpu=on_gpu)
    figures = sum(len(pair.deciding) for pair in pairs)
    rules = rules_of(options, figures=figures)

    # Check that the models and prompts of the pairs are there, and install both sides.
    _check_models_and_prompts(root, pairs)
    sources, installed = _sides(options, origins, pairs, on_gpu=on_gpu)

    # Open the ledger, which must not be in use by another gate.
    ledger = Ledger(folder / LEDGER)
    # `exists` is False for a link that leads nowhere, but the ledger would be written behind it.
    has_ledger = os.path.lexists(ledger.path)
    if has_ledger and options.resume:
        _check_resumed_folder(folder)
    ledger.hold()
    if has_ledger and not options.resume:
        message = (
            f"'{ledger.path}': holds a gate already; add --resume to continue it, or name another"
            " --out"
        )
        raise SpecregError(message)
    # Two servers on one GPU would share its time, so on a GPU the sides run in turn.
    together = options.together
    if together is None:
        together = not on_gpu
    environment = current_environment(gpus=tier.gpus_used(find_gpus().memory_gib))
    order = "together" if together else "in turn"

    def key_of(pair: Pair, side: Side, number: int) -> Key:
        """Return what must be equal for a resumed gate to take over a launch."""
        case = pair.of(side)
        spec = case.server
        models = [resolve_model(root, name) for name in (spec.target, spec.draft) if name]
        prompts = load_case_prompts(root, case)
        checksums = [prompts_sha256(prompts), *map(model_sha256, models)]
        index = COMPARED.index(Side.B if side.is_b else Side.A)
        return Key(
            case=case.key,
            case_id=pair.id,
            arm=side,
            launch=number,
            purpose=f"{order}, {options.least_s:g} s",
            environment=environment.name,
            engine=installed[index],
            files_sha256=" ".join(checksums),
            packages_sha256=packages_sha256(sources[index].packages(spec)),
        )

    gate = Gate(
        options=options,
        tier=tier,
        folder=folder,
        sources=sources,
        installed=installed,
        groups=groups_of(pairs),
        together=together,
        environment=environment,
        rules=rules,
        ledger=ledger,
        key_of=key_of,
        answers=AnswerComparison(
            pairs=pairs, root=root, ledger=ledger, key_of=key_of, show=options.show
        ),
    )
    if has_ledger:
        gate.take_over()
    return gate


def _check_resumed_folder(folder: Path) -> None:
    """Check that the folder of a resumed gate holds only folders and regular files.

    It may come from another machine. The gate would write its logs behind a link, and wait forever
    for a FIFO.

    Raises:
        UnsupportedError: it holds something else, or too much.
    """
    try:
        received_files(folder)
    except OSError as error:
        message = f"--resume: the gate in '{folder}': {cause_of(error)}"
        raise UnsupportedError(f"{message}; remove that, or name another --out") from error


def _check_models_and_prompts(root: Path, pairs: Sequence[Pair]) -> None:
    """Check that the models and prompts of pairs are there, and that both sides get equal prompts.

    Raises:
        ModelError: a model isn't there.
        DatasetError: prompts aren't there, or the sides have different ones.
    """
    specs = {pair.a.server for pair in pairs} | {pair.b.server for pair in pairs}
    for spec in specs:
        served_models(root, spec)
    for pair in pairs:
        # Prompts in token ids belong to a tokenizer, and two targets may have different ones.
        if load_case_prompts(root, pair.a) != load_case_prompts(root, pair.b):
            problem = "the two targets would get different prompts; choose a dataset of texts"
            raise DatasetError(f"'{pair.id}': {problem}")


def _with_more_prompts(root: Path, pair: Pair) -> Pair:
    """Return a pair with more prompts if it compares two drafts; any other pair unchanged.

    A pair that needs fresh servers is unchanged too. Two drafts are compared by their acceptance,
    which varies with the prompt and is the same on every launch. 20 prompts didn't show a loss of
    8 %, and further launches made only the speed more precise.
    """
    if not pair.compares_drafts or pair.a.needs_fresh_server:
        return pair
    available = len(load_case_prompts(root, pair.a))
    prompts = min(available, _MAX_TIMES_THE_PROMPTS * pair.a.request.prompts)
    return Pair(a=pair.a.replaying(prompts), b=pair.b.replaying(prompts))


def _sides(
    options: GateOptions, origins: Sequence[Origin], pairs: Sequence[Pair], *, on_gpu: bool
) -> tuple[list[Provision], list[str]]:
    """Return the environments of both sides, and what is installed in them."""

    def show_of(side: Side) -> Callable[[str], None]:
        """Return what shows a line about a side."""
        return lambda text: options.show(f"side {side}: {text}")

    sources = []
    installed = []
    kinds = (UnsupportedError, EnvironmentSetupError)
    for side, origin in zip(COMPARED, origins, strict=True):
        cases = [pair.of(side) for pair in pairs]
        with _blaming(side, options, kinds):
            source = provision_side(
                origin, cases, on_gpu=on_gpu, show=show_of(side), waits=options.waits
            )
            sources.append(source)
            check_drafts(options.root, cases)
            check_contexts(options.root, cases)
    # Install only after both sides were checked, because an installation takes minutes.
    for side, source in zip(COMPARED, sources, strict=True):
        with _blaming(side, options, kinds):
            packages = dict.fromkeys(source.install(pair.of(side)) for pair in pairs)
            installed.append(", ".join(packages))
    return sources, installed


def _chosen_cases(
    options: GateOptions, tier: Tier, origins: tuple[Origin, Origin]
) -> Sequence[Case]:
    """Return the named cases, or else all cases of the sides' engine that fit the machine.

    Raises:
        UnsupportedError: a named case doesn't fit the machine, or no case of the tier fits the
            machine and both sides.
        UnknownNameError: the tier has no such case.
        SensorError: the GPUs can't be used.
    """
    gpus = find_gpus()
    if tier.needs_gpus:
        gpus.check_usable()
    unmet = dict(tier.unmet(gpus.memory_gib))
    named = [tier.named(case_id) for case_id in dict.fromkeys(options.case_ids)]
    if named:
        for case in named:
            if case.id in unmet:
                problem = f"case '{case.id}': {unmet[case.id]}"
                raise UnsupportedError(f"{problem}; choose other cases with --case")
        return named
    # A side may also be named by a Python interpreter or a wheel. Then `engine` is empty, and the
    # side may have any engine.
    engines = {origin.engine for origin in origins}
    for case in tier.cases:
        if engines - {"", case.server.engine}:
            unmet[case.id] = f"it is a case of engine '{case.server.engine}'"
    for case_id, need in unmet.items():
        options.show(f"left out: '{case_id}': {need}")
    fitting = [case for case in tier.cases if case.id not in unmet]
    if not fitting:
        last_id, last_need = list(unmet.items())[-1]
        message = (
            f"tier '{tier.name}': none of its {len(unmet)} cases can be compared, such as"
            f" '{last_id}': {last_need}; choose another --tier, or other sides"
        )
        raise UnsupportedError(message)
    return fitting
