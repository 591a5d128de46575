"""The gate: measure an engine on side A and on side B, until it is decided whether B is worse.

The sides are two versions, builds or configurations of the engine.

`open_gate` checks everything that can be checked before anything is measured.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from specreg.compare.answers import check_saved
from specreg.compare.execute import GateExecutor, KeyOf, blaming
from specreg.compare.folders import check_owner, folder_of, open_ledger
from specreg.compare.judging import Decision, Rules, last_number
from specreg.compare.options import MAX_GATE_LAUNCHES, GateOptions, parse_tolerances
from specreg.compare.pairs import (
    COMPARED,
    Pair,
    Side,
    groups_of,
    pairs_of,
    parse_override,
    pinned_pairs,
)
from specreg.compare.plan import GateGoal, GateStep, has_time, next_step, slots_of
from specreg.compare.progress import render_progress
from specreg.core.errors import DatasetError, EnvironmentSetupError, UnsupportedError
from specreg.matrix.case import Case, Tier
from specreg.matrix.models import served_models
from specreg.matrix.prompts import check_contexts, check_drafts, files_sha256, load_case_prompts
from specreg.measurement.metrics import GATE_METRICS
from specreg.runs.ledger import Checked, Key, Ledger
from specreg.servers.handle import Servers
from specreg.servers.installer import packages_sha256
from specreg.servers.launcher import ServerLauncher
from specreg.servers.provision import EngineOrigin, Provision, parse_origin, provision_side
from specreg.telemetry.identity import Environment, current_environment, find_gpus

_MINUTES_WITHOUT_GPU = 20.0
"""How long all launches may take without a GPU, unless --minutes gives another limit."""
_MAX_TIMES_THE_PROMPTS = 10
"""Two drafts are compared on this many times the prompts of a case, if the dataset has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate that is ready to start or to be resumed.

    Attributes:
        options: the options of the command.
        tier: the tier of its cases.
        folder: the folder that it writes to.
        installed: for A and for B, the package and its version, and its origin unless it came from
            an index.
        environment: the environment of the machine.
        goal: what it wants to know.
        executor: measures and compares.
    """

    options: GateOptions
    tier: Tier
    folder: Path
    installed: Mapping[Side, str]
    environment: Environment
    goal: GateGoal
    executor: GateExecutor

    @property
    def ledger(self) -> Ledger:
        """What was measured and compared."""
        return self.executor.ledger

    @property
    def is_finished(self) -> bool:
        """Whether it has ended. False if it was interrupted, or if its time was up."""
        return next_step(self.ledger, self.goal) is None

    @property
    def next_step(self) -> GateStep | None:
        """What it does next; None if it has ended, or if its time is up."""
        step = next_step(self.ledger, self.goal)
        return step if step is not None and self._has_time(step) else None

    @property
    def rules(self) -> Rules:
        """The rules by which the launches so far are judged.

        If the time is up, they are judged as if no further launches had been planned. The present
        look is then the last one, and gets the level of the looks that are left out. This is valid
        because the time runs out whatever the figures are.
        """
        step = next_step(self.ledger, self.goal)
        if step is None or self._has_time(step):
            return self.goal.rules
        begun = last_number(self.ledger.launches)
        return dataclasses.replace(self.goal.rules, launches=begun)

    def _has_time(self, step: GateStep) -> bool:
        return has_time(step, self.executor.taken, self.goal)

    def until(
        self, is_done: Callable[[Decision], bool], *, goes_on_until_done: bool = False
    ) -> Self:
        """Return this gate with another end; see `GateGoal`."""
        goal = dataclasses.replace(
            self.goal, is_done=is_done, goes_on_until_done=goes_on_until_done
        )
        return dataclasses.replace(self, goal=goal)

    def measure(self) -> Decision:
        """Take the steps of the gate until it has its answer, or the time is up.

        Raises:
            SpecregError: a side can't start at all, or the ledger can't be written.
        """
        try:
            self.executor.take_steps(lambda: self.next_step, self._show_progress)
        finally:
            self.executor.servers.stop()
        return self.decide()

    def _show_progress(self, step: GateStep) -> None:
        """Show how far the metrics of a pair are decided after a launch of both sides."""
        *_, last_sides = slots_of(step.number, COMPARED, together=self.goal.together)
        if step.check or step.sides != last_sides:
            return
        launched_ids = {
            launch.case_id
            for launch in self.ledger.launches
            if launch.number == step.number and launch.arm in step.sides
        }
        pairs = [pair for pair in step.pairs if pair.id in launched_ids]
        decision = self.goal.decide(self.ledger.launches, self.ledger)
        for line in render_progress(decision, pairs, self.goal.rules.looks):
            self.options.show(f"launch {step.number}, {line}")

    def decide(self) -> Decision:
        """Return the decision on the basis of the launches so far."""
        goal = dataclasses.replace(self.goal, rules=self.rules)
        return goal.decide(self.ledger.launches, self.ledger)

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


def open_gate(options: GateOptions, tier: Tier) -> Gate:
    """Return a gate that is ready to start or to be resumed.

    Raises:
        SideError: a side can't be installed.
        SpecregError: the options ask for something that can't be measured, or the folder can't be
            used.
    """
    # Choose the pairs, check that their models and prompts are there, and install both sides.
    folder = folder_of("gate", options)
    on_gpu = tier.needs_gpus > 0
    origins = (parse_origin(options.a), parse_origin(options.b))
    pairs = _chosen_pairs(options, tier, origins)
    tolerances = parse_tolerances(options.tolerances, GATE_METRICS)
    _check_models_and_prompts(options.root, pairs)
    sources, installed = _sides(options, origins, pairs, on_gpu=on_gpu)

    # Two servers on one GPU would share its time, so on a GPU the sides run in turn.
    together = options.together
    if together is None:
        together = not on_gpu
    environment = current_environment(gpus=tier.gpus_used(find_gpus().memory_gib))

    def key_of(pair: Pair, side: Side, number: int) -> Key:
        """Return what must be equal for a resumed gate to take over a launch."""
        case = pair.of(side)
        own_side = Side.B if side.is_b else Side.A
        order = "together" if together else "in turn"
        return Key(
            case=case.key,
            case_id=pair.id,
            arm=side,
            launch=number,
            purpose=f"{order}, {options.least_s:g} s",
            environment=environment.name,
            engine=installed[own_side],
            files_sha256=files_sha256(options.root, case),
            packages_sha256=packages_sha256(sources[own_side].packages(case.server)),
        )

    # Continue with what an interrupted gate has measured.
    ledger = open_ledger("gate", folder, resume=options.resume)
    take_over_gate(ledger, pairs, key_of, options)
    launchers: dict[str, ServerLauncher] = {
        side: ServerLauncher(
            provision=source, root=options.root, ready_within_s=options.ready_within_s
        )
        for side, source in sources.items()
    }
    servers = Servers(launcher=launchers[Side.A], side_launchers=launchers, logs=folder / "logs")
    rules = Rules(
        launches=_most_launches(options, ledger),
        figures=sum(len(pair.deciding) for pair in pairs),
        tolerances=tolerances,
    )
    return Gate(
        options=options,
        tier=tier,
        folder=folder,
        installed=installed,
        environment=environment,
        goal=GateGoal(
            groups=groups_of(pairs),
            rules=rules,
            together=together,
            within_s=_within_s(options, on_gpu=on_gpu),
        ),
        executor=GateExecutor(
            root=options.root, servers=servers, ledger=ledger, options=options, key_of=key_of
        ),
    )


def _chosen_pairs(
    options: GateOptions, tier: Tier, origins: tuple[EngineOrigin, EngineOrigin]
) -> tuple[Pair, ...]:
    """Return the pairs that a gate compares.

    Raises:
        SpecregError: the options ask for something that can't be compared.
    """
    overrides_of_a = [parse_override(text) for text in options.a_overrides]
    overrides_of_b = [parse_override(text) for text in options.b_overrides]
    cases = _chosen_cases(options, tier, origins)
    pairs = pairs_of(
        tier, cases, (overrides_of_a, overrides_of_b), prompts=options.prompts, show=options.show
    )
    if options.prompts is None:
        pairs = tuple(_with_more_prompts(options.root, pair) for pair in pairs)
    if options.pin_length_tokens is not None:
        on_gpu = tier.needs_gpus > 0
        pairs += pinned_pairs(pairs, options.pin_length_tokens, on_gpu=on_gpu)
    return pairs


def _most_launches(options: GateOptions, ledger: Ledger) -> int:
    """Return the most launches of each side. An interrupted gate may have begun more than now."""
    begun = last_number(ledger.launches)
    if begun > options.launches:
        options.show(
            f"--launches {options.launches}: launch {begun} was begun before, so all are judged"
            f" as with --launches {begun}"
        )
    return max(begun, options.launches)


def take_over_gate(
    ledger: Ledger, pairs: Sequence[Pair], key_of: KeyOf, options: GateOptions
) -> None:
    """Take over what an interrupted gate has measured, and the answers that fit its pairs.

    The ledger may come from another machine. Answers that don't fit a pair are reported and left
    out, and are then generated again.

    Raises:
        UnsupportedError: the folder belongs to another gate, a run or a soak.
        SpecregError: the ledger can't be read.
    """
    if not os.path.lexists(ledger.path):
        return

    # If a launch was repeated, the last one counts.
    ledger.read([ledger.path], last=True)

    # The keys have the number 0 here, because a pair may have launches of any number.
    pairs_by_key = {key_of(pair, side, 0): pair for pair, side in itertools.product(pairs, Side)}
    check_owner("gate", ledger, pairs_by_key.keys(), MAX_GATE_LAUNCHES)

    def fits(line: Checked) -> bool:
        """Return whether the answers of a line fit their pair."""
        pair = pairs_by_key[msgspec.structs.replace(line.key, launch=0)]
        try:
            check_saved(pair, options.root, line)
        except msgspec.ValidationError as error:
            message = f"'{ledger.path}': {pair.id}: {error}"
            options.show(f"{message}; the answers are generated again")
            return False

        return True

    ledger.take_over(fits=fits)


def _within_s(options: GateOptions, *, on_gpu: bool) -> float:
    """Return how long all launches of a gate may take, in seconds."""
    minutes = options.minutes
    if minutes is None:
        minutes = math.inf if on_gpu else _MINUTES_WITHOUT_GPU
    return 60 * minutes


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
    options: GateOptions, origins: Sequence[EngineOrigin], pairs: Sequence[Pair], *, on_gpu: bool
) -> tuple[dict[Side, Provision], dict[Side, str]]:
    """Return the environments of both sides, and what is installed in them."""

    def show_of(side: Side) -> Callable[[str], None]:
        """Return what shows a line about a side."""
        return lambda text: options.show(f"side {side}: {text}")

    sources = {}
    installed = {}
    kinds = (UnsupportedError, EnvironmentSetupError)
    for side, origin in zip(COMPARED, origins, strict=True):
        cases = [pair.of(side) for pair in pairs]
        with blaming(side, options, kinds):
            source = provision_side(
                origin, cases, on_gpu=on_gpu, show=show_of(side), waits=options.waits
            )
            sources[side] = source
            check_drafts(options.root, cases)
            check_contexts(options.root, cases)

    # Install only after both sides were checked, because an installation takes minutes.
    for side, source in sources.items():
        with blaming(side, options, kinds):
            packages = dict.fromkeys(source.install(pair.of(side)) for pair in pairs)
            installed[side] = ", ".join(packages)

    return sources, installed


def _chosen_cases(
    options: GateOptions, tier: Tier, origins: tuple[EngineOrigin, EngineOrigin]
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
