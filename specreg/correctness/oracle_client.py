"""Recompute the steps in which a method must have generated an answer.

The drafts of a greedy drafter depend only on the text before them. So the steps of an answer can be
computed from its text, token by token; the code calls this a walk. If the engine took other steps,
its drafter or its verifier is wrong. A wrong text can't be the cause, because the walk follows the
engine's own text. `specreg.engines.pytorch.oracle` runs the models, in the environment of the
reference engine.
"""

import functools
import itertools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError, ModelError
from specreg.core.processes import child_process, new_temporary
from specreg.engines.pytorch.question import OracleAnswer, Question, TokenizedText
from specreg.engines.pytorch.speculation import propose, propose_padded
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import AnswerSettings, Endpoint, Transcript
from specreg.load.token_client import complete
from specreg.matrix.case import Case
from specreg.servers.provision import engine_environment

_COMPARED: Mapping[str, Sequence[str]] = {
    "reference": ("draft_model", "ngram"),
    "sglang": (
        *("draft_model", "draft_model_tree", "eagle", "eagle_tree", "eagle3", "eagle3_tree"),
        "mtp",
    ),
    "vllm": (
        *("ngram", "draft_model", "draft_model_tli", "pard", "eagle", "eagle3", "p_eagle"),
        *("medusa", "mtp", "dflash"),
    ),
}
"""The methods of each engine whose steps were compared with those of the running engine.

Among the rest, SGLang's lookup learns from earlier answers, TensorRT-LLM's lookup follows another
rule, and the drafts of TensorRT-LLM's models have never been observed.
"""
_UNSEEN_TOKENS = {("sglang", "draft_model"): 1, ("sglang", "draft_model_tree"): 1}
"""The number of first tokens of a text that a drafter doesn't see; 0 for all others. SGLang shifts
the draft model's input by one, as for EAGLE."""
_NORMED = {("sglang", "mtp")}
"""The MTP layers that get the target's hidden state after the final norm. vLLM's layer gets it
before, and applies the norm only when it predicts."""
_KEYS_WITHOUT_EFFECT = {"rejection_sample_method"}
"""The further settings of speculation that don't change greedy drafts."""
_SPECREG_PARENT = str(Path(__file__).parents[2])
"""The folder that holds specreg, which isn't installed in the reference engine's environment."""
_MAX_LOG_LINES = 15
"""How many of the last lines of the oracle's log an error quotes."""

LookUp = Callable[[Sequence[int], int], Sequence[int]]
"""Takes the ids of a text and k. Returns at most k drafts for the tokens after the text."""
PredictDrafts = Callable[[Question], OracleAnswer]
"""Runs the models on texts, and returns how many drafts a step at each token would accept."""
DraftsAt = Callable[[int], tuple[int, int]]
"""Takes the index of a token in a text. Returns how many tokens a step that begins there drafts,
and how many of these drafts are equal to the text that follows, which are the accepted ones."""


def walk(drafts_at: DraftsAt, text: TokenizedText, width: int) -> StepCounts:
    """Count the steps of an answer.

    The prefill emits the first token. Each step emits its accepted drafts and one more token. A
    step that drafts nothing emits one token and isn't counted. All accepted drafts of the last step
    count, even those beyond the end of the answer.

    Args:
        drafts_at: returns how many tokens a step drafts and accepts.
        text: the prompt, the answer, and the tokens after the answer.
        width: the most drafts that a step can accept. A step of a tree drafts more tokens.
    """
    counts = NO_STEPS
    index = text.prompt_tokens + 1
    end = text.prompt_tokens + text.output_tokens
    while index < end:
        proposed, accepted = drafts_at(index)
        if proposed:
            histogram = [0] * (width + 1)
            histogram[accepted] = 1
            counts += StepCounts.from_histogram(histogram, proposed)
        index += accepted + 1

    return counts


def drafts_of_lookup(
    look_up: LookUp, text: Sequence[int], draft_tokens: int, index: int
) -> tuple[int, int]:
    """Return how many tokens a step of n-gram lookup drafts and accepts, see `DraftsAt`.

    Args:
        look_up: the rule by which the engine looks up drafts.
        text: the ids of the prompt, of the answer and of one further step.
        draft_tokens: the largest number of tokens to draft, k.
        index: the index of the token at which the step begins.
    """
    drafts = look_up(text[:index], draft_tokens)
    # A draft is accepted if it and all drafts before it are equal to the text.
    is_equal = map(int.__eq__, drafts, text[index:])
    return len(drafts), sum(itertools.takewhile(bool, is_equal))


def has_oracle(case: Case) -> bool:
    """Return whether the oracle can recompute the drafts of a case's engine."""
    engine, method = _drafter(case)
    further_keys = {key for key, _ in case.server.speculation}
    # Any other key may change what is drafted in a way that the oracle doesn't imitate.
    return method in _COMPARED.get(engine, ()) and further_keys <= _KEYS_WITHOUT_EFFECT


