"""Reports: verdicts and figures come in, as one document of a run or a gate.

Its forms go out: on the terminal, Markdown, HTML, JSON, CSV, Prometheus and aiperf's. It measures
and judges nothing.
"""
