"""What software a night ran with, and what of it is said to have changed."""

import dataclasses

import msgspec
import pytest

from specreg.engines.launch_facts import LaunchFacts
from specreg.servers.installer import packages_sha256
from specreg.verdicts.software import (
    Software,
    describe_changes,
    software_of_baseline,
    software_of_launch,
    whole_software,
)
from tests.unit import builders

LAUNCH = dataclasses.replace(
    builders.measurement({}), packages=("torch==2.9.0",), facts=LaunchFacts(model_runner="v2")
)


def test_a_launch_has_what_its_baseline_was_recorded_with() -> None:
    further = software_of_launch(LAUNCH, "570.1")
    assert further.keys() == {"driver", "packages", "configuration"}
    provenance = msgspec.structs.replace(
        builders.baseline().provenance,
        engine_version="0.32.0",
        driver_version="570.1",
        packages_sha256=packages_sha256(LAUNCH.packages),
        facts=LAUNCH.facts,
    )
    baseline = msgspec.structs.replace(builders.baseline(), provenance=provenance)
    assert software_of_baseline(baseline) == whole_software("0.32.0", "", further)


def test_what_is_not_known_is_left_out() -> None:
    assert software_of_launch(builders.measurement({}), "") == {}
    assert whole_software("", "", {"driver": ""}) == {}


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"engine": "1"}, {"engine": "1"}, ""),
        ({}, {"engine": "1", "driver": "570"}, ""),
        ({"engine": "1"}, {}, ""),
        ({"engine": "1"}, {"engine": "2"}, "the engine went from 1 to 2"),
        (
            {"engine": "1", "packages": "a", "driver": "570"},
            {"engine": "2", "packages": "b", "driver": "580"},
            "the engine went from 1 to 2 and the driver went from 570 to 580",
        ),
        ({"packages": "a"}, {"packages": "b"}, "the packages changed"),
        ({"configuration": "a"}, {"configuration": "b"}, "the configuration changed"),
        ({"draft": "a"}, {"draft": "b"}, "the draft changed"),
    ],
)
def test_a_change_is_said_if_both_sides_are_known(
    before: Software, after: Software, text: str
) -> None:
    assert describe_changes(before, after) == text
