"""A soak: what is said of blocks whose drift is known, and what the command says of itself."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from specreg.cli import app
from specreg.compare.soak.block import MEMORY_TOLERANCE_FRAC, WATCHED, Block, watched_of
from specreg.compare.soak.drift import LEVEL, LOOKS, PARTS, Drift, Look, State, drift_of
from specreg.compare.soak.journal import Begun, Drifted, Journal, line_of
from specreg.compare.soak.run import Soak, prompts_in
from specreg.compare.soak.table import render_drift, render_soak
from specreg.core.errors import SpecregError
from specreg.matrix.schema import Arrivals, Load
from tests.unit import builders

LENGTH, STEP = WATCHED["acceptance_length_tokens"], WATCHED["step_ms"]
BLOCKS = 100
LENGTH_S = 3600.0
LEAD_IN_S = 360.0
SOAKS = 1000

Values = NDArray[np.float64]


def blocks_of(lengths: Values, steps_ms: Values | None = None) -> list[Block]:
    """Blocks that share an hour evenly, with such acceptance lengths."""
    lasted_s = LENGTH_S / len(lengths)
    steps_ms = np.ones(len(lengths)) if steps_ms is None else steps_ms
    return [
        Block(
            number=place + 1,
            at_s=(place + 0.5) * lasted_s,
            lasted_s=lasted_s,
            requests=4,
            acceptance_length_tokens=float(length),
            step_ms=float(step_ms),
            memory_bytes=2.0**30,
        )
        for place, (length, step_ms) in enumerate(zip(lengths, steps_ms, strict=True))
    ]


def drift(lengths: Values, *, tolerance_frac: float = 0.05, level: float = 0.01) -> Drift:
    """The drift of an hour with such acceptance lengths."""
    return drift_of(
        LENGTH,
        blocks_of(lengths),
        lead_in_s=LEAD_IN_S,
        level=level,
        tolerance_frac=tolerance_frac,
    )


def fallen(by_frac: float, blocks: int = BLOCKS) -> Values:
    """Acceptance lengths whose part beyond 1 falls evenly by a fraction of it in the hour."""
    return 1 + 2 * (1 - by_frac * (np.arange(blocks) + 0.5) / blocks)


def white(rng: np.random.Generator, blocks: int) -> Values:
    return rng.normal(size=blocks)


def heavy(rng: np.random.Generator, blocks: int) -> Values:
    return rng.standard_t(3, size=blocks)


def moody(rng: np.random.Generator, blocks: int) -> Values:
    """Each block has nine tenths of what moved the one before: a neighbour's moods."""
    moved, found = rng.normal() / np.sqrt(1 - 0.9**2), []
    for shock in rng.normal(size=blocks):
        moved = 0.9 * moved + shock
        found.append(moved)
    return np.array(found)


def jumped(rng: np.random.Generator, blocks: int) -> Values:
    """Once, somewhere, to another level that stays: a buffer that is made."""
    return 30 * (np.arange(blocks) >= rng.integers(blocks)) + rng.normal(size=blocks)


def still(_: np.random.Generator, blocks: int) -> Values:
    return np.zeros(blocks)


@pytest.mark.parametrize("noise", [white, heavy, moody, jumped, still])
def test_a_steady_server_raises_no_more_alarms_than_the_level_allows(
    noise: Callable[[np.random.Generator, int], Values], tmp_path: Path
) -> None:
    """Whatever the noise, at all looks and figures together, with nothing for a tolerance."""
    rng = np.random.default_rng(20261122)
    alarms = sum(
        bool(soaked(tmp_path, 100 + noise(rng, BLOCKS), 100 + noise(rng, BLOCKS)).alarms_s)
        for _ in range(SOAKS)
    )
    # Of 1,000 soaks at 1 % each more than 20 are as rare as one time in a thousand.
    assert alarms <= 2 * LEVEL * SOAKS, alarms


def soaked(folder: Path, lengths: Values, steps_ms: Values) -> Soak:
    """A soak of such blocks, looked at as often as a real one."""
    soak = Soak(
        case=builders.CASE,
        on_gpu=False,
        length_s=LENGTH_S,
        prompts=None,
        tolerance_frac=0.0,
        journal=Journal(path=folder / "soak.jsonl"),
        show=lambda _: None,
    )
    blocks = blocks_of(lengths, steps_ms)
    for frac in LOOKS:
        soak.blocks = [block for block in blocks if block.at_s < frac * LENGTH_S]
        soak.look(Look.EARLY)
    soak.blocks = blocks
    soak.look(Look.LAST)
    return soak


