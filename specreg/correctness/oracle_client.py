"""Walk the steps that a method must have taken to an answer, and ask for what that takes.

What a greedy drafter would have proposed at any place of a text follows from the text alone, so
the steps of an answer can be walked again. That they are others says that the engine's drafter or
verifier is wrong, not that the text has changed: the walk is along the engine's own text. The
models are read by `specreg.engines.pytorch.oracle`, in the reference engine's environment.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError, ModelError
from specreg.core.processes import child_process
from specreg.datasets.prompts import Prompt
from specreg.engines.pytorch.oracle_questions import REFUSED, OracleAnswer, Question, Text
from specreg.engines.pytorch.speculation import LookupRule, propose
from specreg.engines.registry import engine_named
from specreg.engines.token_api import Transcript, Wanted
from specreg.engines.wire_format import Endpoint
from specreg.load.token_client import encode_prompts, transcribe
from specreg.matrix.case import Case
from specreg.servers.environments import engine_environment

_UNSEEN_TOKENS: Mapping[tuple[str, str], int] = {
    ("reference", "draft_model"): 0,
    ("reference", "ngram"): 0,
    # It shifts the draft's input by one, as for EAGLE, so the first token is never shown.
    ("sglang", "draft_model"): 1,
    ("sglang", "eagle3"): 0,
    ("vllm", "draft_model"): 0,
    ("vllm", "eagle3"): 0,
    ("vllm", "ngram"): 0,
}
"""By engine, as methods are spelt, and method: how many of a text's first tokens the drafter isn't
shown. A pair that isn't here was compared to no such engine: SGLang's lookup learns, TensorRT-LLM's
is another, and drafts of its models were never seen."""
_READY_WITHIN_S = 600.0
_HERE = str(Path(__file__).parents[2])
"""The folder that holds specreg, which isn't installed in that environment."""

_MOST_LINES = 15

