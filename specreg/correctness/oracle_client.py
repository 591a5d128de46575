"""Recompute the steps that a method must have taken to generate an answer.

What a greedy drafter would have proposed at any token of a text follows from the text alone, so the
steps of an answer can be walked again. If the engine took other steps, its drafter or verifier is
wrong. A changed text can't be the cause, because the walk follows the engine's own text. The models
are run by `specreg.engines.pytorch.oracle`, in the reference engine's environment.
"""

import functools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError, ModelError
from specreg.core.processes import child_process, new_temporary
from specreg.engines.pytorch.requests import OracleAnswer, Question, Text
from specreg.engines.pytorch.speculation import propose, propose_padded
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Endpoint, Transcript, Wanted
from specreg.load.token_client import complete
from specreg.matrix.case import Case
from specreg.servers.provision import engine_environment

_UNSEEN_TOKENS: Mapping[tuple[str, str], int] = {
    ("reference", "draft_model"): 0,
    ("reference", "ngram"): 0,
    # SGLang shifts the draft model's input by one, as for EAGLE, so it never sees the first token.
    ("sglang", "draft_model"): 1,
    ("sglang", "draft_model_tree"): 1,
    ("sglang", "eagle"): 0,
    ("sglang", "eagle3"): 0,
    ("sglang", "eagle_tree"): 0,
    ("sglang", "eagle3_tree"): 0,
    ("sglang", "mtp"): 0,
    ("vllm", "ngram"): 0,
    ("vllm", "draft_model"): 0,
    ("vllm", "draft_model_tli"): 0,
    ("vllm", "pard"): 0,
    ("vllm", "eagle"): 0,
    ("vllm", "eagle3"): 0,
    ("vllm", "p_eagle"): 0,
    ("vllm", "medusa"): 0,
    ("vllm", "mtp"): 0,
    ("vllm", "dflash"): 0,
}
"""By engine and method: how many of a text's first tokens the drafter doesn't see.

A pair that is missing was never compared with a real engine. SGLang's lookup learns from earlier
answers, TensorRT-LLM's lookup follows another rule, and nobody has seen drafts of its models.
"""
_KEYS_WITHOUT_EFFECT = {"rejection_sample_method"}
"""The further keys of a speculation that change no greedy draft."""
_SPECREG_PARENT = str(Path(__file__).parents[2])
"""The folder that holds specreg, which isn't installed in the reference engine's environment."""
_MAX_LOG_LINES = 15

PredictDrafts = Callable[[Question], OracleAnswer]
DraftsAt = Callable[[int], tuple[int, int]]
"""Takes the index of a token in a text. Returns how many tokens a step that begins there drafts,
and how many of these drafts the text goes on with."""


def walk(drafts_at: DraftsAt, text: Text, width: int) -> StepCounts:
    """Count the steps of an answer as the verifier does: drafts beyond its end count too.

    The prefill emits the first token. Each step emits its accepted drafts and one more token. A
    step that drafts nothing emits one token and isn't counted.

    Args:
        drafts_at: returns what a step drafts and accepts.
        text: the prompt and the answer.
        width: the most tokens drafted per step.
    """
    counts = NO_STEPS
    index = text.prompt_tokens + 1
    end = text.prompt_tokens + text.output_tokens
    while index < end:
        proposed, accepted = drafts_at(index)
        if proposed:
            histogram = [int(accepted == bucket) for bucket in range(width + 1)]
            counts += StepCounts.from_histogram(histogram, proposed)
        index += accepted + 1
    return counts


def drafts_of_lookup(text: Sequence[int], draft_tokens: int, index: int) -> tuple[int, int]:
    """Return what a step of n-gram lookup drafts and accepts, see `DraftsAt`.

    Args:
        text: the ids of the prompt, of the answer and of one further step.
        draft_tokens: the most tokens to draft, k.
        index: the token at which the step begins.
    """
    drafts = propose(text[:index], draft_tokens)
    return len(drafts), _accepted(drafts, text[index:])


