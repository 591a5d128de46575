"""Report what a run or a gate found, in one document of verdicts and figures.

Its forms are the terminal's, Markdown, HTML, JSON, CSV, Prometheus and aiperf's. Nothing is
measured or judged.
"""
