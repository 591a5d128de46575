"""Has `flock` fail in each Python that it is on the PYTHONPATH of, as on a file system without it.

FLOCK_ERRNO is the number of the error.
"""

import fcntl
import os
from typing import NoReturn

_ERRNO = int(os.environ.get("FLOCK_ERRNO", "0"))


def _refuse(*_: object) -> NoReturn:
    raise OSError(_ERRNO, os.strerror(_ERRNO))


if _ERRNO:
    fcntl.flock = _refuse
