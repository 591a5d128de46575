"""A page of Prometheus metrics: what servers count."""

import re
from collections import Counter
from functools import cached_property

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specreg.core.errors import InvalidMeasurementError

_MOST = 2**48
_POSITION = re.compile(r"[0-9]{1,3}")


class MetricsPage:
    """The samples of a page.

    Args:
        text: of the page; path: where it is, for messages.

    Raises:
        InvalidMeasurementError: `METRICS_UNREADABLE`.
    """

    def __init__(self, text: str, *, path: str = "/metrics") -> None:
        self._path = path
        try:
            families = list(text_string_to_metric_families(text))
        # The library raises whatever its parsing stumbles over.
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            message = f"{path} is not a Prometheus page ({error}); look at it in a browser"
            raise InvalidMeasurementError("METRICS_UNREADABLE", message) from error
        self.samples = [sample for family in families for sample in family.samples]

    @cached_property
    def names(self) -> list[str]:
        """Of all samples, each once, in their order."""
        return list(dict.fromkeys(sample.name for sample in self.samples))

    def require(self, *names: str, why: str) -> None:
        """Check that there are samples of all these names; `why` says how they may be missing.

        Raises:
            InvalidMeasurementError: `METRICS_MISSING`.
        """
        missing = [name for name in names if name not in self.names]
        if missing:
            there = ", ".join(name for name in names if name in self.names) or "none of them"
            message = f"looked for {', '.join(missing)}; {self._path} has {there}; {why}?"
            raise InvalidMeasurementError("METRICS_MISSING", message)

    def total(self, name: str) -> int:
        """What all samples of a name count together, 0 where there are none.

        Raises:
            InvalidMeasurementError: `METRICS_UNREADABLE`.
        """
        return sum(self._count(sample) for sample in self.samples if sample.name == name)

    def by_position(self, name: str, label: str) -> Counter[int]:
        """The counts of a name by the position of a draft, from 0, that a label says.

        Raises:
            InvalidMeasurementError: `METRICS_UNREADABLE`.
        """
        counts = Counter[int]()
        for sample in self.samples:
            if sample.name == name and _POSITION.fullmatch(sample.labels.get(label, "")):
                counts[int(sample.labels[label])] += self._count(sample)
        return counts

    def _count(self, sample: Sample) -> int:
        # NaN and infinity aren't whole either; beyond its precision a number counts nothing.
        if not (0 <= sample.value <= _MOST and float(sample.value).is_integer()):
            message = f"{sample.name} is {sample.value}, which is no count; look at {self._path}"
            raise InvalidMeasurementError("METRICS_UNREADABLE", message)
        return int(sample.value)
