"""Plants a fault in a reference engine that starts with this folder on its PYTHONPATH."""

import sys

if "specreg.engines.pytorch" in sys.orig_argv:
    import planted

    planted.plant_chosen()
