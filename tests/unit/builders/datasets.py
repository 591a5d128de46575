"""Prompts as published datasets hold them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from specreg.datasets.prompts import Prompt


def rows_in(name: str, prompts: Sequence[Prompt]) -> list[dict[str, object]]:
    """Prompts as the rows of a dataset are published; of one turn, where a row holds no more."""
    spell: Mapping[str, Callable[[Prompt], dict[str, object]]] = {
        "sharegpt": lambda one: {
            "conversations": [{"from": "human", "value": turn} for turn in one.turns]
        },
        "humaneval": lambda one: {"task_id": one.id, "prompt": one.turns[0]},
        "mbpp": lambda one: {"task_id": one.id, "text": one.turns[0]},
        "gsm8k": lambda one: {"question": one.turns[0]},
        "genai-perf": lambda one: {"text": one.turns[0]},
    }

    def as_question(one: Prompt) -> dict[str, object]:
        return {"question_id": one.id, "category": one.category, "turns": one.turns}

    return [spell.get(name, as_question)(one) for one in prompts]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path
