"""Remarks about a workload whose answers make its figures less meaningful than they look."""

import itertools
from collections.abc import Iterator

from specreg.measurement.figures import AcceptanceFigures, AnswerFigures, Figures

_MANY_FRAC = 0.5
"""A few looping or very short answers are normal. A remark is worth it from this share on."""
_FULL_FRAC = 0.99
"""The number of drafts varies between steps if its mean is below this share of the largest."""


def workload_remarks(figures: Figures, side: str = "") -> Iterator[str]:
    """Yield remarks about the workload of a case, for example about empty or repetitive answers.

    Args:
        figures: the figures of one launch of the case.
        side: the side of a gate, "A" or "B"; empty for a run.
    """
    subject = f"'{figures.case_id}'"
    if side:
        subject += f", side {side}"
    if figures.answers is not None:
        for remark in itertools.chain(
            _answer_remarks(figures.answers), _server_remarks(figures.answers)
        ):
            yield f"{subject}: {remark}"

    if figures.acceptance is not None:
        for remark in _acceptance_remarks(figures.acceptance):
            yield f"{subject}: {remark}"


def _server_remarks(answers: AnswerFigures) -> Iterator[str]:
    """Yield what the server did to the answers."""
    total = answers.requests
    if answers.other_texts:
        yield (
            f"{answers.other_texts} of {total} answers have the tokens of an answer without"
            " speculation, but another streamed text: the server's parser or detokenizer loses or"
            " changes text of a stream"
        )

    if answers.cut_short:
        yield (
            f"{answers.cut_short} of {total} answers were ended by the server before the output cap"
            " of the case, so they aren't the answers that the case asks for: the server has a cap,"
            " a stop string or a shorter context of its own, or a gateway drops ignore_eos"
        )


def _answer_remarks(answers: AnswerFigures) -> Iterator[str]:
    """Yield reasons why the answers of a workload are a poor measure of speculation."""
    total = answers.requests
    threshold = total * _MANY_FRAC
    if answers.unfinished_thoughts:
        yield (
            f"{answers.unfinished_thoughts} of {total} answers never left the thought; raise"
            " output_cap_tokens, or set thinking = false"
        )

    if answers.thinking is False and answers.with_thought:
        yield (
            f"{answers.with_thought} of {total} answers have a thought with thinking = false; the"
            " chat template has another switch for it: set chat_template_args instead"
        )

    if answers.thinking and not answers.with_thought:
        yield (
            f"none of {total} answers has a thought with thinking = true; the model can't think,"
            " its chat template has another switch, or the server doesn't mark thoughts"
        )

    if answers.after_empty_replies:
        yield (
            f"{answers.after_empty_replies} of {total} requests were later turns that had empty"
            " replies before them, which no user would send; replay only first turns, with"
            " turns = 1, or raise output_cap_tokens until the replies end"
        )

    if answers.without_tokens:
        yield f"{answers.without_tokens} of {total} answers have no token"
    elif answers.without_text:
        yield f"{answers.without_text} of {total} answers hold no text"

    if answers.of_one_token >= threshold:
        yield f"{answers.of_one_token} of {total} answers end at their first token, before any step"
    if answers.looping >= threshold:
        yield (
            f"{answers.looping} of {total} answers repeat themselves throughout their second half,"
            " where drafts are easy"
        )

    if answers.distinct == 1 and answers.prompts > 1:
        yield f"all {answers.prompts} prompts have the same answer"


def _acceptance_remarks(acceptance: AcceptanceFigures) -> Iterator[str]:
    """Yield remarks on steps that drafted nothing or little, and on thoughts and answers."""
    total = acceptance.total
    undrafted = total.undrafted_steps or 0
    if acceptance.chunks_split_steps:
        yield (
            "the tokens of a step came in several chunks, so times between chunks aren't those of"
            " steps; acceptance is what the server counts, and doesn't depend on chunks"
        )

    # Methods such as n-gram often find nothing to draft. That needs no remark.
    if undrafted and acceptance.drafts_every_step:
        steps = total.steps + undrafted
        per_step = ""
        if total.tokens_per_step is not None:
            per_step = f"; over all steps it is {total.tokens_per_step:.2f} tokens per step"
        yield (
            f"{undrafted} of {steps} steps ({undrafted / steps:.0%}) were undrafted, so acceptance"
            f" covers only the other {total.steps}{per_step}"
        )

    most = len(total.marginal_frac)
    if total.proposed is not None and acceptance.drafts_every_step and total.steps:
        mean = total.proposed / total.steps
        if mean < _FULL_FRAC * most:
            yield f"a step that drafted has {mean:.2f} drafts on average, {most} at most"

    part_remark = _part_remark(acceptance)
    if part_remark:
        yield part_remark


def _part_remark(acceptance: AcceptanceFigures) -> str:
    """Return the acceptance lengths of thoughts and of answers; empty if neither has one."""
    parts = []
    for name, part in acceptance.by_part.items():
        if part.acceptance_length_tokens is not None:
            parts.append(f"{part.acceptance_length_tokens:.2f} in the {name}s")
    if not parts:
        return ""
    lengths = " and ".join(parts)
    return (
        f"the acceptance length is about {lengths}, if each chunk of an answer is taken for a step:"
        " no server counts the steps of thoughts separately"
    )
