"""The reference engine's table, of scripted steps by a scripted clock."""

import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from specreg.engines.pytorch.benchmark import COLUMNS, cpu_energy_j, measure_batches, render_table
from specreg.engines.pytorch.requests import DecodedStep, Job
from tests.unit import builders

MS = 10**6
JOBS = tuple(Job(prompt=(5,), output_cap_tokens=6) for _ in range(3))


def step(tokens: int, drafted: int = 0, *, ends: bool = False) -> DecodedStep:
    """One that drafts for 2 ms and verifies for 7, and delivers so many tokens."""
    return DecodedStep(
        token_ids=(1,) * tokens,
        drafted=drafted,
        accepted=tokens - 1,
        finish_reason="stop" if ends else None,
        draft_ns=2 * MS if drafted else 0,
        target_ns=7 * MS,
    )


def decoded(jobs: Sequence[Job]) -> Iterator[Mapping[int, DecodedStep]]:
    """Answers of 6 and of 3 tokens, however many jobs: the odd ones are short."""
    odd = range(1, len(jobs), 2)
    even = range(0, len(jobs), 2)
    yield {index: step(1) for index in range(len(jobs))}
    yield {
        **{index: step(3, 3) for index in even},
        **{index: step(2, 3, ends=True) for index in odd},
    }
    yield {index: step(2, 2, ends=True) for index in even}


def test_the_figures_are_those_of_the_steps() -> None:
    """A clock of 10 ms a reading: one at a batch's start, one after each of its three steps."""
    ticks = itertools.count(step=10 * MS)
    joules = itertools.count(step=2.5)

    figures = measure_batches(decoded, JOBS, 2, lambda: next(ticks), lambda: next(joules))

    assert figures == {
        "ttft_p50_ms": 10.0,
        # (30 - 10) ms / 5 tokens; 10 ms / 2; and the third, which is alone, as the first.
        "itl_p50_ms": 4.0,
        # 6 + 3 + 6 tokens in two batches of 30 ms.
        "throughput_tokens_per_s": pytest.approx(250.0),
        # Steps with drafts: 2 + 1 of the first batch, 2 of the second; A = 2 + 1 + 1 + 2 + 1.
        "acceptance_length_tokens": pytest.approx(1 + 7 / 5),
        "acceptance_rate_frac": pytest.approx(7 / (3 + 3 + 2 + 3 + 2)),
        # By step of a batch, the first left out, which drafts nothing and reads the prompt.
        "draft_ms": 2.0,
        "target_ms": 7.0,
        # 3 readings of 2.5 J in each batch of 30 ms.
        "power_w": pytest.approx(250.0),
    }
    assert list(figures) == list(COLUMNS)


def test_a_missing_figure_is_a_dash() -> None:
    def alone(_: Sequence[Job]) -> Iterator[Mapping[int, DecodedStep]]:
        yield {0: step(1, ends=True)}

    ticks = itertools.count(step=10 * MS)
    figures = measure_batches(alone, JOBS[:1], 1, lambda: next(ticks))

    head, _, row, _, note = render_table([("none", 1, figures)]).splitlines()
    assert head.startswith("| method | batch | TTFT p50, ms | ITL p50, ms | tokens/s |")
    assert row == "| `none` | 1 | 10.0 | – | 100.0 | – | – | – | – | – |"
    assert note.startswith("No power was measured: ")
    assert note not in render_table([("none", 1, {**figures, "power_w": 9.0})])


def test_a_processor_counts_the_energy_of_its_packages(tmp_path: Path) -> None:
    assert list(cpu_energy_j(tmp_path)) == []  # as in a virtual machine
    for number, name in enumerate(("package-0", "package-1", "psys")):
        folder = tmp_path / f"intel-rapl:{number}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("1500000\n")
        (folder / "max_energy_range_uj").write_text("8000000\n")

    joules = cpu_energy_j(tmp_path)
    assert next(joules) == 3.0
    (tmp_path / "intel-rapl:1/energy_uj").write_text("2500000\n")
    assert next(joules) == 4.0
    (tmp_path / "intel-rapl:1/energy_uj").write_text("500000\n")
    assert next(joules) == 10.0
    assert next(joules) == 10.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", "0"), "--batch must be 1 or more"),
        ((), "needs 'torch', which isn't here; install specreg[reference]"),
    ],
)
def test_a_benchmark_that_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    module = (sys.executable, "-m", "specreg.engines.pytorch.benchmark", "--model=some/target")
    done = subprocess.run(
        (*module, "--prompts=/nowhere", *arguments),
        check=False,
        cwd=builders.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
