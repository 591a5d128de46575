"""Hides the extra that draws pages from a run of pytest, which then takes a second less."""

import sys

sys.modules["vl_convert"] = None  # type: ignore[assignment] # an import of it fails
