"""Files of other tools: bytes in, a published figure out.

A form is told by what a file holds, never by its name. Where a tool writes counts, the figures are
worked out from them: among the tools' own figures are percentages and means over requests.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from specreg.acceptance.checks import check_counts
from specreg.acceptance.record import StepCounts
from specreg.decoding import UNREADABLE
from specreg.errors import BaselineError, InvalidMeasurementError
from specreg.published import SCHEMA_VERSION, Published, contradiction

_AGREES_WITHIN_FRAC = 0.01
_LEAST_TOLERANCE_PERCENT = 1.0
"""Less is a fraction by mistake: attention kernels alone move the acceptance length by 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportAbout:
    """What such files don't know; the fields are those of `Published`."""

    method: str
    target: str
    draft: str | None
    dataset: str
    draft_tokens: int
    temperature: float
    conditions: str
    turns: int | None = None
    output_cap_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What a file says, in the fields of `Published`."""

    acceptance_length_tokens: float | None
    acceptance_rate_frac: float | None = None
    position_frac: tuple[float, ...] = ()
    tolerance_frac: float | None = None


class _Form(msgspec.Struct, frozen=True, kw_only=True):
    """What of one tool's file is read.

    Attributes:
        tool: who writes it.
        signs: the keys that tell it, whether or not it speaks of acceptance.
        advice: how to get a file that does.
    """

    tool: ClassVar[str]
    signs: ClassVar[frozenset[str]]
    advice: ClassVar[str]

    def figures(self, draft_tokens: int) -> _Figures:
        """The file's figures; InvalidMeasurementError when they contradict one another."""
        raise NotImplementedError


class _VllmBench(_Form, frozen=True, kw_only=True):
    """The file of `--save-result`, as in vLLM 0.32, `vllm/benchmarks/serve.py`."""

    tool = "vllm bench serve"
    signs = frozenset({"tokenizer_id", "num_prompts"})
    advice = "run it on a server that speculates and whose /metrics it can reach"

    steps: int = msgspec.field(name="spec_decode_num_drafts")
    proposed: int = msgspec.field(name="spec_decode_draft_tokens")
    accepted: int = msgspec.field(name="spec_decode_accepted_tokens")
    length_tokens: float = msgspec.field(name="spec_decode_acceptance_length")
    rate_percent: float = msgspec.field(name="spec_decode_acceptance_rate")
    position_frac: tuple[float, ...] = msgspec.field(
        name="spec_decode_per_position_acceptance_rates"
    )

    def figures(self, draft_tokens: int) -> _Figures:
        counts = StepCounts(
            steps=self.steps,
            accepted=self.accepted,
            proposed=self.proposed,
            position_counts=tuple(round(share * self.steps) for share in self.position_frac),
        )
        figures = _figures_of(counts, draft_tokens)
        _check_told("acceptance_length", self.length_tokens, counts.acceptance_length)
        _check_told("acceptance_rate", self.rate_percent, (counts.acceptance_rate or 0.0) * 100)
        return figures


class _SpecdecBench(_Form, frozen=True, kw_only=True):
    """`acceptance_rate.json`, `examples/specdec_bench` of NVIDIA/Model-Optimizer.

    Its histogram counts steps by the tokens that they delivered, one more than their drafts.
    """

    tool = "specdec_bench"
    signs = frozenset({"Conditional_Acceptance_Rate"})
    advice = "take an acceptance_rate.json with its histogram: an average weighs requests alike"

    histogram: dict[int, int] = msgspec.field(name="Acceptance_Length_Histogram")

    def figures(self, draft_tokens: int) -> _Figures:
        steps = {tokens - 1: steps for tokens, steps in self.histogram.items()}
        return _figures_of(_counts_of(steps, draft_tokens), draft_tokens)


class _AiperfMetric(msgspec.Struct, frozen=True):
    value: float = msgspec.field(name="avg")


class _Aiperf(_Form, frozen=True, kw_only=True):
    """`profile_export_aiperf.json`, seen in its schema 1.4.

    Where the server didn't tell each request's acceptance, it holds times and speeds alone.
    """

    tool = "aiperf"
    signs = frozenset({"aiperf_version"})
    advice = "start vLLM with --per-request-spec-decode-metrics summary and run a recent aiperf"

    histogram: dict[int, int] = msgspec.field(name="pooled_spec_decode_acceptance_histogram")
    proposed: _AiperfMetric | None = msgspec.field(name="total_draft_tokens", default=None)

    def figures(self, draft_tokens: int) -> _Figures:
        counts = _counts_of(self.histogram, draft_tokens)
        if self.proposed is not None:
            counts = dataclasses.replace(counts, proposed=round(self.proposed.value))
        return _figures_of(counts, draft_tokens)


