"""Tell what software a night ran with, and what of it changed since another night."""

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from specreg.baselines.schema import Baseline
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.measurement.measure import Measurement
from specreg.servers.installer import packages_sha256

Software = Mapping[str, str]
"""The versions or checksums of what a server runs with. What isn't known is left out or empty."""
_ENGINE = "engine"
_DRIVER = "driver"
_PACKAGES = "packages"
_CONFIGURATION = "configuration"
_DRAFT = "draft"
_CHECKSUM_CHARACTERS = 16


def software_of_launch(launch: Measurement, driver_version: str) -> Software:
    """Return the software of a launch, given the version of the GPU's driver.

    The engine's version and the draft aren't among it, because the history has fields for them.
    """
    return _known(
        {
            _DRIVER: driver_version,
            _PACKAGES: packages_sha256(launch.packages)[:_CHECKSUM_CHARACTERS],
            _CONFIGURATION: _facts_sha256(launch.facts),
        }
    )


def software_of_baseline(baseline: Baseline) -> Software:
    """Return the software that a baseline was recorded with."""
    provenance = baseline.provenance
    further = _known(
        {
            _DRIVER: provenance.driver_version,
            _PACKAGES: provenance.packages_sha256[:_CHECKSUM_CHARACTERS],
            _CONFIGURATION: _facts_sha256(provenance.facts),
        }
    )
    return whole_software(provenance.engine_version, provenance.draft_sha256, further)


def whole_software(engine_version: str, draft_sha256: str, further: Software) -> Software:
    """Return software with the engine's version and the draft."""
    return _known({_ENGINE: engine_version, _DRAFT: draft_sha256, **further})


def describe_changes(before: Software, after: Software) -> str:
    """Say what changed: `the engine went from 0.32.0 to 0.33.0`; empty if nothing is known to."""
    return " and ".join(_changes(before, after))


def _changes(before: Software, after: Software) -> Iterator[str]:
    changed = [part for part in after if before.get(part, after[part]) != after[part]]
    if _ENGINE in changed and _PACKAGES in changed:
        # Each version of an engine brings packages of its own.
        changed.remove(_PACKAGES)
    for part in changed:
        if part in {_ENGINE, _DRIVER}:
            yield f"the {part} went from {before[part]} to {after[part]}"
        else:
            yield f"the {part} changed"


def _known(software: Software) -> Software:
    return {part: text for part, text in software.items() if text}


def _facts_sha256(facts: LaunchFacts) -> str:
    if facts == NOTHING_KNOWN:
        return ""
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:_CHECKSUM_CHARACTERS]
