"""SPEED-Bench: NVIDIA's columns, or `messages` as NeMo-Skills' script writes them.

Half of the published rows are references to their sources. Such a row begins with a placeholder,
alone or followed by a template that the source fills; the script of NeMo-Skills does that
(https://github.com/NVIDIA-NeMo/Skills, nemo_skills/dataset/speed-bench/prepare.py).
"""

import itertools

import msgspec

from specreg.core.errors import DatasetError
from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt

_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_REMEDY = (
    "NVIDIA publishes the row as a reference; fill it with the script of docs/datasets.md and"
    " give what that writes with --from"
)

_TEMPLATES = {
    "cnn_dailymail": ("{article}",),
    "livecodebench": ("{question}", "{starter_code}"),
    "code_contests": ("{question}",),
    "opus-100": ("{question}",),
    "RoleBench": ("{role_name}", "{role_description_and_catchphrases}"),
    # These are written anew as a whole; braces in them are their own.
    **dict.fromkeys(("BAMBOO", "hle", "mt-bench-101", "ChatRAG", "MMLU-Pro", "CoSER"), ()),
    **dict.fromkeys(("stackselect", "textsort"), ()),
}
"""What a source fills into the templates of its rows, by a part of the row's `source`."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says."""

    role: str
    content: str


class SpeedRow(Row, frozen=True, kw_only=True):
    """A prompt.

    Attributes:
        question_id: its identifier.
        category: one of eleven, or the entropy of its answers.
        turns: what the user says; messages: the same as NeMo-Skills writes it.
        source: the dataset that it is taken from, a hub id or an address.
    """

    question_id: str
    category: str
    turns: tuple[str, ...] | None = None
    messages: tuple[Message, ...] | None = None
    source: str = ""

    def prompt(self, number: int) -> Prompt:  # noqa: ARG002 - it has an id
        """The prompt."""
        turns = self.turns
        if self.messages is not None:
            turns = tuple(one.content for one in self.messages if one.role == "user")
        if turns is None:
            raise DatasetError(f"turns is missing; a row of 'speed-bench' needs {FORM.needs}")
        for place, turn in enumerate(turns, 1):
            _check_turn(turn, f"prompt '{self.question_id}', turn {place}", self.source)
        return Prompt(id=self.question_id, category=self.category, turns=turns)


def _check_turn(turn: str, subject: str, source: str) -> None:
    if turn.lstrip().startswith(_PLACEHOLDER):
        raise DatasetError(f"{subject}: a placeholder ('{_PLACEHOLDER} …'); {_REMEDY}")
    left = next((field for field in _fields_of(source) if field in turn), None)
    if left is not None:
        raise DatasetError(f"{subject}: the template's {left} was never filled; {_REMEDY}")


def _fields_of(source: str) -> tuple[str, ...]:
    """What a row of a source must not hold; of a source that we don't know, nothing of any."""
    for part, fields in _TEMPLATES.items():
        if part.lower() in source.lower():
            return fields
    return tuple(dict.fromkeys(itertools.chain(*_TEMPLATES.values())))


FORM = RowForm(
    name="speed-bench",
    row=SpeedRow,
    needs="question_id, category and turns (a list of texts) or messages (of role and content)",
)