class _Expectation(_Form, frozen=True, kw_only=True):
    """An acceptance length in the form of vLLM's RFC 28135."""

    tool = "an expectation"
    signs = frozenset({"expected"})
    advice = 'write {"expected": 2.6, "tolerance_pct": 5}: an acceptance length, and percent'

    expected: float
    tolerance_percent: float = msgspec.field(name="tolerance_pct")

    def figures(self, draft_tokens: int) -> _Figures:  # noqa: ARG002 - of the other forms
        if not self.tolerance_percent >= _LEAST_TOLERANCE_PERCENT:
            message = f"tolerance_pct is {self.tolerance_percent}, needed percent, 1 or more"
            raise InvalidMeasurementError("FIGURE_IMPOSSIBLE", message)
        return _Figures(
            acceptance_length_tokens=self.expected, tolerance_frac=self.tolerance_percent / 100
        )


_FORMS: tuple[type[_Form], ...] = (_VllmBench, _SpecdecBench, _Aiperf, _Expectation)


def parse_import(content: bytes, where: str, about: ImportAbout) -> Published:
    """What another tool's file says of acceptance.

    Args:
        content: the file.
        where: its name, for the source and for messages.
        about: what the file doesn't know.

    Raises:
        BaselineError: a file of no known form, without acceptance, or with figures that can't be.
    """
    run = _parse_run(content, where)
    form = _form_of(run, where)
    subject = f"import '{where}': {form.tool}"
    try:
        found = msgspec.convert(run, type=form, str_keys=True).figures(about.draft_tokens)
    except msgspec.ValidationError as error:
        message = f"{subject}, without the acceptance needed: {error}; {form.advice}"
        raise BaselineError(message) from error
    except InvalidMeasurementError as error:
        advice = f"see whether it is unedited, and of draft_tokens = {about.draft_tokens}"
        raise BaselineError(f"{subject}: {error}; {advice}") from error
    published = Published(
        schema_version=SCHEMA_VERSION,
        source=f"{where}, written by {form.tool}",
        **dataclasses.asdict(about),
        **dataclasses.asdict(found),
    )
    if wrong := contradiction(published):
        raise BaselineError(f"{subject}: {wrong}; {form.advice}")
    return published


def _parse_run(content: bytes, where: str) -> Mapping[str, object]:
    """The one object of a file; specdec_bench keeps a list, one entry for each run."""
    try:
        found = msgspec.json.decode(content)
    except UNREADABLE as error:
        advice = "give a whole JSON file; NaN and Infinity, which Python writes, are none"
        raise BaselineError(f"import '{where}': {error}; {advice}") from error
    runs = found if isinstance(found, list) else [found]
    if len(runs) != 1 or not isinstance(runs[0], dict):
        message = f"needed one object, got {len(runs)} entries; leave that of the run you mean"
        raise BaselineError(f"import '{where}': {message}")
    return runs[0]


def _form_of(run: Mapping[str, object], where: str) -> type[_Form]:
    for form in _FORMS:
        if form.signs <= run.keys():
            return form
    known = ", ".join(f"{form.tool} ({', '.join(sorted(form.signs))})" for form in _FORMS)
    message = f"of no known form, its keys are {', '.join(sorted(run)[:8]) or 'none'}"
    raise BaselineError(f"import '{where}': {message}; give a file of {known}")


def _counts_of(steps_by_accepted: Mapping[int, int], draft_tokens: int) -> StepCounts:
    """Counts from a histogram that leaves out what never happened."""
    longest = max((draft_tokens, *steps_by_accepted))
    histogram = (steps_by_accepted.get(accepted, 0) for accepted in range(longest + 1))
    return StepCounts.from_histogram(histogram, None)


def _figures_of(counts: StepCounts, draft_tokens: int) -> _Figures:
    """The figures of counts that hang together."""
    if counts.steps <= 0:
        raise InvalidMeasurementError("SPEC_DISABLED", f"{counts.steps} steps have drafted")
    if len(counts.position_counts) != draft_tokens:
        message = f"{len(counts.position_counts)} positions, needed {draft_tokens}"
        raise InvalidMeasurementError("SETTINGS_DIFFER", message)
    check_counts(counts, "the run")
    return _Figures(
        acceptance_length_tokens=counts.acceptance_length,
        acceptance_rate_frac=counts.acceptance_rate,
        position_frac=counts.marginal_acceptance,
    )


def _check_told(name: str, told: float, counted: float | None) -> None:
    if counted is not None and not math.isclose(told, counted, rel_tol=_AGREES_WITHIN_FRAC):
        message = f"spec_decode_{name} is {told}, by the counts it is {counted:.4g}"
        raise InvalidMeasurementError("FIGURES_DISAGREE", message)
