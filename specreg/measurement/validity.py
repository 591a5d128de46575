"""Tell which families of metrics mean nothing, given what went wrong in a measurement.

Acceptance is counted, not timed: neither a throttled GPU nor a late client says anything against
it. Speed is timed by us: a server that miscounts its steps says nothing against that.
"""

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from specreg.core.errors import InvalidMeasurementError
from specreg.measurement.metrics import Family

Invalid = Mapping[Family, str]
"""Why a family's figures are invalid, by family; valid families are left out."""

ALL: AbstractSet[Family] = frozenset(Family)
_COUNTED: AbstractSet[Family] = frozenset({Family.ACCEPTANCE})
_TIMED = ALL - _COUNTED

SPOILS: Mapping[str, AbstractSet[Family]] = MappingProxyType(
    {
        # The meter of acceptance. Tokens and times are the client's own.
        "ACCEPTANCE_MISSING": _COUNTED,
        "CHUNKS_MERGED": _COUNTED,
        "COUNTS_DISAGREE": _COUNTED,
        "COUNTS_INCONSISTENT": _COUNTED,
        "LENGTH_IMPOSSIBLE": _COUNTED,
        "METRICS_MISSING": _COUNTED,
        "METRICS_UNREADABLE": _COUNTED,
        # The machine and the client.
        "CLIENT_BEHIND": _TIMED,
        "CLOCK_LOW": _TIMED,
        "DEVICE_SHARED": _TIMED,
        "MACHINE_MOVED": _TIMED - {Family.SPEEDUP},
        "THROTTLED": _TIMED,
        "POWER_INVALID": frozenset({Family.POWER}),
    }
)
"""By reason the families that it spoils, as docs/red.md says; any other spoils all."""


def spoiled_by(reason: str) -> AbstractSet[Family]:
    """The families that a reason spoils."""
    return SPOILS.get(reason, ALL)


def all_invalid(why: str) -> Invalid:
    """Return all families as invalid, for one reason."""
    return dict.fromkeys(Family, why)


@contextlib.contextmanager
def noting(
    invalid: MutableMapping[Family, str], within: AbstractSet[Family] = ALL
) -> Iterator[None]:
    """Note what a failed check makes invalid, and go on; the first reason of a family stays.

    `within` are the families that what is checked says something of.

    Raises:
        InvalidMeasurementError: the check's, where it spoils all families.
    """
    try:
        yield
    except InvalidMeasurementError as error:
        spoiled = spoiled_by(error.reason) & within
        if spoiled == ALL:
            raise
        for family in spoiled:
            invalid.setdefault(family, str(error))


def render_invalid(invalid: Mapping[Family, str]) -> str:
    """The reasons, each after the families that it spoils: `latency, power: THROTTLED: …`."""
    families: dict[str, list[Family]] = {}
    for family in Family:
        if family in invalid:
            families.setdefault(invalid[family], []).append(family)
    return "; ".join(
        why if len(spoiled) == len(Family) else f"{', '.join(spoiled)}: {why}"
        for why, spoiled in families.items()
    )