def _accepted(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many of the drafts the tokens begin with."""
    accepted = 0
    for draft, token in zip(drafts, tokens, strict=False):
        if draft != token:
            break
        accepted += 1
    return accepted


def padded_drafts_of_lookup(text: Sequence[int], draft_tokens: int, index: int) -> tuple[int, int]:
    """Return what a step of vLLM's model runner V2 drafts and accepts; see `drafts_of_lookup`.

    That runner pads each step to k drafts and counts the padding.
    """
    drafts = propose_padded(text[:index], draft_tokens)
    return draft_tokens, _accepted(drafts, text[index:])


def has_oracle(case: Case) -> bool:
    """Return whether it is known what the case's engine drafts by its method."""
    further_keys = {key for key, _ in case.server.speculation}
    return _drafter(case) in _UNSEEN_TOKENS and further_keys <= _KEYS_WITHOUT_EFFECT


def walk_answers(
    case: Case,
    answers: Sequence[Transcript],
    endpoint: Endpoint,
    models: tuple[str, str | None],
    predict_drafts: PredictDrafts,
) -> tuple[tuple[StepCounts, ...], tuple[float, ...]]:
    """Walk the steps of greedy answers again.

    Args:
        case: the case that was asked, with the model runner that its server has.
        answers: the engine's answers.
        endpoint: a server that continues the answers, preferably one without speculation.
        models: target and draft as folders or hub ids.
        predict_drafts: runs the models.

    Returns:
        The steps of each answer, and the gap of each in nats, see `OracleAnswer`.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or `CONTEXT_FULL`.
        ModelError: the models can't be read, or don't fit together.
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
    # The last step's drafts go beyond the answer, and so must the text.
    tails = complete(
        endpoint,
        [(*answer.prompt, *answer.output) for answer in answers],
        [Wanted(output_cap_tokens=spec.draft_tokens, ignore_eos=True)] * len(answers),
        in_flight=case.in_flight,
    )
    texts = tuple(
        Text(
            ids=(*answer.prompt, *answer.output, *tail.output),
            prompt_tokens=len(answer.prompt),
            output_tokens=len(answer.output),
        )
        for answer, tail in zip(answers, tails, strict=True)
    )
    target, draft = models
    branches = 0
    if spec.tree:
        branches = spec.tree.branches
    drafter = _drafter(case)
    question = Question(
        method=spec.method,
        target=target,
        draft=draft or "",
        draft_tokens=spec.draft_tokens,
        branches=branches,
        drafted_tokens=spec.drafted_tokens,
        dtype=spec.dtype,
        unseen_tokens=_UNSEEN_TOKENS[drafter],
        # SGLang's MTP layer reads the target's state after its norm; vLLM's norms when it predicts.
        normed=drafter == ("sglang", "mtp"),
        texts=texts,
    )
    predicted = predict_drafts(question)

    lookup = drafts_of_lookup
    engine = engine_named(spec.engine)
    if engine.drafts_every_step("ngram", spec.model_runner or ""):
        lookup = padded_drafts_of_lookup

    def steps_of(text: Text, accepted: Sequence[int]) -> StepCounts:
        """Walk the steps of one answer; `accepted` has the accepted drafts by token of the text."""
        if spec.method == "ngram":
            drafts_at = functools.partial(lookup, text.ids, spec.draft_tokens)
            return walk(drafts_at, text, spec.draft_tokens)
        return walk(lambda index: (spec.drafted_tokens, accepted[index]), text, spec.draft_tokens)

    steps = tuple(
        steps_of(text, accepted) for text, accepted in zip(texts, predicted.accepted, strict=True)
    )
    return steps, predicted.gaps_nats


def _drafter(case: Case) -> tuple[str, str]:
    """Return the engine that speculates, whatever server is around it, and its method."""
    engine = engine_named(case.server.engine)
    return engine.backend or engine.name, case.server.method


def predict_drafts(
    question: Question, *, on_gpu: bool, show: Callable[[str], None]
) -> OracleAnswer:
    """Ask the models in an environment of their own. Nothing of it outlives this process.

    Raises:
        EnvironmentSetupError: the environment could not be made.
        ModelError: the models could not be read, aren't of the architecture that the method needs,
            or don't fit together.
    """
    requirement = engine_named("reference").requirement(on_gpu=on_gpu)
    python = engine_environment(requirement, show=show)
    command = [str(python), "-m", "specreg.engines.pytorch.oracle"]
    if not on_gpu:
        # Without an argument the oracle takes the machine's first GPU, as the engine does.
        command.append("cpu")
    models = (question.target, question.draft)
    variables = {**os.environ, "PYTHONPATH": _SPECREG_PARENT}
    if all(Path(model).is_dir() for model in models):
        variables["HF_HUB_OFFLINE"] = "1"
    temporary = new_temporary()
    with child_process(
        command, log_path=temporary / "log", environment=variables, temporary=temporary
    ) as child:
        child.send(question)
        answer = child.receive(OracleAnswer)
        if answer is None:
            status = child.popen.wait()
            ending = f"its process ended with status {status}"
            if status == -signal.SIGKILL:
                ending += ", killed, as happens when memory runs out"
            last_lines = "\n".join(child.last_lines().splitlines()[-_MAX_LOG_LINES:])
            answer = OracleAnswer(refusal=f"{ending}; its last words:\n{last_lines}")
    if answer.refusal:
        message = f"oracle of method '{question.method}': {answer.refusal}"
        raise ModelError(message)
    return answer
