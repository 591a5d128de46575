"""How Sphinx makes the site: `nox -s docs`."""

project = "specreg"
copyright = "the specreg authors, Apache-2.0"
extensions = ["myst_parser"]
# Of the examples, the report of a gate is a page of the site; a run's page is linked as it is.
exclude_patterns = ["examples/cpu_perf", "examples/planted_faults"]
suppress_warnings = ["myst.header"]  # a report is embedded in other pages: it begins with `##`
html_theme = "furo"
html_title = "specreg"
myst_heading_anchors = 3
# A link that leads nowhere is an error: the session passes -W.
nitpicky = True
# Code in the pages is of many languages, and some of it of none.
highlight_language = "none"
linkcheck_timeout = 20
