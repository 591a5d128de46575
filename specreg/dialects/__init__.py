"""How servers are asked in token ids, one module each: texts to ids, ids to ids, ids to scores.

A public module here defines `DIALECT`, by the name of its protocol; the catalogue finds it. A
protocol without one gives no ids, so that nothing can be said of its tokens.
"""

import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.dialects._dialect import Call, Dialect, Transcript, Wanted

__all__ = ["DIALECTS", "Call", "Dialect", "Transcript", "Wanted"]

DIALECTS: Mapping[str, Dialect] = load_catalog(sys.modules[__name__], "DIALECT", Dialect)  # type: ignore[type-abstract]
