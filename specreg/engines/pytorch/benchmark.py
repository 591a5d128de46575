"""Measure the reference engine without a server, and print a table by method and batch size.

    python -m specreg.engines.pytorch.benchmark --model TARGET --prompts FILE [--draft-model DRAFT]

The times are the engine's own, so a step's time divides into the draft's part and the target's.
Options that `main` doesn't define are those of `python -m specreg.engines.pytorch`.
"""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec

from specreg.core.errors import DatasetError
from specreg.engines.pytorch.options import SERVED_METHODS, exit_on_error, parse_options
from specreg.engines.pytorch.requests import ChatBody, DecodedStep, Job, build_job

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
FiguresByName = Mapping[str, float | None]
_NS_PER_S = 10**9
_NS_PER_MS = 10**6
_DIGITS = {"acceptance_length_tokens": 3, "acceptance_rate_frac": 4, "draft_ms": 3}
"""The digits after the point of some figures. All other figures have one digit."""
_NO_POWER = (
    "No power was measured: a GPU needs nvidia-ml-py, a processor needs RAPL counters that you may"
    " read."
)

Decode = Callable[[Sequence[Job]], Iterator[Mapping[int, DecodedStep]]]
"""Decodes a batch: yields the next step of all unfinished answers together, by the job's index."""


@dataclass(slots=True, kw_only=True)
class _Totals:
    """The sums over the batches that have been measured so far.

    Attributes:
        steps: the steps of all batches.
        later_steps: these steps without the first of each batch, which reads the prompts and
            drafts nothing.
        ttfts_ns: the time to first token of each request.
        itls_ns: the mean time between tokens of each request of two tokens or more.
        duration_ns: the time of all batches together.
        energy_j: the energy of all batches together.
    """

    steps: list[DecodedStep] = field(default_factory=list)
    later_steps: list[DecodedStep] = field(default_factory=list)
    ttfts_ns: list[int] = field(default_factory=list)
    itls_ns: list[float] = field(default_factory=list)
    duration_ns: int = 0
    energy_j: float = 0.0

    def measure_batch(
        self,
        decode: Decode,
        batch: Sequence[Job],
        clock: Callable[[], int],
        energy_j: Callable[[], float | None],
    ) -> None:
        """Decode one batch, and add its steps, times and energy."""
        start_j = energy_j() or 0.0
        start_ns = clock()
        first_ns = start_ns
        end_ns = start_ns
        end_j = start_j
        tokens: dict[int, int] = {}
        for number, steps in enumerate(decode(batch)):
            # The clock is read before anything else, so that this loop's own work isn't timed.
            end_ns = clock()
            end_j = energy_j() or 0.0
            self.steps += steps.values()
            if number == 0:
                first_ns = end_ns
            else:
                self.later_steps += steps.values()
            for index, step in steps.items():
                answer_tokens = tokens.get(index, 0) + len(step.token_ids)
                tokens[index] = answer_tokens
                # An answer of one token has no time between tokens.
                if step.finish_reason is not None and answer_tokens > 1:
                    itl_ns = (end_ns - first_ns) / (answer_tokens - 1)
                    self.itls_ns.append(itl_ns)

        self.ttfts_ns += [first_ns - start_ns] * len(tokens)
        self.duration_ns += end_ns - start_ns
        self.energy_j += end_j - start_j