PredictDrafts = Callable[[Question], OracleAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a step would draft: how many tokens, and how many of them the text goes on with."""

    proposed: int
    accepted: int


DraftsAt = Callable[[int], Drafted]
"""Gives what a step would draft that begins at a place in the text, from 0."""


def walk(drafts_at: DraftsAt, *, prompt_tokens: int, output_tokens: int, width: int) -> StepCounts:
    """The steps of an answer, counted as the verifier does: drafts beyond its end count too.

    The prefill emits the first token; each step emits what it accepts and one more. A step in
    which nothing is drafted counts for nothing, and emits its one token.

    Args:
        drafts_at: what would be drafted.
        prompt_tokens: how long the prompt is.
        output_tokens: how long the answer is.
        width: the most tokens drafted per step.
    """
    counts, place, end = NO_STEPS, prompt_tokens + 1, prompt_tokens + output_tokens
    while place < end:
        drafted = drafts_at(place)
        if drafted.proposed:
            histogram = [int(drafted.accepted == one) for one in range(width + 1)]
            counts += StepCounts.from_histogram(histogram, drafted.proposed)
        place += drafted.accepted + 1
    return counts


def drafts_of_lookup(text: Sequence[int], rule: LookupRule, draft_tokens: int) -> DraftsAt:
    """What n-gram lookup drafts.

    Args:
        text: prompt and answer, and as many tokens more as a step drafts.
        rule: how to look up.
        draft_tokens: the most to draft.
    """

    def drafts_at(place: int) -> Drafted:
        drafts = propose(text[:place], rule, draft_tokens)
        return Drafted(proposed=len(drafts), accepted=common(drafts, text[place:]))

    return drafts_at


def drafts_of_model(accepted: Sequence[int], draft_tokens: int) -> DraftsAt:
    """What a drafting model drafts, which is always as many tokens.

    Args:
        accepted: by place in the text, how many of the drafts of a step that begins there are
            right, as `specreg.engines.pytorch.oracle` finds out.
        draft_tokens: how many are drafted.
    """
    return lambda place: Drafted(proposed=draft_tokens, accepted=accepted[place])


def common(drafts: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens two texts have in common before they part."""
    for count, (draft, token) in enumerate(zip(drafts, text, strict=False)):
        if draft != token:
            return count
    return min(len(drafts), len(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedAnswers:
    """Answers and their steps, prompt by prompt.

    Attributes:
        answers: as the server gave them, with its own counts.
        steps: what they must have taken.
        gaps_nats: see `specreg.engines.pytorch.oracle_questions.OracleAnswer`.
    """

    answers: tuple[Transcript, ...]
    steps: tuple[StepCounts, ...]
    gaps_nats: tuple[float, ...]


def has_oracle(case: Case) -> bool:
    """Whether it is known what the case's engine drafts by its method."""
    return _drafter(case) in _UNSEEN_TOKENS


def walk_answers(
    case: Case,
    prompts: Sequence[Prompt],
    endpoint: Endpoint,
    beside: Endpoint,
    models: tuple[str, str | None],
    ask_models: PredictDrafts,
) -> WalkedAnswers:
    """Have prompts answered, and walk the answers' steps again.

    Args:
        case: whose method, models and load.
        prompts: what to ask.
        endpoint: whose answers.
        beside: says how the answers would go on; best one without speculation.
        models: target and draft as folders or hub ids.
        ask_models: asks the models themselves.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or an answer ends so near the end
            of the context that it can't be said how it would go on.
        ModelError: the models can't be read, or don't fit together.
    """
    spec = case.server
    texts = encode_prompts(endpoint, case, prompts)
    answers = transcribe(endpoint, texts, wanted_of(case, len(texts)), in_flight=in_flight(case))
    check_context(case, answers)
    # The last step's drafts go beyond the answer, and so must the text.
    tails = transcribe(
        beside,
        [(*answer.prompt, *answer.output) for answer in answers],
        [Wanted(output_cap_tokens=spec.draft_tokens, ignore_eos=True)] * len(answers),
        in_flight=in_flight(case),
    )
    whole = tuple(
        Text(
            ids=(*answer.prompt, *answer.output, *tail.output),
            prompt_tokens=len(answer.prompt),
            output_tokens=len(answer.output),
        )
        for answer, tail in zip(answers, tails, strict=True)
    )
    predicted = ask_models(
        Question(
            method=spec.method,
            target=models[0],
            draft=models[1] or "",
            draft_tokens=spec.draft_tokens,
            dtype=spec.dtype,
            unseen_tokens=_UNSEEN_TOKENS[_drafter(case)],
            texts=whole,
        )
    )
    steps = tuple(
        walk(
            drafts_of_lookup(text.ids, LookupRule(), spec.draft_tokens)
            if spec.method == "ngram"
            else drafts_of_model(accepted, spec.draft_tokens),
            prompt_tokens=text.prompt_tokens,
            output_tokens=text.output_tokens,
            width=spec.draft_tokens,
        )
        for text, accepted in zip(whole, predicted.accepted, strict=True)
    )
    return WalkedAnswers(answers=answers, steps=steps, gaps_nats=predicted.gaps_nats)


def wanted_of(case: Case, count: int) -> list[Wanted]:
    """What the answers of a case are to be, greedy."""
    one = Wanted(output_cap_tokens=case.output_cap_tokens, ignore_eos=case.ignore_eos)
    return [one] * count


def in_flight(case: Case) -> int:
    """How many requests of a case are on their way at once; of a rate, all that a server takes."""
    return case.load.concurrency or case.server.max_sequences


def _drafter(case: Case) -> tuple[str, str]:
    """The engine that speculates, whatever server is around it, and its method."""
    engine = engine_named(case.server.engine)
    return engine.backend or engine.name, case.server.method


def check_context(case: Case, answers: Sequence[Transcript]) -> None:
    """Silent where the last step's drafts had room in the context, so that all are known.

    Raises:
        InvalidMeasurementError: they hadn't.
    """
    spec = case.server
    longest = max(len(answer.prompt) + len(answer.output) for answer in answers)
    if longest + spec.draft_tokens > spec.max_model_len_tokens:
        message = (
            f"'{case.id}': an answer with its prompt is {longest} tokens, and its last step drafts"
            f" {spec.draft_tokens}, of {spec.max_model_len_tokens} in all; lower output_cap_tokens"
            " or raise max_model_len_tokens in the matrix"
        )
        raise InvalidMeasurementError("CONTEXT_FULL", message)


def predict_drafts(
    question: Question, *, on_gpu: bool, show: Callable[[str], None]
) -> OracleAnswer:
    """Ask the models in an environment of their own; nothing of it outlives this process.

    Args:
        question: of which models and texts.
        on_gpu: whether to make the environment for a GPU.
        show: is told what goes on.

    Raises:
        EnvironmentSetupError: the environment could not be made.
        ModelError: the models could not be read, aren't of the architecture that the method needs,
            or don't fit together.
    """
    requirement = engine_named("reference").requirement(on_gpu=on_gpu)
    environment = engine_environment(requirement, show=show)
    # As the engine has it: without a name it takes the machine's first GPU, or its CPU.
    device = () if on_gpu else ("cpu",)
    models = (question.target, question.draft)
    offline = {"HF_HUB_OFFLINE": "1"} if all(Path(one).is_dir() for one in models) else {}
    oracle = f"oracle of method '{question.method}'"
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as temporary:
        try:
            with child_process(
                (environment.python, "-m", "specreg.engines.pytorch.oracle", *device),
                log_path=Path(temporary) / "log",
                environment={**os.environ, **offline, "PYTHONPATH": _HERE},
                temporary=[Path(temporary)],
            ) as child:
                child.send(question)
                answer = child.receive(OracleAnswer)
                status = child.process.popen.wait()
                lines = child.last_lines().splitlines()
        except OSError as error:
            message = f"{oracle}: can't be run, {error.strerror}: '{error.filename}'; delete the"
            raise ModelError(f"{message} reference engine's folder in the cache") from error
    if answer is None:
        raise ModelError(f"{oracle}: {explain_exit(status, lines)}")
    return answer


def explain_exit(status: int, lines: Sequence[str]) -> str:
    """Say why the process that reads the models ended, and what to do.

    Args:
        status: not 0; below, the signal that ended it.
        lines: what it wrote.
    """
    tail = "\n".join(lines[-_MOST_LINES:]) or "(nothing)"
    if status == REFUSED:
        return lines[-1] if lines else tail
    if status == -signal.SIGKILL:
        return (
            "its process was killed (SIGKILL), as a machine does that runs out of memory; free"
            f" some, or give the case smaller models\nits last words:\n{tail}"
        )
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"its process ended {how}; its last words say why:\n{tail}"
