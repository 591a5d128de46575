"""Prompts as published datasets hold them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from specreg.datasets.prompts import Prompt


def rows_in(name: str, prompts: Sequence[Prompt]) -> list[dict[str, object]]:
    """Prompts as the rows of a dataset are published; of one turn, where a row holds no more."""
    spell: Mapping[str, Callable[[Prompt], dict[str, object]]] = {
        "sharegpt": lambda prompt: {
            "conversations": [{"from": "human", "value": turn} for turn in prompt.turns]
        },
        "humaneval": lambda prompt: {"task_id": prompt.id, "prompt": prompt.turns[0]},
        "mbpp": lambda prompt: {"task_id": prompt.id, "text": prompt.turns[0]},
        "gsm8k": lambda prompt: {"question": prompt.turns[0]},
        "genai-perf": lambda prompt: {"text": prompt.turns[0]},
    }

    def as_question(prompt: Prompt) -> dict[str, object]:
        return {"question_id": prompt.id, "category": prompt.category, "turns": prompt.turns}

    return [spell.get(name, as_question)(prompt) for prompt in prompts]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path