def test_the_looks_share_the_level() -> None:
    assert len(LOOKS) * Look.EARLY.value + Look.LAST.value == pytest.approx(LEVEL)


def test_a_fall_is_seen_with_its_slope_and_at_an_early_look(tmp_path: Path) -> None:
    found = drift(fallen(0.3))
    assert found.state is State.DRIFTS
    # Relative to the first judged part: the ninth part of the soak after the lead-in, on average.
    first = 1 - 0.3 * (0.1 + 0.9 / PARTS / 2)
    assert found.change_frac == pytest.approx(-0.3 / first, rel=0.01)
    assert found.low_frac < found.change_frac < found.high_frac < 0
    assert found.lost_after_h == pytest.approx(0.05 / (0.3 / first), rel=0.01)
    alarms = soaked(tmp_path, fallen(0.3), np.ones(BLOCKS)).alarms_s
    assert list(alarms) == ["acceptance_length_tokens"]
    assert alarms["acceptance_length_tokens"] <= LOOKS[0] * LENGTH_S


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_is_seen_through_noise(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(scale=0.02, size=BLOCKS)
    assert drift(fallen(0.3) + noise).state is State.DRIFTS


def test_a_fall_within_the_tolerance_is_steady_and_says_when_it_would_count() -> None:
    found = drift(fallen(0.03))
    assert found.state is State.STEADY
    assert found.lost_after_h == pytest.approx(1.6, rel=0.05)


def test_more_than_before_is_no_drift_of_acceptance_but_one_of_a_step() -> None:
    rising = fallen(-0.3)
    assert drift(rising).state is State.STEADY
    found = drift_of(
        STEP,
        blocks_of(np.ones(BLOCKS), rising),
        lead_in_s=LEAD_IN_S,
        level=0.01,
        tolerance_frac=0.05,
    )
    assert found.state is State.DRIFTS


def test_the_lead_in_is_not_judged() -> None:
    lengths = np.full(BLOCKS, 3.0)
    lengths[: BLOCKS // 10] = 9.0
    found = drift(lengths)
    assert (found.state, found.change_frac, found.blocks) == (State.STEADY, 0.0, 90)


def test_noise_that_could_hide_a_loss_leaves_no_telling_and_says_how_long_would() -> None:
    rng = np.random.default_rng(1)
    found = drift(3 + rng.normal(scale=0.5, size=BLOCKS))
    assert found.state is State.UNTOLD
    assert found.needed_min is not None
    assert found.needed_min > 60
    assert "soak for " in render_drift(found)


@pytest.mark.parametrize("blocks", [1, 5, 8])
def test_with_too_few_blocks_there_is_no_telling(blocks: int) -> None:
    found = drift(np.full(blocks, 3.0))
    assert (found.state, found.change) == (State.UNTOLD, None)
    said = render_drift(found)
    assert f"no telling from {found.blocks} blocks, 8 are needed; soak longer" in said


def test_what_accepts_nothing_has_nothing_to_lose_and_is_not_called_steady() -> None:
    found = drift(np.ones(BLOCKS))
    assert found.state is State.UNTOLD
    assert render_drift(found).endswith("it is never beyond 1; there is nothing to lose")


def test_the_tolerance_is_that_of_the_case_and_a_twentieth_of_memory() -> None:
    case = dataclasses.replace(
        builders.CASE, tolerances=(("acceptance_length_tokens", 0.01), ("tpot_p50_ms", 0.5))
    )
    told = [one.tolerance_frac(case) for one in watched_of(case, on_gpu=True)]
    assert told == [0.01, 0.5, MEMORY_TOLERANCE_FRAC, MEMORY_TOLERANCE_FRAC]


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, {"acceptance_length_tokens", "step_ms", "memory_bytes"}),
        ({"speed": False}, {"acceptance_length_tokens", "memory_bytes"}),
        ({"server": builders.PLAIN_SPEC}, {"step_ms", "memory_bytes"}),
    ],
    ids=["all", "no speed", "no speculation"],
)
def test_what_means_nothing_is_not_watched(fields: dict[str, object], left: set[str]) -> None:
    case = dataclasses.replace(builders.CASE, **fields)  # type: ignore[arg-type]
    assert {one.name for one in watched_of(case, on_gpu=False)} == left


