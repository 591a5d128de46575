"""Grafana's dashboard, which docs/examples has, and what it asks of Prometheus."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.unit import builders

DASHBOARD: Mapping[str, Any] = json.loads(
    (builders.ROOT / "docs/examples/grafana/specreg.json").read_text()
)


def expressions() -> Iterator[str]:
    """The expression of each panel."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def queries() -> Iterator[str]:
    """What the panels and the variables ask for."""
    yield from expressions()
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
