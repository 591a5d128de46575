"""`python -m specreg`, for where the command is not installed."""

import sys
from pathlib import Path

# `-m` puts the current folder first, which may be the run folder of another machine. Its modules
# must not be imported instead of those that specreg needs. In a checkout, specreg is found there.
_CHECKOUT = Path(__file__).parents[1]
if not sys.flags.safe_path and Path(sys.path[0]).resolve() != _CHECKOUT.resolve():
    sys.path.pop(0)

from specreg.cli import main  # noqa: E402 - see above

if __name__ == "__main__":
    main()
