"""How Sphinx makes the site: `nox -s docs`."""

project = "specreg"
copyright = "the specreg authors, Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["examples"]
html_theme = "furo"
html_title = "specreg"
myst_heading_anchors = 3
# A link that leads nowhere is an error: the session passes -W.
nitpicky = True
# Code in the pages is of many languages, and some of it of none.
highlight_language = "none"
linkcheck_timeout = 20
