"""`python -m specreg`, for where the command is not installed."""

import os
import sys

# `-m` puts the current folder first, which may be the run folder of another machine. Its modules
# must not be imported instead of those that specreg needs. In a checkout, specreg is found there.
# Python has already imported what `-m` itself needs, which only `-P` keeps from that folder.
_CHECKOUT = os.path.realpath(f"{__file__}/../..")
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _CHECKOUT:
    sys.path.pop(0)

from specreg.cli import main  # noqa: E402 - see above

if __name__ == "__main__":
    main()
