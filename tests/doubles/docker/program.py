"""A scripted docker, whose answers are those of docker 28.2.2.

As with the real one, the processes of a container are children of the daemon and not of the client.
The state is a folder: `images.json` maps names to ids, `repositories.json` lists the
names and digests that all of them have in registries, `registry.json` maps names to be pulled,
`problem.txt` is what every command fails with, and each container has a folder of its own.

    python program.py daemon FOLDER
    python program.py client FOLDER run --rm --name x IMAGE …
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.05
_WITH_VALUE = {
    *("--name", "--label", "--pull", "--network", "--ipc", "--workdir", "--entrypoint"),
    *("--cidfile", "--mount", "--env", "--user", "--gpus"),
}


def daemon(folder: Path) -> None:
    """Start the containers that clients ask for, and note how they end."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    while True:
        for request in folder.glob("*/request.json"):
            name = request.parent.name
            details = json.loads(request.read_text())
            request.rename(request.with_name("config.json"))
            with (request.parent / "output").open("wb") as output:
                running[name] = subprocess.Popen(
                    details["command"],
                    env=details["variables"],
                    cwd=details["folder"] or "/",
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            _write(request.parent / "pid", str(running[name].pid))
        for name, process in list(running.items()):
            status = process.poll()
            if status is not None:
                del running[name]
                with contextlib.suppress(OSError):
                    _write(folder / name / "status", str(status if status >= 0 else 128 - status))
        time.sleep(POLL_S)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def client(folder: Path, arguments: list[str]) -> int:  # noqa: C901, PLR0911, PLR0912 - a branch each
    """Answer a command as docker does, and return its exit status."""
    if arguments == ["--version"]:
        sys.stdout.write("Docker version 28.2.2, build e6534b4\n")
        return 0
    problem = folder / "problem.txt"
    if problem.exists():
        sys.stderr.write(problem.read_text())
        return 1
    match arguments:
        case ["version", *_]:
            sys.stdout.write("28.2.2 Engine,containerd,runc,docker-init,\n")
        case ["info", *_]:
            sys.stdout.write(f"{folder}\n")
        case ["image", "inspect", name]:
            return _inspect_image(folder, name)
        case ["manifest", "inspect", name] | ["pull", name]:
            return _pull(folder, name, arguments[0])
        case ["run", *flags]:
            return _run(folder, flags)
        case ["stop", "-t", seconds, name]:
            return _end(folder / name, signal.SIGTERM, float(seconds))
        case ["rm", "--force", name]:
            return _end(folder / name, signal.SIGKILL, 0.0)
        case ["ps", *_]:
            names = [path.parent.name for path in folder.glob("*/config.json")]
            sys.stdout.write("".join(f"{name}\n" for name in names))
        case ["inspect", "--type", "container", "--format", "{{.State.Pid}}", name]:
            pid = folder / name / "pid"
            sys.stdout.write(pid.read_text() if pid.exists() else "0")
        case ["inspect", "--type", "container", "--format", _, *names]:
            for name in names:
                config = json.loads((folder / name / "config.json").read_text())
                sys.stdout.write(f"{name} {config['label']}\n")
        case _:
            sys.stderr.write(f"unknown command: {arguments}\n")
            return 125
    return 0


def _inspect_image(folder: Path, name: str) -> int:
    images = json.loads((folder / "images.json").read_text())
    if name not in images:
        sys.stdout.write("[]\n")
        sys.stderr.write(f"Error response from daemon: No such image: {name}\n")
        return 1
    repositories = json.loads((folder / "repositories.json").read_text())
    sys.stdout.write(json.dumps([{"Id": images[name], "RepoDigests": repositories}]))
    return 0


def _pull(folder: Path, name: str, command: str) -> int:
    registry: dict[str, Any] = json.loads((folder / "registry.json").read_text())
    found = registry.get(name, {"error": f"manifest for {name} not found: manifest unknown"})
    if "error" in found:
        sys.stderr.write(f"Error response from daemon: {found['error']}\n")
        return 1
    if command == "pull":
        sys.stdout.write("4f4fb700ef54: Pull complete\n")
        images = json.loads((folder / "images.json").read_text())
        _write(folder / "images.json", json.dumps({**images, name: found["id"]}))
    return 0


def _run(folder: Path, arguments: list[str]) -> int:
    options: dict[str, str] = {}
    variables: dict[str, str] = {}
    words = list(arguments)
    while words and words[0].startswith("--"):
        flag = words.pop(0)
        if flag not in _WITH_VALUE:
            continue
        value = words.pop(0)
        if flag == "--env":
            name, has_value, given = value.partition("=")
            variables[name] = given if has_value else os.environ[name]
        options[flag] = value
    own = folder / options["--name"]
    own.mkdir()
    if "--cidfile" in options:
        Path(options["--cidfile"]).write_text(options["--name"])
    request = {
        "command": [options["--entrypoint"], *words[1:]],
        # The scripted image has this machine's programs.
        "variables": {"PATH": os.environ["PATH"], **variables},
        "folder": options.get("--workdir", ""),
        "label": options["--label"].partition("=")[2],
        "arguments": arguments,
    }
    _write(own / "request.json", json.dumps(request))
    sent_bytes = 0
    while True:
        has_ended = (own / "status").exists()
        with contextlib.suppress(OSError):
            content = (own / "output").read_bytes()
            sys.stdout.buffer.write(content[sent_bytes:])
            sys.stdout.flush()
            sent_bytes = len(content)
        if has_ended:
            status = int((own / "status").read_text())
            shutil.rmtree(own)
            return status
        if not own.exists():
            return 137
        time.sleep(POLL_S)


def _end(own: Path, number: signal.Signals, within_s: float) -> int:
    """Signal a container, kill what is left after a time, and remove it."""
    pid = own / "pid"
    if not pid.exists():
        sys.stderr.write(f"Error response from daemon: No such container: {own.name}\n")
        return 1
    with contextlib.suppress(OSError, ValueError):
        process_id = int(pid.read_text())
        os.killpg(process_id, number)
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s and not (own / "status").exists():
            time.sleep(POLL_S)
        os.killpg(process_id, signal.SIGKILL)
    if number == signal.SIGKILL:
        shutil.rmtree(own, ignore_errors=True)
    return 0


if __name__ == "__main__":
    role, state, *rest = sys.argv[1:]
    if role == "daemon":
        daemon(Path(state))
    sys.exit(client(Path(state), rest))
