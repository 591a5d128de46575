"""Write requests to a server, and parse the events of its answers and its counters."""

import collections
import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specreg.acceptance.record import Copies, Counters, Source, StepCounts
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.address import Address
from specreg.core.errors import InvalidMeasurementError, ServerAnswerError
from specreg.core.files import UNREADABLE
from specreg.core.http import MAX_ANSWER_BYTES, Count, Histogram, ShortText
from specreg.core.server_words import (
    describe_error,
    describe_error_value,
    find_error,
    is_error,
    is_json,
    quote,
)


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat, ready for JSON."""

    role: Literal["user", "assistant"]
    content: str


class Form(StrEnum):
    """How a prompt reaches the model: through its chat template, or as it is."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """The settings of an answer: its length and its sampling.

    Attributes:
        output_cap_tokens: the most tokens of the answer.
        temperature: 0 is greedy.
        top_p: the likeliest tokens that have this probability together may be drawn, 0..1.
        top_k: how many of the likeliest tokens may be drawn; None for all.
        ignore_eos: True if the answer goes on to the cap, whatever the model generates.
        seed: the seed of the random numbers; None for the server's own.
        stops: the texts at which the answer ends.
    """

    output_cap_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    ignore_eos: bool = False
    seed: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(AnswerSettings):
    """A request to a model.

    Attributes:
        model: the name that the model is served under.
        form: the form of the prompt: `messages` as a chat, or joined to one text without a
            template.
        messages: the conversation so far, which ends with the user; empty if `token_ids` are given.
        token_ids: the prompt as ids instead of messages; `form` is then `COMPLETIONS`.
        chat_template_args: arguments of the model's chat template, as pairs.
    """

    model: str
    form: Form = Form.CHAT
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    chat_template_args: tuple[tuple[str, object], ...] = ()

    @property
    def text(self) -> str:
        """All messages as one text."""
        return "".join(message.content for message in self.messages)

    @property
    def openai_path(self) -> str:
        """The path of OpenAI-like servers for the form of the prompt."""
        if self.form is Form.CHAT:
            return "/v1/chat/completions"
        return "/v1/completions"

    @property
    def openai_prompt(self) -> dict[str, object]:
        """The prompt for an OpenAI-like server: a chat, or ids or a text to complete."""
        if self.form is Form.COMPLETIONS:
            return {"prompt": self.token_ids or self.text}
        prompt: dict[str, object] = {"messages": self.messages}
        if self.chat_template_args:
            prompt["chat_template_kwargs"] = dict(self.chat_template_args)
        return prompt


ParseEvent = Callable[[bytes], StreamEvent]
"""Decodes the events of one answer. They must come in order, because some servers send totals.

It raises an `InvalidMeasurementError` for an event that can't be read (`EVENT_UNREADABLE`), is an
error (`SERVER_ERROR`), has counts that contradict each other (`COUNTS_DISAGREE`), or doesn't fit
the events before it (`STREAM_UNRECOGNISED`).
"""


NeutralValues = tuple[tuple[str, float], ...]
"""Names of sampling parameters, each with the value that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What a client has to know about a server. It can be sent to a client in another process.

    Attributes:
        address: where it answers.
        model: the name that the model is served under.
        engine: the name of the engine, one of `ENGINES`.
        refused: the neutral values that the server refuses, so that they aren't sent.
    """

    address: Address
    model: str
    engine: str
    refused: NeutralValues = ()

    def without_refused(self, body: Body) -> Body:
        """Return a body without the neutral values that the server refuses.

        A value that the case sets is sent, so that the server's refusal of it shows.
        """
        if not self.refused:
            return body
        return {name: value for name, value in body.items() if (name, value) not in self.refused}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The field that the events of all servers share: an event may report an error."""

    error: object = None


EventT = TypeVar("EventT", bound=Event)
_FAILED = frozenset({"abort", "error", "cancelled"})
"""The finish reasons of an answer that the server aborted."""


