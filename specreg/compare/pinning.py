"""Pairs whose acceptance is pinned: what differs then is the cost of a step.

The drafter, of vLLM's `custom_class`, knows the target's answers from a recording, and spoils its
drafts so that exactly as many are accepted as a schedule says.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

from specreg.acceptance.record import AcceptanceRecord
from specreg.compare.answers import answers_of
from specreg.compare.pairs import Pair, Side
from specreg.core.errors import UnsupportedError
from specreg.core.files import replace_file
from specreg.datasets.prompts import Prompt
from specreg.engines.drafter import scheduled
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server

METHOD, DRAFTER = "custom_class", "scheduled.Drafter"
_RECORDING = "SCHEDULED_RECORDING"
_SCHEDULE = "SCHEDULED_ACCEPTED"
_LONGEST_CYCLE = 20
_OFF_FRAC = 0.01
"""How far the number of steps may be off; undisturbed it is exact."""


def schedule_of(length_tokens: float, draft_tokens: int) -> tuple[int, ...]:
    """The drafts to accept in each step, over and over, as evenly as can be: 2.5 is 1, 2.

    Args:
        length_tokens: 1 + A / S, of which the nearest twentieth is taken or something better.
        draft_tokens: k.

    Raises:
        UnsupportedError: it isn't between 1 and k + 1.
    """
    told = math.isfinite(length_tokens)
    share = Fraction(length_tokens - 1 if told else -1).limit_denominator(_LONGEST_CYCLE)
    if not 0 <= share <= draft_tokens:
        message = (
            f"--pin {length_tokens:g}: with {draft_tokens} draft tokens per step an acceptance"
            f" length is from 1 to {draft_tokens + 1}; give one of these"
        )
        raise UnsupportedError(message)
    above, below = share.numerator, share.denominator
    return tuple((step + 1) * above // below - step * above // below for step in range(below))


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


def _name(case: Case) -> str:
    """Name a recording by its server, its prompts and the length of their answers."""
    made_of = repr((case.server, case.dataset, case.prompts, case.output_cap_tokens))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    return f"{case.server.engine}-{case.server.models}-{case.dataset}-{digest}"


def pinned_case(case: Case, length_tokens: float, recording: Path) -> Case:
    """A case whose drafter accepts so many tokens per step by a recording.

    A schedule that is among its variables already stays.
    """
    spec, own = case.server, dict(case.server.engine_env)
    engine_named(spec.engine).spelling_of(METHOD, "--pin")
    schedule = schedule_of(length_tokens, spec.draft_tokens)
    folders = filter(None, (str(Path(scheduled.__file__).parent), own.get("PYTHONPATH", "")))
    variables = {
        _SCHEDULE: ",".join(map(str, schedule)),
        **own,
        "PYTHONPATH": os.pathsep.join(folders),
        _RECORDING: str(recording),
    }
    env = tuple(sorted(variables.items()))
    server = dataclasses.replace(spec, method=METHOD, draft=DRAFTER, tree=None, engine_env=env)
    return dataclasses.replace(case, server=server)


def recording_of(case: Case) -> Path | None:
    """Where the drafter of a case finds its recording; None where it needs none."""
    found = dict(case.server.engine_env).get(_RECORDING)
    return Path(found) if found and case.server.method == METHOD else None


def plain_case(case: Case) -> Case:
    """The case on the server that its recording is made on."""
    env = tuple(one for one in case.server.engine_env if one[0] not in {_RECORDING, _SCHEDULE})
    server = dataclasses.replace(
        case.server, method="none", draft=None, draft_tokens=0, engine_env=env
    )
    return dataclasses.replace(case, server=server)


def record_answers(case: Case, server: Server, prompts: Sequence[Prompt], path: Path) -> None:
    """Write each prompt with its greedy answer, and as much past its end as is drafted there."""
    cap = case.output_cap_tokens + 2 * (case.server.draft_tokens or 1) + 2
    longer = dataclasses.replace(plain_case(case), output_cap_tokens=cap, ignore_eos=True)
    found = answers_of(longer, server, prompts)
    # Whole or not at all: one that is there is believed.
    replace_file(path, json.dumps([(one.prompt, one.output) for one in found]).encode())


def why_not_pinned(case: Case, acceptance: AcceptanceRecord | None) -> str:
    """Why a pinned drafter accepted otherwise than by its schedule; empty where it didn't."""
    if recording_of(case) is None:
        return ""
    prompts = acceptance.prompts if acceptance is not None else ()
    steps = sum(one.counts.steps for one in prompts)
    schedule = tuple(map(int, dict(case.server.engine_env)[_SCHEDULE].split(",")))
    expected = sum(scheduled.step_after(one.completion_tokens, schedule) for one in prompts)
    if steps and abs(steps - expected) <= _OFF_FRAC * expected:
        return ""
    return (
        f"NOT_PINNED: the answers took {steps} steps, by their schedule it would be {expected}: the"
        " server doesn't answer as it did when its answers were recorded; pin without what draws"
        " or changes them, or take another case"
    )
