"""Walk the steps that a method must have taken to an answer, and ask for what that takes.

What a greedy drafter would have proposed anywhere in a text follows from the text alone, so the
steps of an answer can be walked again. If they are others, the engine's drafter or verifier is
wrong; the text hasn't changed, because the walk is along the engine's own text. The models are read
by `specreg.engines.pytorch.oracle`, in the reference engine's environment.
"""

import functools
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError, ModelError
from specreg.core.processes import child_process
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
    # It shifts the draft's input by one, as for EAGLE, so the first token is never shown.
    **{("sglang", name): 1 for name in ("draft_model", "draft_model_tree")},
    **{("sglang", name): 0 for name in ("eagle", "eagle3", "eagle_tree", "eagle3_tree", "mtp")},
    ("vllm", "ngram"): 0,
    **{
        ("vllm", name): 0
        for name in (
            *(
                "draft_model",
                "draft_model_tli",
                "pard",
                "eagle",
                "eagle3",
                "p_eagle",
                "medusa",
                "mtp",
                "dflash",
            ),
        )
    },
}
"""By engine, as methods are spelt, and method: how many of a text's first tokens the drafter isn't
shown. A pair that isn't here was compared to no such engine: SGLang's lookup learns, TensorRT-LLM's
is another, and drafts of its models were never seen."""
_NOT_OF_DRAFTS = {"rejection_sample_method"}
"""The further keys of a speculation that change no greedy draft."""
_HERE = str(Path(__file__).parents[2])
"""The folder that holds specreg, which isn't installed in that environment."""
_MOST_LINES = 15

PredictDrafts = Callable[[Question], OracleAnswer]
DraftsAt = Callable[[int], tuple[int, int]]
"""Takes the index of a token in a text. Gives how many tokens a step that begins there drafts, and
how many of them the text goes on with."""


def walk(drafts_at: DraftsAt, text: Text, width: int) -> StepCounts:
    """Count the steps of an answer as the verifier does: drafts beyond its end count too.

    The prefill emits the first token; each step emits what it accepts and one more. A step in
    which nothing is drafted counts for nothing, and emits its one token.

    Args:
        drafts_at: says what a step drafts and accepts.
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
    """Say what n-gram lookup drafts and accepts along prompt, answer and a further step's tokens.

    See `DraftsAt`, to which this is partially applied.
    """
    drafts = propose(text[:index], draft_tokens)
    return len(drafts), _accepted(drafts, text[index:])


def _accepted(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """Return with how many of its first tokens a text goes on as drafted."""
    accepted = 0
    for draft, token in zip(drafts, tokens, strict=False):
        if draft != token:
            break
        accepted += 1
    return accepted


def padded_drafts_of_lookup(text: Sequence[int], draft_tokens: int, index: int) -> tuple[int, int]:
    """Say what vLLM's model runner V2 drafts and accepts at a token; see `drafts_of_lookup`."""
    drafts = propose_padded(text[:index], draft_tokens)
    return draft_tokens, _accepted(drafts, text[index:])


def has_oracle(case: Case) -> bool:
    """Return whether it is known what the case's engine drafts by its method."""
    further_keys = {key for key, _ in case.server.speculation}
    return _drafter(case) in _UNSEEN_TOKENS and further_keys <= _NOT_OF_DRAFTS


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
        endpoint: a server that says how the answers would go on, best one without speculation.
        models: target and draft as folders or hub ids.
        predict_drafts: asks the models.

    Returns:
        By answer its steps, and by answer the gap of `OracleAnswer` in nats.

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
    predicted = predict_drafts(
        Question(
            method=spec.method,
            target=models[0],
            draft=models[1] or "",
            draft_tokens=spec.draft_tokens,
            branches=spec.tree.branches if spec.tree else 0,
            drafted_tokens=spec.drafted_tokens,
            dtype=spec.dtype,
            unseen_tokens=_UNSEEN_TOKENS[_drafter(case)],
            normed=_drafter(case) == ("sglang", "mtp"),  # vLLM's MiMo norms when it predicts
            texts=texts,
        )
    )

    engine = engine_named(spec.engine)
    is_padded = engine.drafts_every_step("ngram", spec.model_runner or "")
    lookup = padded_drafts_of_lookup if is_padded else drafts_of_lookup

    def steps_of(text: Text, accepted: Sequence[int]) -> StepCounts:
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
    # As the engine has it: without a name it takes the machine's first GPU, or its CPU.
    device = () if on_gpu else ("cpu",)
    models = (question.target, question.draft)
    variables = {**os.environ, "PYTHONPATH": _HERE}
    if all(Path(model).is_dir() for model in models):
        variables["HF_HUB_OFFLINE"] = "1"
    with (
        tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as temporary,
        child_process(
            (python, "-m", "specreg.engines.pytorch.oracle", *device),
            log_path=Path(temporary) / "log",
            environment=variables,
            temporary=[Path(temporary)],
        ) as child,
    ):
        child.send(question)
        answer = child.receive(OracleAnswer)
        if answer is None:
            status = child.popen.wait()
            last_lines = "\n".join(child.last_lines().splitlines()[-_MOST_LINES:])
            killed = ", killed as where memory runs out" if status == -signal.SIGKILL else ""
            refusal = f"its process ended with status {status}{killed}; its last words:"
            answer = OracleAnswer(refusal=f"{refusal}\n{last_lines}")
    if answer.refusal:
        message = f"oracle of method '{question.method}': {answer.refusal}"
        raise ModelError(message)
    return answer
