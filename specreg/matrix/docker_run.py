"""Read a command line that starts a server in a container, such as `docker run …`."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from specreg.core.errors import MatrixError
from specreg.engines.serve_command import check_one_command, join_lines, words_of
from specreg.matrix.containers import Container, Mount, Reading

_PROGRAMS = {"docker", "podman", "nerdctl", "nvidia-docker"}
_SWITCHES_OF_PROGRAM = frozenset(
    {"-D", "--debug", "--debug-full", "--tls", "--tlsverify", "-r", "--remote", "--syslog"}
)
"""The flags of the programs themselves that take no value. All others take one."""
_WITH_VALUE_OF_SUDO = frozenset({"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "-U", "-r", "-t"})
_SWITCHES_WRITTEN = """
    detach disable-content-trust env-host help http-proxy init interactive no-healthcheck
    no-hostname no-hosts oom-kill-disable passwd privileged publish-all quiet read-only
    read-only-tmpfs replace rm rmi rootfs sig-proxy tls-verify tty unsetenv-all use-api-socket
"""
_SWITCHES = frozenset(_SWITCHES_WRITTEN.split())
"""The flags of `docker run`, `podman run` and `nerdctl run` that take no value."""
_WITH_VALUE_WRITTEN = """
    add-host annotation arch attach authfile blkio-weight blkio-weight-device cap-add cap-drop
    cert-dir cgroup-conf cgroup-parent cgroupns cgroups chrootdirs cidfile conmon-pidfile
    cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus
    cpuset-cpus cpuset-mems creds decryption-key detach-keys device device-cgroup-rule
    device-read-bps device-read-iops device-write-bps device-write-iops dns dns-opt dns-option
    dns-search domainname entrypoint env env-file env-merge expose gidmap gpus group-add
    group-entry health-cmd health-interval health-log-destination health-max-log-count
    health-max-log-size health-on-failure health-retries health-start-interval
    health-start-period health-startup-cmd health-startup-interval health-startup-retries
    health-startup-success health-startup-timeout health-timeout hostname hosts-file hostuser
    image-volume init-ctr init-path io-maxbandwidth io-maxiops ip ip6 ipc isolation
    kernel-memory label label-file link link-local-ip log-driver log-opt mac-address memory
    memory-reservation memory-swap memory-swappiness mount name net net-alias network
    network-alias oom-score-adj os passwd-entry personality pid pidfile pids-limit platform pod
    pod-id-file preserve-fd preserve-fds publish pull rdt-class requires restart retry
    retry-delay runtime sdnotify seccomp-policy secret security-opt shm-size shm-size-systemd
    stop-signal stop-timeout storage-opt subgidname subuidname sysctl systemd timeout tmpfs tz
    uidmap ulimit umask unsetenv user userns uts variant volume volume-driver volumes-from
    workdir
