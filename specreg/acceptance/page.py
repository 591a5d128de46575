"""A page of Prometheus metrics in, what it says, or the counts of some of its counters, out."""

import re
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specreg.core.errors import InvalidMeasurementError

_MOST = 2**48
_POSITION = re.compile(r"[0-9]{1,3}")

Count = tuple[str, Mapping[str, str], int]
"""A counter's name without the prefix and `_total`, its labels, and how often it counted."""


def samples_of(page: str, *, path: str = "/metrics") -> list[Sample]:
    """All that a page says, in its order.

    Args:
        page: its text.
        path: where the page is.

    Raises:
        InvalidMeasurementError: `METRICS_UNREADABLE`.
    """
    try:
        return [
            sample for family in text_string_to_metric_families(page) for sample in family.samples
        ]
    # The library raises whatever its parsing stumbles over.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        message = f"{path} is not a Prometheus page ({error}); look at it in a browser"
        raise InvalidMeasurementError("METRICS_UNREADABLE", message) from error


def counts_of(page: str, prefix: str, *, path: str = "/metrics") -> list[Count]:
    """The counters whose name begins with a prefix; their `_created` series are left out.

    Args:
        page: its text.
        prefix: of the names.
        path: where the page is.

    Raises:
        InvalidMeasurementError: `METRICS_UNREADABLE`.
    """
    return [
        (one.name.removeprefix(prefix).removesuffix("_total"), one.labels, count_in(one, path=path))
        for one in samples_of(page, path=path)
        if one.name.startswith(prefix) and one.name.endswith("_total")
    ]


def count_in(sample: Sample, *, path: str = "/metrics") -> int:
    """What a sample counts.

    Raises:
        InvalidMeasurementError: `METRICS_UNREADABLE`.
    """
    # NaN and infinity aren't whole either; beyond its precision a number counts nothing.
    if not (0 <= sample.value <= _MOST and float(sample.value).is_integer()):
        message = f"{sample.name} is {sample.value}, which is no count; look at {path}"
        raise InvalidMeasurementError("METRICS_UNREADABLE", message)
    return int(sample.value)


def position_in(labels: Mapping[str, str], name: str) -> int | None:
    """The position of a draft that a label names, from 0; None where it names none."""
    position = labels.get(name, "")
    return int(position) if _POSITION.fullmatch(position) else None
