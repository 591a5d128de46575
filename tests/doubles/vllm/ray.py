"""`ray start --block`: a head that others join, or one that joins it."""

import argparse
import logging
import os
import socket
import sys
import time

from .meeting import gather
from .script import load_script
from .start import begin_a_part, live_on

_STARTING_S = 0.5
"""Before which nobody can join: who comes too early is refused, as by the real one in the end."""


def main() -> None:
    """Runs until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["start"])
    parser.add_argument("--block", action="store_true", required=True)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--num-gpus", type=int, required=True)
    parser.add_argument("--node-ip-address", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address", default="")
    parser.add_argument("--disable-usage-stats", action="store_true")
    parser.add_argument("--include-dashboard")
    for flag in ("ray-client-server", "dashboard-agent-listen", "min-worker", "max-worker"):
        parser.add_argument(f"--{flag}-port", type=int)
    flags = parser.parse_args(sys.argv[1:])
    begin_a_part(load_script(os.environ))
    if flags.head:
        time.sleep(_STARTING_S)
        gather(flags.node_ip_address, flags.port, 0)
    else:
        host, _, port = flags.address.partition(":")
        socket.create_connection((host, int(port))).detach()
    live_on()


if __name__ == "__main__":
    main()