@pytest.mark.parametrize(
    ("load", "within_s", "lasted_s", "prompts"),
    [
        (Load(concurrency=2), 6.0, 1.0, 12),
        (Load(concurrency=2), 6.5, 1.0, 12),
        (Load(concurrency=2), 0.1, 1.0, 2),
        (Load(concurrency=2), 600.0, 1.0, 20),
        (Load(arrivals=Arrivals.POISSON, requests_per_s=2.0), 6.0, 1.0, 12),
    ],
    ids=["fits", "whole batches", "one at least", "all at most", "by its rate"],
)
def test_a_block_takes_the_time_it_may(
    load: Load, within_s: float, lasted_s: float, prompts: int
) -> None:
    case = dataclasses.replace(builders.CASE, load=load, prompts=20)
    assert prompts_in(within_s, case, 2, lasted_s) == prompts


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    journal = Journal(path=tmp_path / "a" / "soak.jsonl")
    begun = Begun(case_id="c", engine="vllm 0.32.0", engine_version="0.32.0", minutes=10)
    untold = line_of(drift(np.ones(3)), 5.0)
    assert untold == Drifted(
        figure="acceptance_length_tokens",
        state=State.UNTOLD,
        after_s=5.0,
        change_frac=None,
        low_frac=None,
        high_frac=None,
    )
    block = blocks_of(fallen(0.1))[0]
    journal.write(begun, block)
    journal.write(untold)
    whole = journal.path.read_bytes()
    for cut in (1, 40):
        journal.path.write_bytes(whole[:-cut])
        assert journal.lines() == (begun, block)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    journal = Journal(path=tmp_path / "file" / "soak.jsonl")
    said = r"soak '.*soak.jsonl': .*; make room or mend its rights"
    with pytest.raises(SpecregError, match=said):
        journal.write(blocks_of(fallen(0.1))[0])


def shown(lengths: Values, alarms: dict[str, float]) -> Iterator[str]:
    text = render_soak([drift(lengths)], alarms, width=110, color=False)
    yield from text.splitlines()


def test_the_table_says_slope_interval_and_alarm() -> None:
    head, row, said = shown(fallen(0.3), {"acceptance_length_tokens": 726.0})
    titles = "figure at first at last change/h interval/h tolerance/h alarm after state"
    assert " ".join(head.split()) == titles
    assert "12.1 min" in row
    assert "DRIFTS" in row
    assert said.startswith("acceptance length: worse by 31.")
    assert said.endswith("; look at the server's log for what grows or fills")
    assert len(list(shown(np.full(BLOCKS, 3.0), {}))) == 2


IN_ROOT = ("--root", str(builders.ROOT), "--tier", "cpu", "--matrix", "fixtures/matrix")
CASE = "vllm-eagle3-tiny-toy-c1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope",), "tier 'cpu': unknown case 'nope'"),
        ((CASE, "--engine", "vlm"), "unknown engine 'vlm'; did you mean 'vllm'"),
        ((CASE, "--engine", "sglang"), "'vllm-eagle3-tiny-toy-c1' is of 'vllm', not of 'sglang'"),
        ((CASE, "--engine", "/nowhere/python"), "nothing that can be installed or run is at"),
        ((CASE, "--tier", "nope"), "unknown tier 'nope'"),
    ],
    ids=["case", "engine", "another engine", "place", "tier"],
)
def test_what_cannot_be_soaked_is_said_with_status_10(
    arguments: tuple[str, ...], said: str
) -> None:
    done = CliRunner().invoke(app, ("soak", *IN_ROOT, *arguments))
    assert done.exit_code == 10, done.output
    assert said in done.output


def test_a_folder_that_holds_a_soak_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "soak.jsonl").write_text("kept")
    done = CliRunner().invoke(app, ("soak", *IN_ROOT, CASE, "--out", str(tmp_path)))
    assert done.exit_code == 10
    assert "holds a soak already; name another folder" in done.output
    assert (tmp_path / "soak.jsonl").read_text() == "kept"


@pytest.mark.parametrize(
    "arguments", [("--minutes", "0"), ("--prompts", "0"), ("--tolerance", "-1")]
)
def test_what_is_no_length_is_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ("soak", *IN_ROOT, CASE, *arguments)).exit_code == 2