def measure_batches(
    decode: Decode,
    jobs: Sequence[Job],
    batch_requests: int,
    clock: Callable[[], int] = time.monotonic_ns,
    energy_j: Callable[[], float | None] = lambda: None,
) -> FiguresByName:
    """Decode jobs in batches and return the figures by their names in `COLUMNS`.

    TTFT is the time from the start of a batch to a request's first step. ITL is
    (last - first) / (N - 1) of a request of N tokens, whose first step emits one. AL is 1 plus the
    accepted drafts per step that drafted. The times of draft and target are means over the steps of
    a batch after its first. Power is the devices' energy over the time of all batches.

    Args:
        decode: answers the jobs of one batch.
        jobs: at least one.
        batch_requests: how many jobs are decoded at once, 1 or more.
        clock: monotonic, in nanoseconds.
        energy_j: a counter of the energy that the devices used; None if there is none.
    """
    totals = _Totals()
    for start in range(0, len(jobs), batch_requests):
        batch = jobs[start : start + batch_requests]
        totals.measure_batch(decode, batch, clock, energy_j)
    seconds = totals.duration_ns / _NS_PER_S
    emitted_tokens = sum(len(step.token_ids) for step in totals.steps)

    # Steps that drafted nothing, such as the first of each request, have no acceptance.
    drafting = [step for step in totals.steps if step.drafted]
    accepted = sum(step.accepted for step in drafting)
    drafted = sum(step.drafted for step in drafting)
    acceptance_length_tokens = None
    if drafting:
        acceptance_length_tokens = 1 + accepted / len(drafting)
    acceptance_rate_frac = None
    if drafted:
        acceptance_rate_frac = accepted / drafted
    power_w = None
    if totals.energy_j > 0:
        power_w = totals.energy_j / seconds
    draft_times_ns = [step.draft_ns for step in totals.later_steps]
    target_times_ns = [step.target_ns for step in totals.later_steps]
    return {
        "ttft_p50_ms": _average_ms(statistics.median, totals.ttfts_ns),
        "itl_p50_ms": _average_ms(statistics.median, totals.itls_ns),
        "throughput_tokens_per_s": emitted_tokens / seconds,
        "acceptance_length_tokens": acceptance_length_tokens,
        "acceptance_rate_frac": acceptance_rate_frac,
        "draft_ms": _average_ms(statistics.mean, draft_times_ns),
        "target_ms": _average_ms(statistics.mean, target_times_ns),
        "power_w": power_w,
    }


def _average_ms(
    average: Callable[[Sequence[float]], float], times_ns: Sequence[float]
) -> float | None:
    """Return an average of times in milliseconds; None if there are no times."""
    if not times_ns:
        return None
    return average(times_ns) / _NS_PER_MS


def render_table(rows: Sequence[tuple[str, int, FiguresByName]]) -> str:
    """Render a Markdown table of rows (method, batch size, figures).

    If no row has a power, a sentence after the table says what is needed to measure it.
    """
    headings = ("method", "batch", *COLUMNS.values())
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for method, batch_requests, figures in rows:
        cells = [f"`{method}`", str(batch_requests)]
        for name, value in figures.items():
            cell = "–"
            if value is not None:
                digits = _DIGITS.get(name, 1)
                cell = f"{value:.{digits}f}"
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")

    if all(figures["power_w"] is None for *_, figures in rows):
        lines += ["", _NO_POWER]
    return "\n".join(lines)


def gpu_energy_j(devices: Sequence[str]) -> Iterator[float]:
    """Yield the energy in joules that GPUs have drawn since the first reading.

    A reading adds the present power times the time since the reading before. The driver's power is
    itself a mean over up to a second. Yields nothing without nvidia-ml-py.
    """
    import torch  # noqa: PLC0415 - it needs the extra

    energy_j = 0.0
    reading_ns = time.monotonic_ns()
    while find_spec("pynvml"):
        before_ns = reading_ns
        reading_ns = time.monotonic_ns()
        power_mw = sum(torch.cuda.power_draw(device) for device in devices)
        elapsed_s = (reading_ns - before_ns) / _NS_PER_S
        energy_j += power_mw / 1000 * elapsed_s
        yield energy_j


