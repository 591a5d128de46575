"""Name the launches of servers, and the files of their logs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One of several starts of the same server.

    Attributes:
        number: the number of the launch, from 1.
        only_for: the id of the only case that may use the server; empty if cases share it.
        side: the side of a gate that the server belongs to; empty in a run.
    """

    spec: ServerSpec
    number: int
    only_for: str = ""
    side: str = ""

    @property
    def id(self) -> str:
        """The id of the server, or of its only case; the second launch adds `-launch2`.

        The launches of a gate begin with their number and side, such as `001-B-vllm-eagle3-tiny`.
        """
        if self.side:
            return f"{self.number:03}-{self.side}-{self.spec.id}"
        name = self.only_for or self.spec.id
        return name + self.suffix

    def case_id(self, case: Case) -> str:
        """Return the id of a case on this launch; the second launch adds `-launch2`."""
        return case.id + self.suffix

    @property
    def suffix(self) -> str:
        """The end of names that belong to this launch; empty for the first launch."""
        return f"-launch{self.number}" if self.number > 1 else ""


def launch_pair(case: Case, number: int) -> tuple[Launch, Launch]:
    """Return the launches of a case's control and of its server.

    Args:
        number: the number of both launches, from 1.

    Returns:
        The launch of the control and the launch of the server. Both are the server's if the case
        has no control.
    """
    server = Launch(spec=case.server, number=number, only_for=case.only_for)
    if case.control is None:
        return server, server
    control = Launch(spec=case.control, number=number)
    return control, server


def cases_by_server(cases: Iterable[Case]) -> Mapping[Launch, Sequence[Case]]:
    """Return the server groups: the first launch of each server, with the cases that share it.

    Servers and cases keep their order. The cases of a server have the same control, because the
    control follows from the server.
    """
    groups: dict[Launch, list[Case]] = {}
    for case in cases:
        _, server = launch_pair(case, 1)
        groups.setdefault(server, []).append(case)
    return groups


def weights_log(server_log: Path) -> Path:
    """Return the path of the log of fetching a server's models, given the path of its own log."""
    return server_log.with_name(f"{server_log.stem}~weights{server_log.suffix}")


def numbered(path: Path, number: int) -> Path:
    """Return the path of a further log of the same server, such as `server~2.log`.

    No id has a tilde. With a dash, the second log of server `tiny` would be the first of `tiny-2`.
    """
    return path.with_name(f"{path.stem}~{number}{path.suffix}")


def log_paths(logs: Path, launch: Launch) -> Sequence[Path]:
    """Return the logs of a launch, also those of further attempts and of other shards.

    Args:
        logs: the folder of the logs, which need not exist.
    """
    pattern = re.compile(rf"{re.escape(launch.id)}(~\d+)?(~shard\d+)?\.log")
    if not logs.is_dir():
        return []
    paths = [path for path in logs.iterdir() if pattern.fullmatch(path.name) and path.is_file()]
    return sorted(paths, key=lambda path: path.stem)