def decode_event(decoder: msgspec.json.Decoder[EventT], event: bytes) -> EventT:
    """Decode an event in a server's own form.

    An error without a field `error` isn't noticed here: it decodes as an empty event. So a caller
    that gets an empty event has to call `check_no_error`.

    Raises:
        InvalidMeasurementError: `EVENT_UNREADABLE`.
        ServerAnswerError: the event is an error. The message has the server's words.
    """
    try:
        decoded = decoder.decode(event)
    except UNREADABLE as error:
        check_no_error(event)
        fault = f"{error}, in: {quote(event)}"
        raise InvalidMeasurementError("EVENT_UNREADABLE", fault=fault) from error

    if decoded.error is not None and is_error(decoded.error):
        words = describe_error_value(decoded.error)
        raise ServerAnswerError(words.text, words.status)
    return decoded


def check_no_error(answer: bytes) -> None:
    """Check that an answer in JSON isn't an error.

    Raises:
        ServerAnswerError: it is an error. The message has the server's words.
    """
    words = find_error(answer)
    if words is not None:
        raise ServerAnswerError(words.text, words.status)


def check_ended_well(finish_reason: str, event: bytes) -> None:
    """Check that the server didn't abort an answer.

    Raises:
        ServerAnswerError: the server aborted it. The message has its words, or quotes the event.
    """
    if finish_reason in _FAILED:
        words = find_error(event)
        quotation = words.text if words is not None else quote(event)
        raise ServerAnswerError(f"{finish_reason}: {quotation}")


Channels = tuple[str, str, str]
"""What an event adds to the text of the answer, to its thought (the model's reasoning), and to
everything else that the server generates; see `StreamEvent`."""

_THOUGHT_KEYS = frozenset({"reasoning", "reasoning_content", "thinking"})
"""vLLM uses `reasoning`, SGLang and older vLLM `reasoning_content`, and some servers use both."""


def channels_of(delta: Mapping[str, object]) -> Channels:
    """Split the content of a chat's delta into channels, by the field names that servers use.

    An unknown field is kept as it is, so that answers that differ only in it count as different.
    """
    content = delta.get("content")

    # Nearly every delta of most servers has only a text, so a fast way for such deltas comes first.
    # The client must read events faster than servers send them, or it would measure its own speed.
    if len(delta) == 1 and isinstance(content, str):
        return content, "", ""
    text = ""
    thought = ""
    unknown_fields: dict[str, object] = {}
    for name, value in delta.items():
        # Servers send empty fields and the role in each delta. Neither adds to the answer.
        if not value or name == "role":
            continue
        if name == "content" and isinstance(value, str):
            text = value
        elif name in _THOUGHT_KEYS and isinstance(value, str):
            # Some servers send the same piece of a thought under two names.
            if value != thought:
                thought += value
        elif name == "content" and isinstance(value, list):
            text, parts_thought, unknown_parts = _channels_of_parts(value)
            thought += parts_thought
            if unknown_parts:
                unknown_fields[name] = unknown_parts
        else:
            unknown_fields[name] = value

    extra_json = ""
    if unknown_fields:
        extra_json = msgspec.json.encode(unknown_fields).decode()
    return text, thought, extra_json


def _channels_of_parts(parts: Sequence[object]) -> tuple[str, str, list[str]]:
    """Return the text and the thought in a list of parts, and each unknown part as JSON."""
    text = ""
    thought = ""
    unknown_parts = []
    for part in parts:
        part_text, part_thought, part_json = _channels_of_part(part)
        text += part_text
        thought += part_thought
        if part_json:
            unknown_parts.append(part_json)

    return text, thought, unknown_parts


def _channels_of_part(part: object) -> Channels:
    """Return what one part of a content adds to each channel."""
    if isinstance(part, str):
        return part, "", ""
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "text" and isinstance(value, str):
                # A part of a thought may also have the key `text`. Then its type decides.
                if part.get("type") in _THOUGHT_KEYS:
                    return "", value, ""
                return value, "", ""
            if name in _THOUGHT_KEYS and isinstance(value, str):
                return "", value, ""
            # A thought may consist of parts itself.
            if name in _THOUGHT_KEYS and isinstance(value, list):
                thoughts = []
                for inner_part in value:
                    inner_text, inner_thought, _ = _channels_of_part(inner_part)
                    thoughts.append(inner_text + inner_thought)
                return "", "".join(thoughts), ""

    part_json = msgspec.json.encode(part).decode()
    return "", "", part_json