def walk_answers(
    case: Case,
    answers: Sequence[Transcript],
    endpoint: Endpoint,
    models: tuple[str, str | None],
    predict_drafts: PredictDrafts,
) -> tuple[tuple[StepCounts, ...], tuple[float, ...]]:
    """Recompute the steps of greedy answers.

    Args:
        case: the case, with the model runner that its server really has.
        answers: the engine's answers.
        endpoint: a server that continues the answers, preferably one without speculation.
        models: target and draft as folders or hub ids.
        predict_drafts: runs the models.

    Returns:
        The steps of each answer, and the gap of each answer in nats, see `OracleAnswer.gaps_nats`.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or `CONTEXT_FULL`: there is no room
            for the drafts after an answer.
        EnvironmentSetupError: the environment that runs the models couldn't be made.
        ModelError: the models can't be read, or don't fit together.
    """
    # Let the endpoint continue the answers, because the last step may draft beyond an answer's end.
    spec = case.server
    longest = max(len(answer.prompt) + len(answer.output) for answer in answers)
    if longest + spec.draft_tokens > spec.max_model_len_tokens:
        raise InvalidMeasurementError(
            "CONTEXT_FULL",
            case=case.id,
            tokens=longest,
            drafts=spec.draft_tokens,
            context_tokens=spec.max_model_len_tokens,
        )

    answered_texts = [(*answer.prompt, *answer.output) for answer in answers]

    # The drafter doesn't stop at the end of the text, so neither does the continuation.
    request = AnswerSettings(output_cap_tokens=spec.draft_tokens, ignore_eos=True)
    requests = [request] * len(answers)
    tails = complete(endpoint, answered_texts, requests, in_flight=case.in_flight)
    texts = []
    for answer, answered_text, tail in zip(answers, answered_texts, tails, strict=True):
        text = TokenizedText(
            ids=(*answered_text, *tail.output),
            prompt_tokens=len(answer.prompt),
            output_tokens=len(answer.output),
        )
        texts.append(text)

    # Run the models on these texts.
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
        unseen_tokens=_UNSEEN_TOKENS.get(drafter, 0),
        normed=drafter in _NORMED,
        texts=tuple(texts),
    )
    predicted = predict_drafts(question)

    # Count the steps. The drafts of n-gram lookup follow from the text alone.
    look_up: LookUp = propose
    engine = engine_named(spec.engine)
    if engine.drafts_every_step("ngram", spec.model_runner or ""):
        # vLLM's model runner V2 pads each step to k drafts, and counts the padding as drafts.
        look_up = propose_padded

    def steps_of(text: TokenizedText, accepted: Sequence[int]) -> StepCounts:
        """Count the steps of an answer, given the accepted drafts at each token of its text."""
        if spec.method == "ngram":
            drafts_at = functools.partial(drafts_of_lookup, look_up, text.ids, spec.draft_tokens)
            return walk(drafts_at, text, spec.draft_tokens)
        return walk(lambda index: (spec.drafted_tokens, accepted[index]), text, spec.draft_tokens)

    steps = []
    for text, accepted in zip(texts, predicted.accepted, strict=True):
        steps.append(steps_of(text, accepted))
    return tuple(steps), predicted.gaps_nats


def _drafter(case: Case) -> tuple[str, str]:
    """Return the engine that drafts, and its method."""
    # Triton, for instance, is only a server around another engine, its backend.
    engine = engine_named(case.server.engine)
    return engine.backend or engine.name, case.server.method


def predict_drafts(
    question: Question, *, on_gpu: bool, show: Callable[[str], None]
) -> OracleAnswer:
    """Run the models in a child process, in the environment of the reference engine.

    Args:
        question: the texts and the models.
        on_gpu: True to run them on the machine's first GPU.
        show: prints a line that says what is being done.

    Raises:
        EnvironmentSetupError: the environment couldn't be made.
        ModelError: the models can't be read, aren't of the architecture that the method needs, or
            don't fit together; or the process ended without an answer.
    """
    requirement = engine_named("reference").requirement(on_gpu=on_gpu)
    python = engine_environment(requirement, show=show)
    command = [str(python), "-m", "specreg.engines.pytorch.oracle"]
    if not on_gpu:
        # Without an argument the oracle takes the machine's first GPU, as the engine does.
        command.append("cpu")
    models = (question.target, question.draft)
    variables = {**os.environ, "PYTHONPATH": _SPECREG_PARENT}

    # If all models are folders, the hub isn't even asked for newer files, so the oracle runs
    # on a machine without a network too.
    if all(Path(model).is_dir() for model in models if model):
        variables["HF_HUB_OFFLINE"] = "1"
    temporary = new_temporary()
    with child_process(
        command, log_path=temporary / "log", environment=variables, temporary=temporary
    ) as child:
        child.send(question)
        answer = child.receive(OracleAnswer)
        # Without an answer, the end of the process and its log say what went wrong.
        if answer is None:
            status = child.popen.wait()
            ending = f"its process ended with status {status}"
            if status == -signal.SIGKILL:
                ending += ", killed, as happens when memory runs out"
            log_lines = child.last_lines().splitlines()
            last_lines = "\n".join(log_lines[-_MAX_LOG_LINES:])
            answer = OracleAnswer(refusal=f"{ending}; the last lines of its log:\n{last_lines}")

    if answer.refusal:
        message = f"oracle of method '{question.method}': {answer.refusal}"
        raise ModelError(message)
    return answer
