"""A wall clock that somebody sets over and over; put on PYTHONPATH, in each Python it loads."""

import datetime as dt
import time

_JUMP_S = 3600.0
_EVERY_S = 0.2
_true_s = time.time


def _jumped_s() -> float:
    """Hours ahead, further each time, and back to the true time now and then."""
    return _true_s() + _JUMP_S * (int(time.monotonic() / _EVERY_S) % 50)


class _Jumping(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return dt.datetime.fromtimestamp(_jumped_s(), tz)


time.time = _jumped_s
time.time_ns = lambda: int(_jumped_s() * 10**9)
dt.datetime = _Jumping  # type: ignore[misc]
