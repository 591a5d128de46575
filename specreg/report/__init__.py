"""Report what a run or a gate found, in one document of verdicts and figures.

Its forms are text for a terminal, Markdown, HTML, JSON, CSV, and the formats of JUnit, Prometheus,
pytest-benchmark and aiperf. Nothing is measured or judged here.
"""