"""
_WITH_VALUE = frozenset(_WITH_VALUE_WRITTEN.split())
"""Those that take one."""
_LETTERS = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "u": "user",
    "w": "workdir",
    "h": "hostname",
    "m": "memory",
    "l": "label",
    "c": "cpu-shares",
    "d": "detach",
    "i": "interactive",
    "t": "tty",
    "P": "publish-all",
    "q": "quiet",
    "a": "attach",
}
_OF_A_SHELL = re.compile(r"\$\{[^}]*\}|\$\w+|\$\(|`")
"""A variable or a command, which a shell replaces."""
_BETWEEN_PARTS = re.compile(r":(?![^{]*\})")
"""The colons of a volume, but not that of `${HOME:-/root}`."""


def is_docker_run(text: str) -> bool:
    """Return whether a command line starts a container."""
    return _words_of_run(join_lines(text).split()) is not None


def _words_of_run(words: Sequence[str]) -> list[str] | None:
    """Return the words after `docker run`; None if it is another command."""
    rest = list(words)

    # Variables of the program itself.
    while rest and rest[0].partition("=")[0].isidentifier() and "=" in rest[0]:
        rest.pop(0)
    if rest[:1] == ["sudo"]:
        rest.pop(0)
        while rest and rest[0].startswith("-"):
            if rest.pop(0) in _WITH_VALUE_OF_SUDO and rest:
                rest.pop(0)
        while rest and rest[0].partition("=")[0].isidentifier() and "=" in rest[0]:
            rest.pop(0)

    if not rest or rest.pop(0).rpartition("/")[2] not in _PROGRAMS:
        return None
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag not in _SWITCHES_OF_PROGRAM and "=" not in flag and rest:
            rest.pop(0)

    if rest[:1] == ["container"]:
        rest.pop(0)
    return rest[1:] if rest[:1] == ["run"] else None


def read_docker_run(text: str, place: Path) -> Container:
    """Read a command line such as `docker run --gpus all vllm/vllm-openai --model …`.

    Args:
        text: the command line; lines may end with a backslash.
        place: the folder of this machine that relative paths start from.

    Raises:
        MatrixError: it can't be read, or names no image.
    """
    check_one_command(text)

    try:
        words = _words_of_run(shlex.split(join_lines(text))) or []
    except ValueError as error:
        raise MatrixError(f"command: {error}; write it as in a shell") from error

    reading = Reading(place)
    entrypoint: Sequence[str] | None = None
    while words and words[0].startswith("-"):
        if words[0] == "--":
            words.pop(0)
            break
        flag, value = _take_flag(words)
        if flag == "entrypoint":
            # An empty one stands for none at all.
            entrypoint = [value] if value else []
        elif flag == "env-file":
            raise MatrixError(
                f"command: --env-file {value}: isn't read; write its variables as engine_env"
            )
        elif flag == "env":
            _read_variable(reading, value)
        else:
            reading.left_out.append(f"--{flag}")
            _read_folder(reading, flag, value)

    if not words:
        raise MatrixError("command: names no image; write the whole `docker run` line")

    # From here on a variable of a shell would be part of what is measured.
    image, *arguments = words_of(shlex.join(words))
    for word in (image, *(entrypoint or ()), *arguments):
        unknown = _OF_A_SHELL.search(word)
        if unknown:
            raise MatrixError(
                f"command: '{unknown[0]}' is replaced elsewhere, and its value isn't written here;"
                " write the value"
            )

    return reading.container(image, entrypoint, arguments)


def _take_flag(words: list[str]) -> tuple[str, str]:
    """Remove a flag of `docker run` from the beginning, and return its long name and its value.

    Raises:
        MatrixError: it isn't known, so that its value can't be told from the image.
    """
    word = words.pop(0)
    if word.startswith("--"):
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals and name in _WITH_VALUE and words:
            value = words.pop(0)
        elif not equals and name not in _SWITCHES:
            raise MatrixError(
                f"command: {word}: isn't a flag of `docker run` that is known, so what follows may"
                f" be its value or the image; leave it out, or write {word}=VALUE"
            )
        return name, value

    # Letters may be joined, as in `-it`, and the last one may have its value: `-p8000:8000`.
    letter, rest = word[1:2], word[2:]
    if letter not in _LETTERS:
        raise MatrixError(f"command: {word}: isn't a flag of `docker run`; leave it out")
    name = _LETTERS[letter]
    if name in _SWITCHES:
        if rest and not rest.startswith("="):
            words.insert(0, f"-{rest}")
        return name, ""

    if not rest and words:
        return name, words.pop(0)
    return name, rest.removeprefix("=")


def _read_variable(reading: Reading, text: str) -> None:
    """Add the variable of `--env`.

    Raises:
        MatrixError: no variable can have the name.
    """
    name, equals, value = text.partition("=")
    is_written = equals and not _OF_A_SHELL.search(value)
    try:
        reading.set_variable(name, value if is_written else None)
    except MatrixError as error:
        raise MatrixError(f"command: --env {error}") from error


def _read_folder(reading: Reading, flag: str, value: str) -> None:
    """Add what a flag mounts, or the working folder."""
    if flag == "workdir":
        reading.folder = value
        return
    if flag == "tmpfs":
        reading.add(value.partition(":")[0], Mount(is_no_folder="a folder in memory, --tmpfs"))
        return
    if flag == "volume":
        source, *rest = _BETWEEN_PARTS.split(value)
        # With one part only, that is the target of a volume without a name.
        target = rest[0] if rest else source
        source = source if rest else ""
    elif flag == "mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        source = parts.get("source", parts.get("src", ""))
        target = parts.get("target", parts.get("destination", parts.get("dst", "")))
    else:
        return

    unknown = _OF_A_SHELL.search(source)
    if target:
        reading.mount(source, target, unknown=unknown[0] if unknown else "")
