"""Compare the answers of a gate's two sides, token by token; nothing here is timed.

Where two greedy answers part, B says how likely both tokens were, and so does A where its server is
up as well: two that are as good as equally likely may change places by rounding, in other kernels
for instance.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.checks import LOSSLESS, ask_greedy, other_batch
from specreg.correctness.lossless import Losslessness, Score, check_lossless, score_partings
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.token_api import Transcript
from specreg.load.token_client import encode_prompts, score
from specreg.matrix.case import Case
from specreg.matrix.schema import ROUNDING_NATS
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome, Verdict

_MOST_NAMED = 3


def verdict_on_answers(
    case_id: str, outcome: Outcome, reason: str, value: float | None = None
) -> Verdict:
    """The verdict on the answers of a case; `value`: the share that is equal, 0..1."""
    return Verdict(
        case_id=case_id, metric=LOSSLESS, outcome=outcome, reason=reason, value=value, launches=0
    )


def why_not_compared(a: Case, b: Case) -> str:
    """Why both sides need not give the same answers, or can't be asked; empty where they must."""
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' tells no token ids"
    if not a.temperature == b.temperature == 0:
        return "the answers are drawn at a temperature"
    targets = [
        (one.target, one.padding_layers, one.widen, one.dtype) for one in (a.server, b.server)
    ]
    asked = [(one.dataset, one.prompts, one.output_cap_tokens, one.ignore_eos) for one in (a, b)]
    if targets[0] != targets[1]:
        return "the targets of both sides differ, or their number formats"
    return "" if asked[0] == asked[1] else "the sides are asked otherwise"


def answers_of(case: Case, server: Server, prompts: Sequence[Prompt]) -> tuple[Transcript, ...]:
    """What a server answers.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids.
    """
    return ask_greedy(case, server, encode_prompts(server.endpoint, case, prompts))


def compare_answers(
    case_id: str,
    case: Case,
    server: Server,
    prompts: Sequence[Prompt],
    theirs: Sequence[Transcript],
    other: Server | None = None,
) -> Verdict:
    """The verdict on what side B answers, held against side A; `value`: the share that is equal.

    Args:
        case_id: of the verdict.
        case: as side B runs it.
        server: of side B; it is asked how likely both were.
        prompts: what both are asked.
        theirs: the answers of side A.
        other: the server of side A, None where it isn't up; one that can't say leaves it to B.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids, or parts from itself.
    """
    texts = encode_prompts(server.endpoint, case, prompts)
    each = zip(prompts, texts, theirs, strict=True)
    rendered = [f"'{prompt.id}'" for prompt, ours, its in each if ours != its.prompt]
    if rendered:
        reason = (
            f"B makes other tokens of {len(rendered)} prompts: {', '.join(rendered[:_MOST_NAMED])};"
            " look at its tokenizer and chat template"
        )
        return verdict_on_answers(case_id, Outcome.WRONG, reason)
    ask, batch = functools.partial(ask_greedy, case, server, texts), other_batch(case)
    found = check_lossless(
        [prompt.id for prompt in prompts],
        ask(),
        theirs,
        functools.partial(ask, batch) if batch else None,
        functools.partial(score, server.endpoint),
        # Another version may have other kernels, whatever a case demands of speculation.
        rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
    )
    if other is not None and not found.failures:
        with contextlib.suppress(InvalidMeasurementError):
            found = judged_by_a(found, functools.partial(score, other.endpoint))
    outcome = Outcome.WRONG if found.failures else Outcome.PASS
    return verdict_on_answers(case_id, outcome, found.describe("of B", "of A"), found.equal_frac)


def judged_by_a(found: Losslessness, ask_a: Score) -> Losslessness:
    """What B found, with A's word on how much likelier A's own tokens are.

    Where A finds B's token likelier than its own, B does no worse: the gap is 0. `found` has no
    failures by B's word, `ask_a` asks A's server.
    """
    partings = tuple(
        dataclasses.replace(one, gap_nats=max(0.0, -(one.gap_nats or 0.0)))
        for one in score_partings(found.partings, ask_a)
    )
    return dataclasses.replace(found, partings=partings)
