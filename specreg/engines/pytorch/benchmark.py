"""`python -m specreg.engines.pytorch.benchmark`: decodes prompts with each method, prints a table.

Without a server: the engine's own times, and what of a step is the draft's and what the target's.
Options that `main` doesn't have are those of `python -m specreg.engines.pytorch`.
"""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.core.errors import DatasetError
from specreg.engines.pytorch.__main__ import METHODS, exiting, parse_options
from specreg.engines.pytorch.requests import ChatBody, Job, Step, job_of

COLUMNS = {
    "ttft_p50_ms": "TTFT p50, ms",
    "itl_p50_ms": "ITL p50, ms",
    "throughput_tokens_per_s": "tokens/s",
    "acceptance_length_tokens": "AL",
    "acceptance_rate_frac": "A/D",
    "draft_ms": "draft, ms/step",
    "target_ms": "target, ms/step",
    "power_w": "power, W",
}
Figures = Mapping[str, float | None]
_NS_PER_S = 10**9
_NO_POWER = "No power: a GPU's takes nvidia-ml-py, a processor's RAPL counters that you may read."


def measure(
    decoded: Callable[[Sequence[Job]], Iterator[Mapping[int, Step]]],
    jobs: Sequence[Job],
    batch_requests: int,
    clock: Callable[[], int] = time.monotonic_ns,
    energy_j: Callable[[], float | None] = lambda: None,
) -> Figures:
    """Decode jobs, so many at once, and return by name of `COLUMNS` what was seen.

    TTFT is a request's first step since its batch began; ITL (last - first) / (N - 1) of a request
    of N tokens, whose first step has one; AL is 1 + A / S. Draft and target are the mean of the
    steps of a batch after its first. Power is the devices' energy over the time of all batches.
    """
    ttfts_ns, itls_ns, later, steps = list[int](), list[float](), list[Step](), list[Step]()
    whole_ns, taken_j = 0, 0.0
    for start in range(0, len(jobs), batch_requests):
        begun_j = ended_j = energy_j() or 0.0
        begun_ns = ended_ns = clock()
        first_ns, tokens = 0, dict[int, int]()
        for number, added in enumerate(decoded(jobs[start : start + batch_requests])):
            ended_ns, ended_j = clock(), energy_j() or 0.0
            steps += added.values()
            later += [*added.values()][: number > 0]  # all of a batch tell its time
            first_ns = first_ns or ended_ns
            for place, step in added.items():
                tokens[place] = tokens.get(place, 0) + len(step.token_ids)
                if step.finish_reason is not None and tokens[place] > 1:
                    itls_ns.append((ended_ns - first_ns) / (tokens[place] - 1))
        ttfts_ns += [first_ns - begun_ns] * len(tokens)
        whole_ns += ended_ns - begun_ns
        taken_j += ended_j - begun_j
    drafting, per_s = [step for step in steps if step.drafted], _NS_PER_S / whole_ns
    accepted, drafted = sum(one.accepted for one in drafting), sum(one.drafted for one in drafting)
    return {
        "ttft_p50_ms": _over_ms(statistics.median, ttfts_ns),
        "itl_p50_ms": _over_ms(statistics.median, itls_ns),
        "throughput_tokens_per_s": sum(len(step.token_ids) for step in steps) * per_s,
        "acceptance_length_tokens": 1 + accepted / len(drafting) if drafting else None,
        "acceptance_rate_frac": accepted / drafted if drafted else None,
        "draft_ms": _over_ms(statistics.mean, [step.draft_ns for step in later]),
        "target_ms": _over_ms(statistics.mean, [step.target_ns for step in later]),
        "power_w": taken_j * per_s if taken_j > 0 else None,
    }


def _over_ms(
    middle: Callable[[Sequence[float]], float], values_ns: Sequence[float]
) -> float | None:
    """The middle of some times in milliseconds, None where there are none."""
    return middle(values_ns) / 10**6 if values_ns else None


def render(rows: Sequence[tuple[str, int, Figures]]) -> str:
    """Render a table in Markdown: by method and batch, and why there is no power where none is."""
    lines = [f"| method | batch | {' | '.join(COLUMNS.values())} |", f"|{' --- |' * 10}"]
    for method, batch_requests, figures in rows:
        digits = {"acceptance_length_tokens": 3, "acceptance_rate_frac": 4, "draft_ms": 3}
        cells = (
            "–" if value is None else f"{value:.{digits.get(name, 1)}f}"
            for name, value in figures.items()
        )
        lines.append(f"| `{method}` | {batch_requests} | {' | '.join(cells)} |")
    silent = all(figures["power_w"] is None for *_, figures in rows)
    return "\n".join([*lines, *["", _NO_POWER] * silent])


