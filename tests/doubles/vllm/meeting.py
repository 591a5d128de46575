"""Where the parts of a server meet. In: flags of vLLM's and SGLang's. Out: silence, once all came.

As in the real ones, the part that answers serves nobody before; and none notices when one goes.
"""

import argparse
import logging
import os
import socket
import time
from collections.abc import Sequence

_LOG = logging.getLogger("vllm")
_PATIENCE_S = 60.0
_POLL_S = 0.05
_KEPT: list[socket.socket] = []
"""Connections, for as long as the process lives."""


def node_of(arguments: Sequence[str]) -> int:
    """On which node this part of a server is, 0 for the one that answers."""
    return int(_flags(arguments).node_rank)


def meet(arguments: Sequence[str]) -> None:
    """Returns once all parts have come."""
    flags = _flags(arguments)
    if flags.distributed_executor_backend == "ray":
        host, _, port = os.environ["RAY_ADDRESS"].partition(":")
        _KEPT.append(socket.create_connection((host, int(port)), timeout=_PATIENCE_S))
    elif flags.nnodes > 1:
        host, _, port = flags.dist_init_addr.partition(":")
        host, port = host or flags.master_addr, port or flags.master_port
        if flags.node_rank == 0:
            gather(host, int(port), flags.nnodes - 1)
        else:
            join(host, int(port))
        _LOG.info("part %d of %d has met the others", flags.node_rank, flags.nnodes)


def gather(host: str, port: int, others: int) -> None:
    """Waits until so many have come."""
    listener = socket.create_server((host, port))
    listener.settimeout(_PATIENCE_S)
    _KEPT.append(listener)
    _KEPT.extend(listener.accept()[0] for _ in range(others))


def join(host: str, port: int) -> None:
    """Comes as soon as somebody is there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            _KEPT.append(socket.create_connection((host, port)))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--distributed-executor-backend")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="")
    parser.add_argument("--master-port", default="")
    parser.add_argument("--dist-init-addr", default="")
    return parser.parse_known_args(arguments)[0]