class _Choice(msgspec.Struct, frozen=True):
    """What a chunk adds: `delta` in a chat, `text` in a completion."""

    delta: dict[str, object] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: ShortText | None = None


class _Usage(msgspec.Struct, frozen=True, gc=False):
    completion_tokens: Count
    prompt_tokens: Count | None = None


class SpecTokensDetails(msgspec.Struct, frozen=True):
    """SGLang's record of the drafts of an answer, by the names of 0.5.13 and newer.

    Entry j of the histogram is the number of steps that accepted j drafts. It ends at the most
    drafts that a step accepted. The acceptance length that SGLang computes isn't used: it counts
    the prefill's token, and leaves out the tokens that the output cap cuts off. The counts have
    neither fault.
    """

    spec_correct_drafts_histogram: Histogram = ()
    spec_num_correct_drafts: Count | None = None
    spec_num_proposed_drafts: Count | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The counts of the steps; None if there were none, or if they aren't in the answer.

        Raises:
            InvalidMeasurementError: `COUNTS_DISAGREE`, the number of accepted drafts contradicts
                the histogram, or the number of proposed drafts is missing. Then this version of
                SGLang means something else by these names.
        """
        histogram = self.spec_correct_drafts_histogram
        proposed = self.spec_num_proposed_drafts
        if not sum(histogram):
            return None
        counts = StepCounts.from_histogram(histogram, proposed)
        accepted = self.spec_num_correct_drafts
        if accepted != counts.accepted or proposed is None:
            raise InvalidMeasurementError(
                "HISTOGRAM_DISAGREES",
                histogram=list(histogram),
                accepted=accepted,
                proposed=proposed,
            )

        return counts


class _Extension(msgspec.Struct, frozen=True):
    spec_tokens_details: SpecTokensDetails | None = None


class _Speculation(msgspec.Struct, frozen=True):
    acceptance_histogram: Histogram
    num_draft_tokens: Count


class RequestMetrics(msgspec.Struct, frozen=True):
    """The metrics that vLLM adds to an answer, from 0.29 on."""

    speculative_decoding: _Speculation | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The counts of the steps; None if they aren't in the answer."""
        speculation = self.speculative_decoding
        if speculation is None:
            return None
        return StepCounts.from_histogram(
            speculation.acceptance_histogram, speculation.num_draft_tokens
        )


