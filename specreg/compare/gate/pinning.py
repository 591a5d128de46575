"""Pinned acceptance: pairs with drafters in, the same with a drafter of known success out.

What a step costs shows best where nothing else can differ: the drafter knows the target's answers
from a recording of each side and spoils its drafts so that exactly the wanted ones are accepted.
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
from specreg.compare.gate.drafter import scheduled
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.plan import Pair
from specreg.core.errors import UnsupportedError
from specreg.core.files import replace_file
from specreg.correctness.oracle_client import in_flight
from specreg.datasets.prompts import Prompt
from specreg.engines.methods import METHODS
from specreg.engines.token_api import Wanted
from specreg.load.token_client import encode_prompts, transcribe
from specreg.matrix.case import Case, ServerSpec
from specreg.matrix.prompts import load_case_prompts
from specreg.servers.server import Server

_METHOD = "custom_class"
_RECORDING = "SCHEDULED_RECORDING"
_SCHEDULE = "SCHEDULED_ACCEPTED"
_LONGEST_CYCLE = 20
_OFF_FRAC = 0.01
"""So far the steps may be off; without anything else at work they are exact."""


def pinnable(pairs: Iterable[Pair], root: Path, show: Callable[[str], None]) -> tuple[Pair, ...]:
    """Those that speculate and whose answers a recording can know: greedy ones, to one question.

    Args:
        pairs: what is compared.
        root: the repository's root.
        show: is told which aren't pinned, and why.

    Raises:
        DatasetError: the prompts can't be read, or are too few.
    """
    found = []
    for pair in pairs:
        if not (pair.a.speculates and pair.b.speculates):
            continue
        if why := _why_not_recorded(pair.a, load_case_prompts(root, pair.a)):
            show(f"not pinned: {pair.id}, {why}")
        else:
            found.append(pair)
    return tuple(found)


def _why_not_recorded(case: Case, prompts: Sequence[Prompt]) -> str:
    if case.temperature > 0:
        return f"its answers are drawn at temperature {case.temperature:g}"
    if case.turns != 1 and any(len(prompt.turns) > 1 for prompt in prompts[: case.prompts]):
        return "its conversations have further turns than the recorded one"
    return ""


def pinned_pairs(pairs: Iterable[Pair], length_tokens: float, folder: Path) -> tuple[Pair, ...]:
    """A pair of known acceptance for each load and models that are speculated on.

    Args:
        pairs: what is compared, see `pinnable`.
        length_tokens: the acceptance length that both sides are to have.
        folder: where the recordings go.

    Raises:
        UnsupportedError: nothing speculates, or fewer tokens are drafted than are to be accepted.
        UnknownNameError: the engine takes no drafter of one's own.
    """
    found: dict[str, Pair] = {}
    for pair in pairs:
        if pair.a.speculates and pair.b.speculates:
            a = pinned_case(pair.a, length_tokens, folder / f"{Arm.A}-{_name(pair.a)}.json")
            b = pinned_case(pair.b, length_tokens, folder / f"{Arm.B}-{_name(pair.b)}.json")
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
    METHODS[_METHOD].check_engine(case.server.engine, "--pin")
    steps = schedule_of(length_tokens, case.server.draft_tokens)
    own = dict(case.server.engine_env)
    folders = filter(None, (str(Path(scheduled.__file__).parent), own.get("PYTHONPATH", "")))
    variables = {
        _SCHEDULE: ",".join(map(str, steps)),
        **own,  # an override may plant a schedule of its own
        "PYTHONPATH": os.pathsep.join(folders),
        _RECORDING: str(recording),
    }
    server = dataclasses.replace(
        case.server,
        method=_METHOD,
        draft="scheduled.Drafter",
        tree=None,
        engine_env=tuple(sorted(variables.items())),
    )
    return dataclasses.replace(case, server=server)


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


def recording_of(case: Case) -> Path | None:
    """Where the drafter of a case finds its recording; None where it needs none."""
    found = dict(case.server.engine_env).get(_RECORDING)
    return Path(found) if found and case.server.method == _METHOD else None


def plain_case(case: Case) -> Case:
    """The case on the server that its recording is made on."""
    server: ServerSpec = dataclasses.replace(
        case.server, method="none", draft=None, draft_tokens=0, engine_env=_without(case.server)
    )
    return dataclasses.replace(case, server=server)


def record_answers(case: Case, server: Server, prompts: Sequence[Prompt], path: Path) -> None:
    """Writes each prompt with its greedy answer, and as much past its end as is drafted there.

    Raises:
        InvalidMeasurementError: the server doesn't answer in ids.
    """
    texts = encode_prompts(server.endpoint, case, prompts)
    cap = case.output_cap_tokens + 2 * (case.server.draft_tokens or 1) + 2
    wanted = [Wanted(output_cap_tokens=cap, ignore_eos=True)] * len(texts)
    answers = transcribe(server.endpoint, texts, wanted, in_flight=in_flight(case))
    # Whole or not at all: one that is there is believed.
    recording = json.dumps([(one.prompt, one.output) for one in answers])
    replace_file(path, recording.encode())


def forget_recordings(pairs: Iterable[Pair]) -> None:
    """Removes recordings of pinned pairs: a gate that begins has those of its own sides and models.

    Raises:
        OSError: the disk refuses.
    """
    for path in filter(None, (recording_of(case) for pair in pairs for case in (pair.a, pair.b))):
        path.unlink(missing_ok=True)


def why_not_pinned(case: Case, acceptance: AcceptanceRecord | None) -> str:
    """Why a drafter of known success had another one, empty where it hadn't or isn't one.

    Args:
        case: as a side ran it.
        acceptance: what was measured, by prompt.
    """
    if recording_of(case) is None:
        return ""
    schedule = tuple(map(int, dict(case.server.engine_env)[_SCHEDULE].split(",")))
    prompts = acceptance.prompts if acceptance is not None else ()
    steps = sum(one.counts.steps for one in prompts)
    foreseen = sum(scheduled.step_after(one.completion_tokens, schedule) for one in prompts)
    if steps and abs(steps - foreseen) <= _OFF_FRAC * foreseen:
        return ""
    return (
        f"NOT_PINNED: the answers took {steps} steps, by their schedule it would be {foreseen}: the"
        " server doesn't answer as it did when its answers were recorded; pin without what draws"
        " or changes them, or take another case"
    )


def _without(spec: ServerSpec) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in spec.engine_env if pair[0] not in {_RECORDING, _SCHEDULE})


def _name(case: Case) -> str:
    """Another one for each server, set of prompts and length of answers."""
    made_of = repr((case.server, case.dataset, case.prompts, case.output_cap_tokens))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    return f"{case.server.engine}-{case.server.models}-{case.dataset}-{digest}"
