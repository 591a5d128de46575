"""Opening a soak: what was asked for in; a soak of which all that can be checked is checked out."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specreg.compare.gate.side import parse_side
from specreg.compare.gate.source import Source, source_of
from specreg.compare.soak.drift import Look, State
from specreg.compare.soak.journal import Begun, Journal, line_of
from specreg.compare.soak.run import Soak
from specreg.compare.soak.table import render_soak
from specreg.core.errors import UnsupportedError
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, load_case_prompts
from specreg.servers.start import start_server
from specreg.telemetry.identity import find_gpus

_STEADY_STATUS, _DRIFTS_STATUS, _UNTOLD_STATUS = 0, 1, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks of a soak; texts are as they were typed.

    Attributes:
        tier: of which; case: which of its cases.
        engine: where the server comes from, as `specreg gate` takes it; empty for what the tier
            runs.
        minutes: how long; prompts: of each block, None for as many as make a hundredth of that.
        tolerance_frac: the loss in an hour that is fine, None for each figure's own.
        root: the repository's root; out: the soak's folder, None for a new one in `.specreg`.
        ready_within_s: how long the server may take to its first token.
        waits: whether to wait for a GPU on which another run of specreg measures.
        show: is told what goes on.
    """

    tier: Tier
    case: Case
    engine: str = ""
    minutes: float = 10.0
    prompts: int | None = None
    tolerance_frac: float | None = None
    root: Path
    out: Path | None = None
    ready_within_s: float = 600.0
    waits: bool = True
    show: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A soak that may start."""

    request: Request
    source: Source
    soak: Soak

    def measure(self) -> None:
        """Starts the server and soaks it.

        Raises:
            SpecregError: it didn't start, went away or couldn't be measured; or the disk refuses.
        """
        asked, case, journal = self.request, self.request.case, self.soak.journal
        prompts = load_case_prompts(asked.root, case)
        environment = self.source.environment(case)
        with (
            self.source.leased(case),
            start_server(
                case.server,
                environment,
                root=asked.root,
                log_path=journal.path.parent / "logs" / f"{case.server.id}.log",
                on_gpu=self.soak.on_gpu,
                ready_within_s=asked.ready_within_s,
                show=asked.show,
            ) as server,
        ):
            begun = Begun(
                case_id=case.id,
                engine=self.source.installed(case),
                engine_version=server.engine_version,
                minutes=asked.minutes,
            )
            journal.write(begun)
            self.soak.run(server, prompts)

    def conclude(self, *, width: int, color: bool) -> tuple[str, int]:
        """The last look, as a table, and the status that it asks for.

        Raises:
            SpecregError: the disk refuses.
        """
        soak = self.soak
        drifts = soak.look(Look.LAST)
        soak.journal.write(*(line_of(drift, soak.passed_s) for drift in drifts))
        table = render_soak(drifts, soak.alarms_s, width=width, color=color)
        if soak.alarms_s:
            return table, _DRIFTS_STATUS
        steady = all(drift.state is State.STEADY for drift in drifts)
        return table, _STEADY_STATUS if steady else _UNTOLD_STATUS


def open_soak(asked: Request) -> Opened:
    """A soak that may start.

    Raises:
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    case, on_gpu = asked.case, asked.tier.needs_gpus > 0
    folder = asked.out or asked.root / ".specreg" / "soaks" / time.strftime("%Y-%m-%dT%H-%M-%S")
    journal = Journal(path=folder.resolve() / "soak.jsonl")
    if journal.path.exists():
        raise UnsupportedError(f"--out '{folder}': holds a soak already; name another folder")
    unmet = asked.tier.unmet(find_gpus().memory_gib)
    if case.id in unmet:
        raise UnsupportedError(f"{unmet[case.id]}; choose another case")
    side = parse_side(asked.engine or case.server.engine)
    if side.engine not in {"", case.server.engine}:
        message = (
            f"--engine '{asked.engine}': '{case.id}' is of '{case.server.engine}', not of"
            f" '{side.engine}'; name that one, or another case"
        )
        raise UnsupportedError(message)
    source = source_of(side, on_gpu=on_gpu, show=asked.show, waits=asked.waits)
    source.check((case,))
    source.check_released(case.server)
    for said in check_contexts(asked.root, [case]):
        asked.show(said)
    soak = Soak(
        case=case,
        on_gpu=on_gpu,
        length_s=60 * asked.minutes,
        prompts=asked.prompts,
        tolerance_frac=asked.tolerance_frac,
        journal=journal,
        show=asked.show,
    )
    return Opened(request=asked, source=source, soak=soak)


def first_speculating(tier: Tier) -> Case:
    """The first case of a tier that speculates and fits this machine.

    Raises:
        UnsupportedError: it has none.
    """
    unmet = tier.unmet(find_gpus().memory_gib)
    fitting = (case for case in tier.cases if case.speculates and case.id not in unmet)
    found = next(fitting, None)
    if found is None:
        message = f"tier '{tier.name}': no case that speculates fits this machine; name a case"
        raise UnsupportedError(message)
    return found