class _Event(Event, frozen=True, kw_only=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    metrics: RequestMetrics | None = None
    sglext: _Extension | None = None

    @property
    def counts(self) -> StepCounts | None:
        """The counts of the answer's steps, by vLLM's field or by SGLang's; None without either."""
        if self.metrics is not None:
            return self.metrics.counts
        if self.sglext is not None and self.sglext.spec_tokens_details is not None:
            return self.sglext.spec_tokens_details.counts
        return None


_decoder = msgspec.json.Decoder(_Event)
_EMPTY_CHOICE = _Choice()
_MAX_COUNT = 2**48
"""The largest count that a sample may have; the limit of `Count` too. A sample is a float, which
holds every whole number up to 2**53."""
FINISH_LABEL = "finished_reason"
"""The label by which engines count the requests that ended."""
_POSITION = re.compile(r"[0-9]{1,3}")
_MAX_PAGE_CHARACTERS = 4 * 2**20
"""The longest page of metrics that is read: about 70 times the page of one vLLM engine."""
_MAX_LINE_CHARACTERS = 4 * 2**10
"""The longest line of a page: the time to parse a line grows with the square of its length."""
_MAX_LINES = 60_000
"""The most lines of a page. Parsing so many takes about a second; a vLLM engine has about 700."""


class MetricsPage:
    """A page of metrics in Prometheus's text format.

    A page that would take more than a few seconds to parse is refused beforehand.

    Attributes:
        samples: the samples, in the order of the page.
        names: the names of the samples, in the order of the page.

    Raises:
        InvalidMeasurementError: `METRICS_UNREADABLE`, the text isn't such a page.
    """

    def __init__(self, text: str, *, path: str = "/metrics") -> None:
        self._path = path
        self._check_size(text)

        try:
            families = list(text_string_to_metric_families(text))
        # The library documents no errors, and doesn't catch those of its own parsing, such as an
        # OverflowError for a time of 400 digits.
        except Exception as error:
            fault = f"{path} is not a Prometheus page ({error})"
            raise InvalidMeasurementError("METRICS_UNREADABLE", fault=fault, path=path) from error

        self.samples: list[Sample] = []
        for family in families:
            self.samples += family.samples

        # A dictionary keeps the order of the names, which a set wouldn't.
        self.names = dict.fromkeys(sample.name for sample in self.samples)

    def _check_size(self, text: str) -> None:
        """Check that the parser won't take longer than a few seconds.

        Raises:
            InvalidMeasurementError: `METRICS_UNREADABLE`, the page or a line is too long, or
                there are too many lines.
        """
        self._check_most(len(text), _MAX_PAGE_CHARACTERS, "characters")
        # Lines without a sample take time too, so all of them count.
        lines = text.split("\n")
        self._check_most(len(lines), _MAX_LINES, "lines")
        self._check_most(max(map(len, lines)), _MAX_LINE_CHARACTERS, "characters in a line")

    def _check_most(self, size: int, limit: int, unit: str) -> None:
        if size > limit:
            fault = f"{self._path} has {size:,} {unit}, and {limit:,} are read at most"
            raise InvalidMeasurementError("METRICS_UNREADABLE", fault=fault, path=self._path)

    def require(self, *names: str, advice: str) -> None:
        """Check that the page has samples of all these names.

        Args:
            advice: what the user has to do if samples of a name are missing.

        Raises:
            InvalidMeasurementError: `COUNTER_MISSING`.
        """
        missing = [name for name in names if name not in self.names]
        if missing:
            there = [name for name in names if name in self.names]
            raise InvalidMeasurementError(
                "COUNTER_MISSING",
                missing=", ".join(missing),
                path=self._path,
                there=", ".join(there) or "none of them",
                advice=advice,
            )

    def total(self, name: str) -> int:
        """Sum up all samples of a name; 0 if there are none.

        Raises:
            InvalidMeasurementError: `METRICS_UNREADABLE`, a sample isn't a count.
        """
        return sum(self._count(sample) for sample in self.samples if sample.name == name)

    def amount(self, name: str) -> float | None:
        """Sum up all samples of a name; None if there are none, or one of them is no amount."""
        values = [sample.value for sample in self.samples if sample.name == name]
        if not values or not all(0 <= value < math.inf for value in values):
            return None
        return sum(values)

    def copies(self, *names: str, labels: Container[str] = ()) -> Mapping[str, int]:
        """Return how many equal series each of these counters has, by its name.

        Which label tells the ranks of a server apart isn't known, so each label is tried, and all
        of them together.

        Args:
            names: the names of the counters.
            labels: the labels whose values are counters of their own, such as a draft position.

        Returns:
            1 for each counter if no label has equal series for all of its values, and 1 for a
            counter without samples.
        """
        samples = [sample for sample in self.samples if sample.name in names]
        candidates = {label for sample in samples for label in sample.labels if label not in labels}
        trials = [candidates, *({label} for label in candidates)]
        series = [_equal_series(samples, ignored) for ignored in trials]
        most_series = max(series, key=lambda numbers: sum(numbers.values()))
        return collections.defaultdict(lambda: 1, most_series)

    def by_position(self, name: str, label: str) -> Counter[int]:
        """Sum up the samples of a name for each draft position.

        The position, from 0, is the value of `label`.

        Raises:
            InvalidMeasurementError: `METRICS_UNREADABLE`, a sample isn't a count.
        """
        counts = Counter[int]()
        for sample in self.samples:
            if sample.name != name:
                continue
            position = sample.labels.get(label, "")
            if _POSITION.fullmatch(position):
                counts[int(position)] += self._count(sample)

        return counts

    def _count(self, sample: Sample) -> int:
        # This refuses NaN and infinity too.
        is_in_range = 0 <= sample.value <= _MAX_COUNT
        if not (is_in_range and float(sample.value).is_integer()):
            fault = f"{sample.name} is {sample.value}, which is no count"
            raise InvalidMeasurementError("METRICS_UNREADABLE", fault=fault, path=self._path)
        return int(sample.value)


def _equal_series(samples: Sequence[Sample], ignored: Container[str]) -> Mapping[str, int]:
    """Return how many samples of each name differ in the ignored labels alone.

    Returns:
        Nothing if any of their values differ, or if a name has different numbers of samples.
    """
    values_by_labels: dict[tuple[str, object], list[float]] = {}
    for sample in samples:
        kept = frozenset(pair for pair in sample.labels.items() if pair[0] not in ignored)
        values_by_labels.setdefault((sample.name, kept), []).append(sample.value)
    series: dict[str, int] = {}
    for (name, _), values in values_by_labels.items():
        is_equal = len(set(values)) == 1
        if not is_equal or series.setdefault(name, len(values)) != len(values):
            return {}

    return series


class WireFormat:
    """Writes requests to a server and parses its answers and counters, by default like OpenAI's.

    Subclasses hold no state.

    Attributes:
        request_source: the source of the acceptance in each answer; None if answers have none.
        counters_source: the source of the acceptance in the counters; None if they have none.
        counters_path: the path of the counters; None if the server has none.
        counters_since: the first version of the engine whose counters are right; empty if those of
            all versions are.
        counters_flag: what the server must be started with to have counters: a flag, a setting, or
            a phrase that ends the sentence "start the server with …".
        ended_counter: the counter of the requests that ended; empty if there is none.
        further_counters: the counters that metrics are calculated from, besides those of the
            speculation. The key is the name that the rows of `METRICS` use, which is the same for
            all engines and ends in the unit; the value is the name of the samples on the page.
        ends_at_texts: True if a request can name texts at which its answer ends.
        accepts_only_text: True if each prompt must be a text, because the server takes neither a
            chat nor token ids.
        has_token_ids: True if chunks can have the ids of their tokens. If not, each chunk has the
            usage so far, its own tokens included.
        neutral_sampling: the sampling parameters for which the server may have defaults of its own,
            such as those of the model's generation_config.json, each with the value that changes
            nothing. They are sent with each request, so that only the case decides.
    """

    request_source: ClassVar[Source | None] = None
    counters_source: ClassVar[Source | None] = None
    counters_path: ClassVar[str | None] = None
    counters_since: ClassVar[str] = ""
    counters_flag: ClassVar[str] = "its counters enabled"
    ended_counter: ClassVar[str] = ""
    further_counters: ClassVar[Mapping[str, str]] = {}
    ends_at_texts: ClassVar[bool] = True
    accepts_only_text: ClassVar[bool] = False
    has_token_ids: ClassVar[bool] = False
    neutral_sampling: ClassVar[Mapping[str, float]] = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }

    def path(self, ask: Ask) -> str:
        """Return the path to POST a request to."""
        return ask.openai_path

    def sampling(self, settings: AnswerSettings) -> dict[str, object]:
        """Return the parameters of sampling. All servers have the same names for them."""
        fields: dict[str, object] = {"temperature": settings.temperature, **self.neutral_sampling}
        if settings.top_p < 1:
            fields["top_p"] = settings.top_p
        if settings.top_k is not None:
            fields["top_k"] = settings.top_k
        return fields

    def openai_settings(self, settings: AnswerSettings) -> dict[str, object]:
        """Return the settings of an answer by the names of OpenAI-like servers."""
        fields = {"max_tokens": settings.output_cap_tokens, **self.sampling(settings)}
        if settings.ignore_eos:
            fields["ignore_eos"] = True
        if settings.seed is not None:
            fields["seed"] = settings.seed
        if settings.stops:
            fields["stop"] = settings.stops
        return fields

    def body(self, ask: Ask) -> Body:
        """Return the body of a request whose answer has token counts and usage.

        The answer also has the acceptance if the server adds it to each answer by itself.
        """
        stream_options = {"include_usage": True}
        body: dict[str, object] = {
            "model": ask.model,
            "stream": True,
            "stream_options": stream_options,
            **ask.openai_prompt,
            **self.openai_settings(ask),
        }

        # A chunk's tokens are counted by their ids, or else by how much the usage has grown.
        if self.has_token_ids:
            body["return_token_ids"] = True
        else:
            stream_options["continuous_usage_stats"] = True

        return body

    def new_parser(self, ask: Ask) -> ParseEvent:
        """Return a parser for the answer to a request.

        By default it parses OpenAI's events and the fields that vLLM and SGLang add to them. The
        tokens of a chunk are counted by their ids, or else by how much the usage has grown. One of
        the last chunks has no choices, but the usage and the acceptance of the answer.
        """
        del ask
        tokens_so_far = 0

        def parse_event(event: bytes) -> StreamEvent:
            nonlocal tokens_so_far

            # Refuse an error, or an answer that the server gave up.
            parsed = decode_event(_decoder, event)
            if parsed.choices:
                choice = parsed.choices[0]
            else:
                choice = _EMPTY_CHOICE
                check_no_error(event)

            if choice.finish_reason is not None:
                check_ended_well(choice.finish_reason, event)

            # Count the tokens that the event adds.
            usage_tokens = None
            prompt_tokens = None
            new_tokens = 0
            if parsed.usage is not None:
                usage_tokens = parsed.usage.completion_tokens
                prompt_tokens = parsed.usage.prompt_tokens
                new_tokens = usage_tokens - tokens_so_far
                tokens_so_far = usage_tokens

            token_ids = choice.token_ids or ()
            if self.has_token_ids:
                new_tokens = len(token_ids)

            # A completion has its text in the choice, a chat in the delta of the choice.
            text = choice.text or ""
            thought = ""
            extra_json = ""
            if choice.delta:
                text, thought, extra_json = channels_of(choice.delta)
            return StreamEvent(
                tokens=new_tokens,
                text=text,
                thought=thought,
                extra_json=extra_json,
                token_ids=token_ids,
                finish_reason=choice.finish_reason,
                usage_tokens=usage_tokens,
                acceptance=parsed.counts,
                prompt_tokens=prompt_tokens,
            )

        return parse_event

    def parse_counters(self, page: str, *, speculates: bool = True) -> Counters:
        """Parse a page of counters: those of the speculation, and the further ones.

        Args:
            speculates: False for a server without speculation, whose page needn't have counters of
                it.

        Raises:
            InvalidMeasurementError: the page lacks the counters of the speculation, or can't be
                read.
        """
        parsed = MetricsPage(page, path=self.counters_path or "/metrics")
        counters = self.count_steps(parsed) if speculates else self._count_requests(parsed)

        # A counter that the page lacks, or whose value is no amount, is left out.
        further = {}
        series = {}
        for name, sample_name in self.further_counters.items():
            amount = parsed.amount(sample_name)
            if amount is not None:
                further[name] = amount
                series[name] = parsed.copies(sample_name)[sample_name]

        copies = dataclasses.replace(counters.copies, further=series)
        return dataclasses.replace(counters, further=further, copies=copies)

    def count_steps(self, page: MetricsPage) -> Counters:
        """Return the counters of the speculation, without the further ones.

        Raises:
            InvalidMeasurementError: the page has no such counters, or one of them isn't a count.
        """
        raise InvalidMeasurementError(
            "COUNTER_MISSING",
            missing=f"counters of steps of {type(self).__name__}",
            path=self.counters_path,
            there=f"{len(page.samples)} samples and none of them",
            advice="judge this engine by its requests",
        )

    def _count_requests(self, page: MetricsPage) -> Counters:
        """Return the counters of a server that doesn't speculate, without the further ones."""
        name = self.ended_counter
        if not name:
            return Counters(steps=0)
        series = page.copies(name, labels=(FINISH_LABEL,))
        return Counters(steps=0, requests=page.total(name), copies=Copies(requests=series[name]))


