"""A run that starts a server from an image, and stays in a phase until it or its runtime is killed.

python -m tests.containers.holder PHASE FOLDER IMAGE
"""

import dataclasses
import json
import sys
import threading
import time
import urllib.request
from pathlib import Path

from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import Script
from tests.unit import builders
from tests.unit.builders.started_servers import PROVISION, start

PHASES = ("pulling", "looking", "starting", "ready", "measuring", "stopping")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def generate(server: StartedServer) -> None:
    """Ask the server for an answer that takes minutes, and say so when it has begun."""
    body = {"model": server.model, "prompt": "a", "max_tokens": 900, "stream": True}
    request = urllib.request.Request(  # noqa: S310 - a local server
        f"{server.address.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - a local server
        answer.readline()
        say("measuring")
        answer.read()


def main() -> None:
    phase, folder, image = sys.argv[1:]
    script = Script(ready_after_s=600.0 if phase == "starting" else 0.0)
    if phase == "measuring":
        script = Script(step_ms=2000.0)
    provision = dataclasses.replace(PROVISION, python=None, image=image)
    with start(
        Path(folder), script, provision=provision, root=builders.ROOT, ready_within_s=900.0
    ) as server:
        # That its first process is known is what a run with a GPU needs too.
        server.pids()
        say(str(server.process.supervisor.pid))
        if phase == "measuring":
            threading.Thread(target=generate, args=(server,), daemon=True).start()
        if phase == "stopping":
            sys.stdin.readline()
            return
        while True:
            server.check_alive()
            time.sleep(0.1)


if __name__ == "__main__":
    main()
