"""The way to a Ray cluster: an address in, a cluster whose nodes have said what they are out."""

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import SpecregError
from specreg.many.nodes import Node
from specreg.many.on_node import Survey, check_same
from specreg.many.on_ray import RAY_OPTION, RayCluster, pinned_to
from specreg.many.places import Ground, Machine

_REACHED_WITHIN_S = 10.0
_SURVEYED_WITHIN_S = 120.0
_SETTINGS = b"\x04"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5)
"""What gRPC begins with, being HTTP/2, and what answers it: a frame of settings (RFC 9113, 3.4)."""
_SHOWS_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""Has Ray leave CUDA_VISIBLE_DEVICES alone for who asks for no GPU (ray-project/ray#54928)."""
_VERSION = re.compile(r"^\s*(Ray|Python): (\S+)$", re.MULTILINE)
"""What Ray says of the cluster, then of this process, where they don't go together."""


def connect(address: str) -> RayCluster:
    """The cluster at an address.

    Args:
        address: of its head, HOST:PORT; or `auto`, of the one that this machine is a node of.

    Raises:
        SpecregError: Ray isn't installed, nothing answers there within time, or a node has another
            specreg.
    """
    ray = _load_ray()
    _check_address(address)
    with _undisturbed():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except Exception as error:
            raise SpecregError(f"{RAY_OPTION} '{address}': {why_not(error)}") from error
        return RayCluster(ray=ray, nodes=_survey(ray))


def why_not(error: Exception) -> str:
    """Why a cluster that answers doesn't take this process, and what to do."""
    versions = _VERSION.findall(str(error))
    if [name for name, _ in versions] == ["Ray", "Python"] * 2:
        (_, its_ray), (_, its_python), (_, our_ray), (_, our_python) = versions
        return (
            f"the cluster runs Ray {its_ray} on Python {its_python}, this machine Ray {our_ray} on"
            f" Python {our_python}; install Ray {its_ray} here, on Python {its_python}"
        )
    first = str(error).strip().partition("\n")[0]
    return (
        f"no cluster answers, {type(error).__name__}: {first}; start one with `ray start --head`,"
        " and run on one of its nodes"
    )


def _load_ray() -> Any:  # noqa: ANN401 - it says nothing of its types
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("ray")
    except ImportError as error:
        message = f"{RAY_OPTION}: Ray can't be imported, {error}; {install_command('ray')}"
        raise SpecregError(message) from error


def _check_address(address: str) -> None:
    """Silent where a server of Ray's protocol, gRPC, listens; Ray itself would try for minutes.

    Raises:
        SpecregError: nobody does, or it is no address of a cluster.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        message = f"{RAY_OPTION} '{address}': needs HOST:PORT of the cluster's head, or auto"
        raise SpecregError(f"{message}; run on one of its nodes, or with `ray job submit`")
    try:
        with socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN_S) as asked:
            asked.sendall(_HTTP2)
            if asked.recv(4)[3:] != _SETTINGS and os.environ.get("RAY_USE_TLS") != "1":
                raise ConnectionError("whoever listens there isn't Ray")
    except (OSError, OverflowError) as error:
        message = (
            f"{RAY_OPTION} '{address}': nothing answers within {_REACHED_WITHIN_S:g} s ({error});"
            " check the address, and that the cluster is up"
        )
        raise SpecregError(message) from error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ray takes SIGTERM over, and warns; a run ends its servers at that signal."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _survey(ray: Any) -> list[Node]:  # noqa: ANN401 - as above
    """Asks each node that lives what it is.

    Raises:
        SpecregError: one doesn't answer, or has another specreg.
    """
    task = ray.remote(_question())
    living = [one for one in ray.nodes() if one["Alive"]]
    asked = [
        task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=pinned_to(one["NodeID"]),
            runtime_env=_SHOWS_GPUS,
        ).remote()
        for one in living
    ]
    ray.wait(asked, num_returns=len(asked), timeout=_SURVEYED_WITHIN_S)
    names = _names(living)
    surveys = [_answer(ray, name, reference) for name, reference in zip(names, asked, strict=True)]
    hosts = _hosts([said for said in surveys if said is not None])
    return [
        Node(
            id=one["NodeID"],
            name=name,
            gpus=said.site.gpus[: int(one["Resources"].get("GPU", 0))],
            cores=int(one["Resources"].get("CPU", 0)),
            site=said.site,
            host=hosts[said.boot_id],
        )
        for one, name, said in zip(living, names, surveys, strict=True)
        if said is not None
    ]


def _names(nodes: Sequence[Any]) -> list[str]:
    """Their addresses; where several share one, with the beginning of their ids."""
    shared = Counter(one["NodeManagerAddress"] for one in nodes)
    return [
        f"{name} ({one['NodeID'][:6]})" if shared[name] > 1 else name
        for one in nodes
        for name in [one["NodeManagerAddress"]]
    ]


def _hosts(surveys: Sequence[Survey]) -> Mapping[str, Ground]:
    """The machines of the nodes; on each, servers without a GPU still run one at a time."""
    return {
        boot_id: Ground(
            machine=Machine(
                gpus=tuple({gpu.id: gpu for one in shared for gpu in one.site.gpus}.values()),
                cores=max(one.cores for one in shared),
            )
        )
        for boot_id in dict.fromkeys(one.boot_id for one in surveys)
        for shared in [[one for one in surveys if one.boot_id == boot_id]]
    }


def _question() -> Callable[[], bytes]:
    """What each node runs; it goes there as it is, as another specreg may not have it."""

    def ask() -> bytes:
        import msgspec  # noqa: PLC0415 - where it runs, not here

        from specreg.many.on_node import survey  # noqa: PLC0415 - the same

        return msgspec.msgpack.encode(survey())

    return ask


def _answer(ray: Any, name: str, reference: Any) -> Survey | None:  # noqa: ANN401 - as above
    """What a node said; None of one that is gone, as Ray notices only after a while.

    Raises:
        SpecregError: nothing, or it has another specreg.
    """
    try:
        said = msgspec.msgpack.decode(ray.get(reference, timeout=1), type=Survey)
    except ray.exceptions.GetTimeoutError as error:
        message = f"{RAY_OPTION}: node {name} says nothing for {_SURVEYED_WITHIN_S:g} s"
        raise SpecregError(f"{message}; look into Ray's logs there") from error
    except (
        ray.exceptions.RayTaskError,
        ray.exceptions.RuntimeEnvSetupError,
        msgspec.MsgspecError,
    ) as error:
        last = str(error).strip().rpartition("\n")[2]
        message = f"{RAY_OPTION}: node {name} has another specreg, or none ({last})"
        raise SpecregError(
            f"{message}; install this one on each node, on the same Python"
        ) from error
    except ray.exceptions.RayError:
        return None
    check_same(f"{RAY_OPTION}: node {name}", said.version, said.sources_sha256)
    return said
