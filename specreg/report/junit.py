"""Render a run as JUnit XML, which CI systems read."""

from xml.etree import ElementTree as ET

from specreg.core.readable import readable_line
from specreg.core.values import readable_values
from specreg.report.document import Report
from specreg.report.failures import properties, render_skip, sentence_of
from specreg.report.wording import wording_of
from specreg.verdicts.verdict import Verdict


def render_junit(report: Report) -> str:
    """Return JUnit XML with a test for each verdict.

    Unlike the XML that pytest writes during the run, it contains the final verdicts.
    """
    report = readable_values(report)
    run = report.run
    failed = sum(verdict.fails for verdict in run.verdicts)
    skipped = sum(not (verdict.fails or verdict.holds) for verdict in run.verdicts)
    counts = {"tests": len(run.verdicts), "failures": failed, "errors": 0, "skipped": skipped}
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": readable_line(f"specreg {run.tier}")})
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    expectation = wording_of(report).expectation
    for verdict in run.verdicts:
        _add_test(suite, verdict, expectation)
    ET.indent(suites)
    return f"{ET.tostring(suites, encoding='unicode', xml_declaration=True)}\n"


def _add_test(suite: ET.Element, verdict: Verdict, expectation: str) -> None:
    """Add a test for a verdict, with the fields of the verdict as the test's properties."""
    names = {"classname": readable_line(verdict.case_id), "name": readable_line(verdict.metric)}
    test = ET.SubElement(suite, "testcase", names)
    test_properties = ET.SubElement(test, "properties")
    for name, value in properties(verdict):
        ET.SubElement(test_properties, "property", {"name": name, "value": value})
    if verdict.fails:
        message = readable_line(f"{verdict.outcome}: {sentence_of(verdict, expectation)}")
        ET.SubElement(test, "failure", {"message": message}).text = verdict.explanation
    elif not verdict.holds:
        ET.SubElement(test, "skipped", {"message": render_skip(verdict)})
