"""Grafana's dashboard asks for the gauges that a run exports, by labels that they have."""

import re
from collections.abc import Mapping

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specreg.measurement.metrics import METRICS
from specreg.report.gauges import render_metrics
from specreg.verdicts.verdict import Outcome
from tests.unit.builders import reports
from tests.unit.builders.dashboard import DASHBOARD, queries


def labels_by_gauge() -> Mapping[str, set[str]]:
    """The labels of each gauge of a run."""
    text = render_metrics(reports.REPORT, generate_latest)
    return {
        family.name: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    }


def test_each_query_asks_for_a_gauge_by_its_own_labels() -> None:
    known = labels_by_gauge()
    for query in queries():
        for gauge, selector in re.findall(r"(specreg_\w+)(?:\{([^}]*)\})?", query):
            labels = set(re.findall(r"(\w+)=", selector))
            assert labels <= known[gauge], query
    asked = set(re.findall(r"specreg_\w+", " ".join(queries())))
    assert asked == known.keys()


def test_each_metric_and_outcome_of_a_query_is_one() -> None:
    for query in queries():
        assert set(re.findall(r'metric="(\w+)"', query)) <= METRICS.keys()
        for outcomes in re.findall(r'outcome=~"([\w|]+)"', query):
            assert set(outcomes.split("|")) <= set(Outcome)


def test_each_variable_of_a_query_is_defined() -> None:
    defined = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for query in queries():
        assert set(re.findall(r"\$\{?(\w+)", query)) <= defined


def test_the_dashboard_has_what_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "time"} <= DASHBOARD.keys()
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    # Grafana has 24 columns, and moves panels that overlap.
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {"type", "title", "fieldConfig", "options"} <= panel.keys()
        assert [target["refId"] for target in panel["targets"]] == list("ABC")[
            : len(panel["targets"])
        ]
