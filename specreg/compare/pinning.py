"""Pairs whose acceptance is pinned: what differs then is the cost of a step."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specreg.acceptance.record import AcceptanceRecord
from specreg.compare.answers import answers_of
from specreg.compare.pairs import Pair, Side
from specreg.core.errors import UnsupportedError
from specreg.core.files import replace_file
from specreg.datasets.prompts import Prompt
from specreg.engines import pinning
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server


def pinned_pairs(
    pairs: Iterable[Pair],
    length_tokens: float,
    root: Path,
    folder: Path,
    show: Callable[[str], None],
) -> tuple[Pair, ...]:
    """A pair of known acceptance for each load and models that are speculated on.

    Raises:
        UnsupportedError: nothing speculates, or fewer tokens are drafted than are to be accepted.
        UnknownNameError: the engine takes no drafter of one's own.
    """
    found: dict[str, Pair] = {}
    for pair in pairs:
        if not (pair.a.speculates and pair.b.speculates):
            continue
        prompts = load_case_prompts(root, pair.a)[: pair.a.prompts]
        talks = pair.a.turns != 1 and any(len(prompt.turns) > 1 for prompt in prompts)
        if talks or pair.a.temperature > 0:
            why = "its conversations go on" if talks else "its answers are drawn at a temperature"
            show(f"not pinned: {pair.id}, {why}, and a recording is of first greedy answers")
            continue
        a, b = (
            pinned_case(case, length_tokens, folder / f"{side}-{_name(case)}.json")
            for side, case in ((Side.A, pair.a), (Side.B, pair.b))
        )
        pinned = Pair(a=a, b=b)
        found.setdefault(pinned.id, pinned)
    if not found:
        message = (
            f"--pin {length_tokens:g}: no case speculates in greedy answers to first turns alone;"
            " choose one that does"
        )
        raise UnsupportedError(message)
    return tuple(found.values())


def pinned_case(case: Case, length_tokens: float, recording: Path) -> Case:
    """A case whose drafter accepts so many tokens per step by a recording."""
    engine_named(case.server.engine).spelling_of(pinning.METHOD, "--pin")
    schedule = pinning.schedule_of(length_tokens, case.server.draft_tokens)
    server = dataclasses.replace(
        case.server,
        method=pinning.METHOD,
        draft=pinning.DRAFTER,
        tree=None,
        engine_env=pinning.pinned_variables(schedule, recording, dict(case.server.engine_env)),
    )
    return dataclasses.replace(case, server=server)


def recording_of(case: Case) -> Path | None:
    """Where the drafter of a case finds its recording; None where it needs none."""
    return pinning.recording_in(case.server.method, dict(case.server.engine_env))


def plain_case(case: Case) -> Case:
    """The case on the server that its recording is made on."""
    variables = pinning.plain_variables(dict(case.server.engine_env))
    server = dataclasses.replace(
        case.server, method="none", draft=None, draft_tokens=0, engine_env=variables
    )
    return dataclasses.replace(case, server=server)


def record_answers(case: Case, server: Server, prompts: Sequence[Prompt], path: Path) -> None:
    """Write each prompt with its greedy answer, and as much past its end as is drafted there.

    Raises:
        InvalidMeasurementError: the server doesn't answer in ids.
    """
    cap = case.output_cap_tokens + 2 * (case.server.draft_tokens or 1) + 2
    longer = dataclasses.replace(plain_case(case), output_cap_tokens=cap, ignore_eos=True)
    found = answers_of(longer, server, prompts)
    # Whole or not at all: one that is there is believed.
    recording = json.dumps([(one.prompt, one.output) for one in found])
    replace_file(path, recording.encode())


def why_not_pinned(case: Case, acceptance: AcceptanceRecord | None) -> str:
    """Why a drafter of known success had another one, empty where it hadn't or isn't one."""
    if recording_of(case) is None:
        return ""
    prompts = acceptance.prompts if acceptance is not None else ()
    steps = sum(one.counts.steps for one in prompts)
    own = dict(case.server.engine_env)
    return pinning.why_not_pinned(own, steps, [one.completion_tokens for one in prompts])


def _name(case: Case) -> str:
    """Another one for each server, set of prompts and length of answers."""
    made_of = repr((case.server, case.dataset, case.prompts, case.output_cap_tokens))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    return f"{case.server.engine}-{case.server.models}-{case.dataset}-{digest}"