Scores = tuple[float, ...]
AnswerT = TypeVar("AnswerT")
FormT = TypeVar("FormT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[AnswerT]):
    """A request that isn't streamed.

    Attributes:
        path: where to POST it.
        body: what to POST.
        parse: parses the answer. It raises an `InvalidMeasurementError` for one that can't be used
            (`ANSWER_UNREADABLE`), is an error (`SERVER_ERROR`), or has counts that contradict each
            other (`COUNTS_DISAGREE`).
    """

    path: str
    body: Body
    parse: Callable[[bytes], AnswerT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """An answer in token ids.

    Attributes:
        prompt: the ids of the prompt.
        output: the ids of the answer, including the one that ends the text.
        counts: the counts of the steps; None if the answer doesn't have them.
        text: the answer as a string; None if the server doesn't send it.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    counts: StepCounts | None = None
    text: str | None = None


class TokenApi(ABC):
    """The calls of a server that takes and returns token ids, without a stream."""

    @abstractmethod
    def encode(self, ask: Ask) -> Call[tuple[int, ...]]:
        """Return a call for the ids of a prompt, including the ids of the chat template."""

    @abstractmethod
    def complete(
        self, model: str, ids: Sequence[int], settings: AnswerSettings
    ) -> Call[Transcript]:
        """Return a call that continues a text. Text and answer are in token ids."""

    @abstractmethod
    def score(self, model: str, ids: Sequence[int], candidates: Sequence[int]) -> Call[Scores]:
        """Return a call for the log-probabilities of candidates for the next token, in nats.

        If a server reports only the likeliest tokens, a candidate that isn't among them gets an
        upper bound of its log-probability.
        """


def decode_answer(answer: bytes, form: type[FormT]) -> FormT:
    """Decode an answer in a server's own form.

    Raises:
        InvalidMeasurementError: `ANSWER_UNREADABLE`.
        ServerAnswerError: the answer is an error. The message has the server's words.
    """
    check_no_error(answer)
    try:
        return msgspec.json.decode(answer, type=form)
    except UNREADABLE as error:
        raise unreadable(str(error), answer) from error


def unreadable(fault: str, answer: bytes) -> InvalidMeasurementError:
    """Return the error of an answer that can't be used, with the fault and a quotation."""
    return InvalidMeasurementError("ANSWER_UNREADABLE", fault=f"{fault}, in: {quote(answer)}")


DONE_EVENT = b"[DONE]"
_PREFIX = b"data:"
_COMMENT = b":"
_OTHER_FIELDS = (b"id:", b"retry:")
_MAX_STRAY_BYTES = 64 * 2**10


class EventSplitter:
    """Cuts a stream of bytes into events, usually one `data:` line each.

    A JSON object that spans several lines of data is one event. Lines that aren't a field of an
    event are kept, because they may be the server's words about an error; see `check_rest`. So are
    the comments since the last event, which some servers write their errors into.

    Attributes:
        _begun: a line whose end hasn't come yet.
        _held: the data of an object whose end hasn't come yet.
        _stray: the lines that belong to no event.
        _comments: the comments since the last event.
        _last: the data of the current event.
        _is_error: True if the server calls the current event an error.
    """

    def __init__(self) -> None:
        self._begun = bytearray()
        self._held = b""
        self._stray = bytearray()
        self._comments = bytearray()
        self._last = b""
        self._is_error = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that a piece completes, `[DONE]` included.

        Raises:
            InvalidMeasurementError: `EVENT_UNREADABLE`, a line or an object doesn't end within
                `MAX_ANSWER_BYTES`.
            ServerAnswerError: the server calls an event an error.
        """
        self._begun += piece
        lines: list[bytearray] = []

        # Without this condition, the whole of a long line would be searched after each piece.
        if b"\n" in piece:
            *lines, self._begun = self._begun.split(b"\n")
        if len(self._begun) + len(self._held) > MAX_ANSWER_BYTES:
            fault = f"a line has no end after {MAX_ANSWER_BYTES} bytes; is this a stream of events?"
            raise InvalidMeasurementError("EVENT_UNREADABLE", fault=fault)
        for line in lines:
            if line.startswith(_PREFIX):
                data = bytes(line[len(_PREFIX) :].strip())
                if self._held:
                    data = self._held + b"\n" + data
                    self._held = b""
                    is_whole = data.endswith(b"}") and is_json(data)
                else:
                    # An object in one line, as nearly all are, isn't parsed here: that would cost
                    # as much as decoding the event does.
                    is_whole = data.endswith(b"}") or not data.startswith(b"{")
                if not is_whole:
                    self._held = data
                    continue
            elif line or self._held or self._is_error:
                data = self._take_other_line(bytes(line.strip()))
                if not data:
                    continue
            else:
                # An empty line ends an event.
                self._last = b""
                continue
            self._take_data(data)
            yield data

    def _take_data(self, data: bytes) -> None:
        """Take the data of an event.

        Raises:
            ServerAnswerError: the server calls the event an error.
        """
        self._last = data
        if self._is_error:
            raise _error_event(data)
        # A comment before further events only kept the connection alive.
        if self._comments and data != DONE_EVENT:
            self._comments.clear()

    def _take_other_line(self, line: bytes) -> bytes:
        """Take a line without data: an empty line, a field of the event, or stray text.

        Returns:
            The data of an object that isn't whole, if the line is empty and so ends the object;
            otherwise nothing.

        Raises:
            ServerAnswerError: the line calls the current event an error, and the event's data has
                come already; or the line ends an object that isn't whole, after an earlier line has
                called this event an error.
        """
        if line.startswith(b"event:"):
            self._is_error = line.removeprefix(b"event:").strip().lower() == b"error"
            if self._is_error and self._last:
                raise _error_event(self._last)
        elif line and not line.startswith(_OTHER_FIELDS):
            kept = self._stray
            if line.startswith(_COMMENT):
                kept = self._comments
                line = line.removeprefix(_COMMENT).strip()
            # Only the beginning is kept: a server can send such lines forever, and the beginning is
            # enough to quote.
            if len(kept) < _MAX_STRAY_BYTES:
                kept += line + b"\n"
        elif not line:
            ended = self._held
            is_error = self._is_error
            self._is_error = False
            self._held = b""
            self._last = b""
            if is_error and ended:
                raise _error_event(ended)
            return ended
        return b""

    def check_rest(
        self, *, is_finished: bool, end: str = "the stream ended without a finish reason"
    ) -> None:
        """Check that what is left at the end of the stream is no error of the server.

        Args:
            is_finished: True if the answer is known to be whole, for instance by its finish reason.
                Stray text that isn't an error is then ignored.
            end: how the stream ended, if it isn't finished.

        Raises:
            ServerAnswerError: what is left is an error.
            InvalidMeasurementError: `EVENT_UNREADABLE`, the answer isn't finished, and stray text
                or a comment is left.
        """
        # A line without its end is data if it begins as data, and otherwise stray text.
        begun = bytes(self._begun.strip())
        data = self._held + begun.removeprefix(_PREFIX).strip()
        is_data = bool(self._held) or begun.startswith(_PREFIX)
        stray = bytes(self._stray)
        comments = bytes(self._comments)
        if begun.startswith(_COMMENT):
            comments += begun.removeprefix(_COMMENT).strip()
        elif not is_data:
            stray += begun

        if is_data and self._is_error:
            raise _error_event(data)
        for content in (data, stray, comments):
            check_no_error(content)
        if is_finished:
            return
        if stray.strip():
            fault = f"the answer is no stream of events: {quote(stray)}"
            raise InvalidMeasurementError("EVENT_UNREADABLE", fault=fault)
        if comments.strip():
            fault = f"{end}, after the comment: {quote(comments)}"
            raise InvalidMeasurementError("EVENT_UNREADABLE", fault=fault)


def _error_event(data: bytes) -> ServerAnswerError:
    words = describe_error(data)
    return ServerAnswerError(words.text, words.status)