def cpu_energy_j(folder: Path = Path("/sys/class/powercap")) -> Iterator[float]:
    """Yield the energy in joules that a processor counted for its packages.

    It includes the energy of all other programs. A counter that is lower than before has wrapped
    around at its range, and is assumed to do so at most once between two readings. Yields nothing
    if no counter can be read.
    """
    # Zones of cores and memory are parts of a package's zone, and would be counted twice.
    zone_names = folder.glob("intel-rapl:*/name")
    zones = [name.parent for name in zone_names if "package" in name.read_text()]
    counters = [zone / "energy_uj" for zone in zones]
    before_uj = [0] * len(zones)
    wrapped_uj = 0

    # Many kernels let only root read these counters, because they can reveal what is computed.
    while counters and all(os.access(counter, os.R_OK) for counter in counters):
        reading_uj = [int(counter.read_text()) for counter in counters]
        for zone, zone_uj, zone_before_uj in zip(zones, reading_uj, before_uj, strict=True):
            if zone_uj < zone_before_uj:
                range_uj = int((zone / "max_energy_range_uj").read_text())
                wrapped_uj += range_uj
        before_uj = reading_uj
        total_uj = sum(reading_uj) + wrapped_uj
        yield total_uj / 10**6


class _Prompt(msgspec.Struct):
    """A line of the file of prompts."""

    turns: Annotated[list[str], msgspec.Meta(min_length=1)]


def main() -> None:
    """Print the table of the methods and batch sizes that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch.benchmark")
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help="JSON lines; the first of `turns` is used")
    add("--draft-model", help="for the method draft_model")
    add("--batch", type=int, nargs="+", default=[1, 8], help="requests at once")
    add("--output-tokens", type=int, default=64, help="the most tokens of an answer")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    options, engine_arguments = parser.parse_known_args()
    if min(options.batch) < 1:
        parser.error("--batch must be 1 or more")
    rows = []
    with exit_on_error():
        for method in SERVED_METHODS:
            arguments = [*engine_arguments, "--method", method]
            if method == "draft_model":
                if not options.draft_model:
                    continue
                arguments += ["--draft-model", options.draft_model]
            engine_options = parse_options(arguments)
            for batch_requests in options.batch:
                figures = _measure_method(engine_options, options, batch_requests)
                rows.append((method, batch_requests, figures))

    print(render_table(rows))  # noqa: T201 - the table is the output


def _measure_method(
    engine_options: argparse.Namespace, options: argparse.Namespace, batch_requests: int
) -> FiguresByName:
    """Return the figures of one method and batch size.

    The models are loaded anew each time, so that a store of n-grams begins empty.
    """
    from specreg.engines.pytorch.decoding import decode, load_models  # noqa: PLC0415 - the extra
    from specreg.engines.pytorch.models import default_device  # noqa: PLC0415

    texts = _read_texts(options.prompts)
    models = load_models(engine_options)
    jobs = []
    for seed, text in enumerate(texts):
        chat = ChatBody(
            messages=[{"role": "user", "content": text}],
            max_tokens=options.output_tokens,
            temperature=options.temperature,
            seed=seed,
        )
        jobs.append(build_job(chat, models.tokenizer, engine_options.context_tokens))

    # Warm up, because the first passes are slow. The prompt has one token, so that a store of
    # n-grams learns next to nothing from it.
    warm_up = Job(prompt=jobs[0].prompt[:1], output_cap_tokens=8)
    list(decode(models, [warm_up] * batch_requests))
    devices = engine_options.device or (default_device(),)
    readings_j = gpu_energy_j(devices)
    if devices == ("cpu",):
        readings_j = cpu_energy_j()
    return measure_batches(
        functools.partial(decode, models),
        jobs,
        batch_requests,
        energy_j=functools.partial(next, readings_j, None),
    )


def _read_texts(path: Path) -> list[str]:
    """Read the first turn of each line of a file.

    Raises:
        DatasetError: the file can't be read, is empty, or has a line that isn't a prompt.
    """
    try:
        # An empty file becomes an empty line, which msgspec refuses with its own words.
        lines = path.read_bytes().splitlines() or [b""]
        return [msgspec.json.decode(line, type=_Prompt).turns[0] for line in lines]
    except (OSError, msgspec.DecodeError) as error:
        message = f"prompts '{path}': {error}; give JSON lines with `turns`"
        raise DatasetError(message) from error


if __name__ == "__main__":
    main()