def gpu_energy_j(devices: Sequence[str]) -> Iterator[float]:
    """Yield the joules that GPUs drew: their draw, a mean of up to a second, by the time since."""
    import torch  # noqa: PLC0415 - it needs the extra

    drawn, then_ns = 0.0, time.monotonic_ns()
    while find_spec("pynvml"):
        before_ns, then_ns = then_ns, time.monotonic_ns()
        drawn_mw = sum(torch.cuda.power_draw(one) for one in devices)
        drawn += drawn_mw / 1000 * (then_ns - before_ns) / _NS_PER_S
        yield drawn


def cpu_energy_j(folder: Path = Path("/sys/class/powercap")) -> Iterator[float]:
    """Yield the joules that a processor counts of its packages, whatever runs on it.

    A counter that got to its range began at 0 again, once at most between two readings.
    """
    names = [one for one in folder.glob("intel-rapl:*/name") if "package" in one.read_text()]
    counters = [one.with_name("energy_uj") for one in names]
    before_uj, wrapped_uj = [0] * len(counters), 0
    while counters and all(os.access(one, os.R_OK) for one in counters):
        now_uj = [int(one.read_text()) for one in counters]
        for one, now, before in zip(counters, now_uj, before_uj, strict=True):
            if now < before:
                wrapped_uj += int(one.with_name("max_energy_range_uj").read_text())
        before_uj = now_uj
        yield (sum(now_uj) + wrapped_uj) / 10**6


class _Prompt(msgspec.Struct):
    turns: Annotated[list[str], msgspec.Meta(min_length=1)]


def main() -> None:
    """Print the table of what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch.benchmark")
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help="JSON lines; the first of each's `turns`")
    add("--draft-model", help="for the method draft_model")
    add("--batch", type=int, nargs="+", default=[1, 8], help="requests at once")
    add("--output-tokens", type=int, default=64, help="the most of an answer")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    own, rest = parser.parse_known_args()
    if min(own.batch) < 1:
        parser.error("--batch is from 1 on")
    rows = []
    with exiting():
        for method in METHODS if own.draft_model else METHODS[:-1]:
            drafting = ("--draft-model", own.draft_model) if method == "draft_model" else ()
            options = parse_options((*rest, "--method", method, *drafting))
            rows += [(method, batch, _measure(options, own, batch)) for batch in own.batch]
    print(render(rows))  # noqa: T201 - what it is for


def _measure(options: argparse.Namespace, own: argparse.Namespace, batch: int) -> Figures:
    """The figures of a method and a batch, with models of their own: what learns begins anew."""
    from specreg.engines.pytorch.decoding import decode  # noqa: PLC0415 - these need the extra
    from specreg.engines.pytorch.models import default_device, load_models  # noqa: PLC0415

    try:
        lines = own.prompts.read_bytes().splitlines() or [b""]
        texts = [msgspec.json.decode(line, type=_Prompt).turns[0] for line in lines]
    except (OSError, msgspec.DecodeError) as error:
        message = f"prompts '{own.prompts}': {error}; give JSON lines with `turns`"
        raise DatasetError(message) from error
    models = load_models(options)
    chats = [
        ChatBody(
            messages=[{"role": "user", "content": text}],
            max_tokens=own.output_tokens,
            temperature=own.temperature,
            seed=seed,
        )
        for seed, text in enumerate(texts)
    ]
    jobs = [job_of(chat, models.tokenizer, options.context_tokens) for chat in chats]
    # The first passes are slow; a prompt of one token teaches a store next to nothing.
    warm_up = [Job(prompt=jobs[0].prompt[:1], output_cap_tokens=8)] * batch
    list(decode(models, warm_up))
    devices = options.device or (default_device(),)
    joules = cpu_energy_j() if devices == ("cpu",) else gpu_energy_j(devices)
    energy_j = functools.partial(next, joules, None)
    return measure(functools.partial(decode, models), jobs, batch, energy_j=energy_j)


if __name__ == "__main__":
    main()
