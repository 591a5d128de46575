"""Shards: how a run is cut, and that the cut depends on committed files alone."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.baselines.estimate import START_S, Fit, estimate_of, group_s
from specreg.baselines.record import record_baseline
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.suite.context import RunContext
from specreg.suite.options import Options
from specreg.suite.shards import ServerGroup, Shard, cut, expected_times, list_shards, server_groups
from tests.unit import builders
from tests.unit.builders import runs

EAGLE = builders.with_concurrency(1)
LOADED = builders.with_concurrency(4)
NGRAM = dataclasses.replace(
    EAGLE, server=dataclasses.replace(EAGLE.server, method="ngram", draft=None)
)
CASES = (NGRAM, EAGLE, LOADED)
TPOT = "tpot_p50_ms"


def group(name: str, time_s: float, gpus: int = 1) -> ServerGroup:
    """A server group of one case."""
    cases = (f"{name}-c1",)
    return ServerGroup(id=name, cases=cases, gpus=gpus, memory_gib=80.0, expected_s=time_s)


def groups_of(folder: Path, **options: Any) -> list[ServerGroup]:  # noqa: ANN401 - any option
    """The server groups of three cases whose baselines are in a folder."""
    return server_groups(CASES, runs.context(folder, baselines=str(folder), **options))


def expected(
    context: RunContext,
    name: str,
    *,
    fit: Fit = lambda _: False,
    **selected: Any,  # noqa: ANN401 - any field of Selection
) -> dict[str, float]:
    """The expected times of a run that needs one metric of all its cases, in seconds."""
    names = {case.id: [name] for case in context.tier.cases}
    selection = dataclasses.replace(runs.selection(context, names), **selected)
    times = expected_times(context, selection, fit)
    return {name: time.start_s + time.case_s for name, time in times.items()}


def test_a_start_is_expected_with_the_first_case_on_each_launch_of_a_server(tmp_path: Path) -> None:
    context = runs.context(tmp_path, cases=CASES, launches=2)
    unfetched = {NGRAM.id: "no such repository"}

    times_s = expected(context, TPOT, unfetched=unfetched)

    first, second = (estimate_of(case, context.store, "cpu").case_s for case in (EAGLE, LOADED))
    once = {EAGLE.id: START_S["cpu"] + first, LOADED.id: second}
    again = {f"{case_id}-launch2": case_s for case_id, case_s in once.items()}
    assert times_s == once | again


def test_where_no_speed_is_needed_neither_a_control_nor_power_is_expected(tmp_path: Path) -> None:
    case = builders.with_judging(dataclasses.replace(EAGLE, control=NGRAM.server), power_s=100.0)
    context = runs.context(tmp_path, cases=(case,))
    alone = builders.with_judging(dataclasses.replace(case, control=None), power_s=0.0)
    alone_s = START_S["cpu"] + estimate_of(alone, context.store, "cpu").case_s

    assert expected(context, "acceptance_length_tokens") == {case.id: alone_s}
    assert expected(context, TPOT)[case.id] > START_S["cpu"] + 200


def test_the_first_of_the_cases_beside_one_control_takes_the_time_of_all(tmp_path: Path) -> None:
    plain = builders.with_concurrency(1, builders.PLAIN_CASE)
    drafting, ngram = (dataclasses.replace(case, control=plain.server) for case in (EAGLE, NGRAM))
    cases = (plain, drafting, ngram)
    context = runs.context(tmp_path, cases=cases)

    times_s = expected(context, TPOT, fit=lambda _: True)

    estimates = {case.id: estimate_of(case, context.store, "cpu") for case in cases}
    start_s = START_S["cpu"]
    assert times_s == {
        plain.id: start_s + group_s(cases, estimates),
        drafting.id: 0.0,
        ngram.id: 0.0,
    }
    apart_s = expected(context, TPOT)
    assert apart_s[ngram.id] == start_s + estimates[ngram.id].case_s
    assert sum(times_s.values()) < sum(apart_s.values())
    shard = runs.context(tmp_path, cases=cases, shard="1/2")
    assert expected(shard, TPOT, fit=lambda _: True) == apart_s


def test_a_least_time_is_expected_only_where_it_is_needed(tmp_path: Path) -> None:
    lasting = builders.with_judging(EAGLE, least_s=1000.0)
    recording = {"update_baselines": True, "launches": 1}

    def case_s(case: Case, **options: Any) -> float:  # noqa: ANN401 - any option
        return expected(runs.context(tmp_path, cases=(case,), **options), TPOT)[case.id]

    assert case_s(lasting) == case_s(EAGLE), "nothing is recorded, so no speed waits for it"
    assert case_s(lasting, **recording) > case_s(EAGLE, **recording) + 900


@pytest.mark.parametrize(
    ("text", "choice"), [("1/1", (1, 1)), ("3/8", (3, 8)), ("list", (0, 0)), ("list/4", (0, 4))]
)
def test_a_choice_is_a_shard_or_a_list(text: str, choice: tuple[int, int]) -> None:
    assert Options(shard=text).part == choice


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "2", "a/b", "list/x", "", "1/0", "1/99999", "list/99999", f"1/{10**400}"]
)
def test_what_is_no_shard_is_refused(text: str) -> None:
    words = "needed I/N with I from 1 to N.*; give 1/4 for the first"
    with pytest.raises(SpecregError, match=words):
        _ = Options(shard=text).part


def test_the_longest_begins_and_each_goes_where_the_least_is_so_far() -> None:
    groups = [group("wide", 10, 8), group("b", 100), group("c", 60), group("d", 50), group("a", 30)]
    dealt = {shard.number: [group.id for group in shard.groups] for shard in cut(groups, 2)}
    assert dealt == {1: ["wide", "c", "d"], 2: ["b", "a"]}


def test_each_group_is_in_one_shard_alone_however_many_there_are() -> None:
    groups = [group(str(n), 1.0 + n % 5) for n in range(12)]
    for of in (1, 3, 12, 20):
        dealt = [group.id for shard in cut(groups, of) for group in shard.groups]
        assert sorted(dealt) == sorted(group.id for group in groups)
    assert [len(shard.groups) for shard in cut(groups, 0)] == [1] * 12


def test_cases_that_share_a_server_and_its_control_are_a_group(tmp_path: Path) -> None:
    groups = groups_of(tmp_path)
    assert [group.cases for group in groups] == [(EAGLE.id, LOADED.id), (NGRAM.id,)]
    assert {group.gpus for group in groups} == {0}
    twice = groups_of(tmp_path, launches=2)
    assert [group.expected_s for group in twice] == [2 * group.expected_s for group in groups]


def test_the_cut_goes_by_committed_baselines_alone(tmp_path: Path) -> None:
    """What one machine has just recorded would have it cut otherwise than the others."""
    folder = tmp_path / "baselines"
    path = folder / builders.ENVIRONMENT.name / f"{EAGLE.id}.json"
    slow = builders.baseline({"throughput_tokens_per_s": 0.5})
    before = groups_of(folder)
    subprocess.run(("/usr/bin/env", "git", "init", "-q", str(tmp_path)), check=True)
    record_baseline(path, slow)
    assert groups_of(folder) == before
    subprocess.run(("/usr/bin/env", "git", "-C", str(tmp_path), "add", "."), check=True)
    assert groups_of(folder) != before


def test_shards_are_shown_and_written_for_what_starts_them(tmp_path: Path) -> None:
    shards = cut([group("a", 90, 2), group("b", 30)], 3)
    shown = list_shards(tmp_path, shards)
    assert "    1     2           80      1.5  a-c1" in shown
    assert "    3     0            -      0.0  none" in shown
    written = json.loads((tmp_path / ".specreg/shards.json").read_text())
    assert [plan["number"] for plan in written] == [1, 2, 3]
    assert written[0]["groups"][0]["cases"] == ["a-c1"]


def test_a_shard_needs_unknown_memory_where_one_of_its_groups_does(tmp_path: Path) -> None:
    known = group("known", 60.0)
    unknown = msgspec.structs.replace(known, id="unknown", memory_gib=None)
    shards = (Shard(number=1, groups=(known, unknown)), Shard(number=2, groups=(known,)))

    table = list_shards(tmp_path, shards)

    rows = [line.split()[2] for line in table.splitlines()[1:3]]
    assert rows == ["unknown", "80"]
