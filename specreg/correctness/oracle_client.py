"""Consulting the oracle: whom to ask and models in; answers and the steps they took out."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.correctness.draft_prediction import Foresee, foresee
from specreg.correctness.oracle import Foresight, foresee_lookup, foresee_model, walk
from specreg.datasets.prompts import Prompt
from specreg.engines.protocols import Endpoint
from specreg.engines.pytorch.lookup import LookupRule
from specreg.engines.pytorch.questions import Foreseen, Question, Text
from specreg.engines.registry import ALONE, engine_named
from specreg.engines.token_api import Transcript, Wanted
from specreg.load.token_client import encode_prompts, transcribe
from specreg.matrix.case import Case
from specreg.matrix.models import resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import Load
from specreg.servers.environments import engine_environment
from specreg.servers.gpu_lease import lease_gpus
from specreg.servers.start import start_server

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
"""By engine, as methods are spelt, and method: of how many of a text's first tokens the drafter
never hears. A pair that isn't here was held against no such engine: SGLang's lookup learns, and
TensorRT-LLM's is another; of its models' drafts nobody has seen any."""
_READY_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consulted:
    """What came of it, prompt by prompt.

    Attributes:
        answers: as the server gave them, with its own counts.
        steps: what they must have taken.
        gaps_nats: see `specreg.engines.pytorch.questions.Foreseen`.
    """

    answers: tuple[Transcript, ...]
    steps: tuple[StepCounts, ...]
    gaps_nats: tuple[float, ...]


def is_foreseen(case: Case) -> bool:
    """Whether the oracle knows what the case's engine drafts by its method."""
    return _drafter(case) in _UNSEEN_TOKENS


def consult(
    case: Case,
    prompts: Sequence[Prompt],
    endpoint: Endpoint,
    beside: Endpoint,
    models: tuple[str, str | None],
    ask_models: Foresee,
) -> Consulted:
    """Has prompts answered, and walks the answers' steps again.

    Args:
        case: whose method, models and load.
        prompts: what to ask.
        endpoint: who answers.
        beside: who says how the answers would go on; best one without speculation.
        models: target and draft as folders or hub ids.
        ask_models: asks the models themselves.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or an answer ends so near the end
            of the context that nobody can say how it would go on.
        ModelError: the models can't be read, or don't fit together.
    """
    spec = case.server
    texts = encode_prompts(endpoint, case, prompts)
    answers = transcribe(endpoint, texts, wanted_of(case, len(texts)), in_flight=in_flight(case))
    check_room(case, answers)
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
    said = ask_models(
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
            foresight,
            prompt_tokens=len(answer.prompt),
            output_tokens=len(answer.output),
            width=spec.draft_tokens,
        )
        for foresight, answer in zip(_foresights(case, whole, said), answers, strict=True)
    )
    return Consulted(answers=answers, steps=steps, gaps_nats=said.gaps_nats)


def expected_steps(
    case: Case, root: Path, *, on_gpu: bool, show: Callable[[str], None]
) -> tuple[tuple[Prompt, ...], StepCounts]:
    """The prompts that a baseline is recorded on, and the steps that they should take in all.

    The answers are the reference engine's, without speculation.

    Args:
        case: which; no server of its engine is started.
        root: the repository's root.
        on_gpu: whether to run on a GPU.
        show: is told what goes on.

    Raises:
        UnsupportedError: nobody knows what the case drafts.
        SpecregError: the reference engine didn't start, or the models can't be read.
    """
    _check_foreseen(case)
    spec = case.server
    plain = dataclasses.replace(
        spec,
        engine="reference",
        method="none",
        draft=None,
        draft_tokens=0,
        padding_layers=0,
        widen=None,
        parallel=ALONE,
        engine_args=(),
        engine_env=(),
    )
    models = resolve_model(root, spec.target), resolve_model(root, spec.draft or spec.target)
    prompts = load_case_prompts(root, case)[: 2 * case.prompts]
    requirement = engine_named("reference").requirement(on_gpu=on_gpu)
    with (
        lease_gpus(plain.parallel.gpus if on_gpu else 0, os.environ, tell=show),
        start_server(
            plain,
            engine_environment(requirement, show=show),
            root=root,
            on_gpu=on_gpu,
            ready_within_s=_READY_WITHIN_S,
            show=show,
        ) as server,
    ):
        found = consult(
            # As many at once as the engine takes: here the load changes nothing but the time.
            dataclasses.replace(case, load=Load(concurrency=spec.max_sequences)),
            prompts,
            server.endpoint,
            server.endpoint,
            models,
            functools.partial(foresee, on_gpu=on_gpu, show=show),
        )
    return prompts, sum(found.steps, NO_STEPS)


def wanted_of(case: Case, count: int) -> list[Wanted]:
    """What the answers of a case are to be, greedy."""
    one = Wanted(output_cap_tokens=case.output_cap_tokens, ignore_eos=case.ignore_eos)
    return [one] * count


def in_flight(case: Case) -> int:
    """How many requests of a case are on their way at once; of a rate, all that a server takes."""
    return case.load.concurrency or case.server.max_sequences


def _drafter(case: Case) -> tuple[str, str]:
    """The engine that speculates, whatever server is around it, and its method."""
    return engine_named(case.server.engine).spelling, case.server.method


def _check_foreseen(case: Case) -> None:
    engine, method = _drafter(case)
    if not is_foreseen(case):
        known = ", ".join(f"{one} with {other}" for one, other in sorted(_UNSEEN_TOKENS))
        message = (
            f"oracle of '{case.id}': what '{engine}' drafts with '{method}' isn't known; choose a"
            f" case of these: {known}"
        )
        raise UnsupportedError(message)
    if case.temperature > 0:
        message = (
            f"oracle of '{case.id}': its answers are drawn (temperature = {case.temperature}), and"
            " what is drafted is told of greedy ones alone; choose a case with temperature = 0"
        )
        raise UnsupportedError(message)


def check_room(case: Case, answers: Sequence[Transcript]) -> None:
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


def _foresights(case: Case, texts: Sequence[Text], said: Foreseen) -> Iterator[Foresight]:
    for text, accepted in zip(texts, said.accepted, strict=True):
        if case.server.method == "ngram":
            yield foresee_lookup(text.ids, LookupRule(), case.server.draft_tokens)
        else:
            yield foresee_model(accepted, case.server.draft_tokens)
