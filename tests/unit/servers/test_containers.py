"""Servers from container images, on a scripted docker whose containers belong to its daemon."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specreg.core.errors import (
    EnvironmentSetupError,
    ServerDiedError,
    ServerStartError,
    UnsupportedError,
)
from specreg.engines.server_spec import ServerSpec
from specreg.servers.container_owner import has_ended, own_mark
from specreg.servers.containers import (
    ARGUMENTS_VARIABLE,
    RUNTIME_VARIABLE,
    Apptainer,
    Image,
    Inside,
    Runtime,
    find_runtime,
)
from specreg.servers.invocation import inside_container
from specreg.servers.provision import Provision, parse_origin
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders.scripted_docker import DIGEST, IMAGE, Docker, scripted_docker
from tests.unit.builders.started_servers import PROVISION, left_of, start

SECRET = "hf_0123456789abcdefghijklmnop"  # noqa: S105 - a planted one


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    with scripted_docker(tmp_path, monkeypatch) as running_docker:
        yield running_docker


PROVISION_OF_IMAGE = dataclasses.replace(PROVISION, python=None)
SPEC = dataclasses.replace(
    builders.SPEC, image=IMAGE, engine_env=(("HF_TOKEN", SECRET), ("HOME_OF_TEAM", "/x y"))
)


def start_in_image(
    folder: Path, script: Script, spec: ServerSpec = SPEC, ready_within_s: float = 30.0
) -> contextlib.AbstractContextManager[StartedServer]:
    own = dict(spec.engine_env)
    scripted = builders.scripted(spec, script, folder)
    spec = dataclasses.replace(spec, engine_env=tuple({**own, **dict(scripted.engine_env)}.items()))
    return start(
        folder, script, spec=spec, provision=PROVISION_OF_IMAGE, ready_within_s=ready_within_s
    )


def test_a_server_of_an_image_lives_and_ends_like_any_other(docker: Docker, tmp_path: Path) -> None:
    with start_in_image(tmp_path, Script()) as server:
        assert server.engine_version == "99.0+scripted"
        assert (server.facts.image, server.facts.image_digest) == (IMAGE, DIGEST)
        assert any(line.startswith("msgspec==") for line in server.packages)
        server.check_alive()
        of_daemon = {process.pid for process in left_of(tmp_path)}
        assert of_daemon
        assert of_daemon <= server.pids()
        arguments = docker.arguments
        assert "--rm" in arguments
        assert {"--network", "--ipc", "--cidfile", "--name", "--label"} <= {*arguments}
        assert arguments[arguments.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
        assert SECRET not in " ".join(arguments)
    assert docker.containers == []
    assert left_of(tmp_path) == []


def test_a_container_that_dies_is_an_end_like_any_other(docker: Docker, tmp_path: Path) -> None:
    del docker
    with start_in_image(tmp_path, Script()) as server:
        for process in left_of(tmp_path):
            process.kill()
        with pytest.raises(ServerDiedError, match=r"ended with status (137|-9)"):
            server.check_alive()


def test_a_failed_start_is_told_by_the_same_table(docker: Docker, tmp_path: Path) -> None:
    script = Script(fault=Fault.EXIT_AT_START)
    with pytest.raises(ServerStartError) as error, start_in_image(tmp_path, script):
        pass
    assert "ended with status" in error.value.failure
    assert docker.containers == []


def test_a_container_that_never_gets_ready_is_removed(docker: Docker, tmp_path: Path) -> None:
    slow = Script(ready_after_s=60.0)
    with (
        pytest.raises(ServerStartError, match="no token in time"),
        start_in_image(tmp_path, slow, ready_within_s=3.0),
    ):
        pass
    assert docker.containers == []
    assert left_of(tmp_path) == []


def test_a_client_that_is_killed_leaves_no_container(docker: Docker, tmp_path: Path) -> None:
    with start_in_image(tmp_path, Script()) as server:
        server.process.popen.kill()
        server.process.popen.wait()
        assert docker.containers
        with pytest.raises(ServerDiedError):
            server.check_alive()
    assert docker.containers == []
    assert left_of(tmp_path) == []


def test_a_daemon_that_is_killed_leaves_no_server(docker: Docker, tmp_path: Path) -> None:
    with start_in_image(tmp_path, Script()) as server:
        assert server.pids()
        docker.daemon.kill()
        docker.daemon.wait()
    assert left_of(tmp_path) == []


def test_a_run_keeps_its_image_if_the_tag_moves(docker: Docker, tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, image="team/moving:latest")
    docker.images({spec.image: DIGEST})
    digests = []
    for _ in range(2):
        with start_in_image(tmp_path, Script(), spec) as server:
            assert DIGEST in docker.arguments
            digests.append(server.facts.image_digest)
        docker.images({spec.image: "sha256:" + "ef" * 32})
    assert digests == [DIGEST, DIGEST]


def test_the_variables_that_choose_gpus_stay_outside() -> None:
    spec = dataclasses.replace(builders.SPEC, engine_env=(("CUDA_VISIBLE_DEVICES", "3"),))
    inside = inside_container(
        spec,
        builders.SITE,
        root=Path("/repository"),
        folders=(Path("/tmp/a"), Path("/home/a")),  # noqa: S108 - nothing is written
        gpu_ids=("GPU-3",),
    )
    assert inside.gpu_ids == ("GPU-3",)
    assert "CUDA_VISIBLE_DEVICES" not in inside.variables


def test_the_paths_of_arguments_are_mounted_if_they_are_here(tmp_path: Path) -> None:
    (tmp_path / "template").touch()
    arguments = ("--chat-template", f"{tmp_path}/template", f"--x={tmp_path}/none", "--y", "/usr")
    inside = inside_container(
        dataclasses.replace(builders.SPEC, engine_args=arguments),
        builders.SITE,
        root=Path("/repository"),
        folders=(tmp_path / "a", tmp_path / "b"),
        gpu_ids=(),
    )
    assert tmp_path / "template" in inside.read_only
    assert not {tmp_path / "none", Path("/usr")} & {*inside.read_only}


HOLDER = """
import sys, time
from pathlib import Path
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import Script
from tests.unit.servers.test_containers import start_in_image
with start_in_image(Path(sys.argv[1]), Script()) as server:
    print(server.process.supervisor.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("with_supervisor", [False, True])
def test_a_run_that_is_killed_leaves_no_container(
    docker: Docker, tmp_path: Path, *, with_supervisor: bool
) -> None:
    command = (sys.executable, "-c", HOLDER, str(tmp_path))
    with subprocess.Popen(command, cwd=builders.ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        supervisor = int(holder.stdout.readline())
        killed = [supervisor, holder.pid] if with_supervisor else [holder.pid]
        for process_id in killed:
            os.kill(process_id, signal.SIGKILL)
    if with_supervisor:
        # Nobody is left to end it, so the next run does.
        assert docker.containers
        find_runtime().remove_left_over()
    # The container goes first, and then what waited for it.
    until_s = time.monotonic() + 20
    while (docker.containers or left_of(tmp_path)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert docker.containers == []
    assert left_of(tmp_path) == []


def test_the_container_of_a_run_that_goes_on_is_left_to_it(docker: Docker, tmp_path: Path) -> None:
    with start_in_image(tmp_path, Script()) as server:
        find_runtime().remove_left_over()
        server.check_alive()
        assert docker.containers


def test_an_owner_is_known_by_ticks_that_no_clock_moves() -> None:
    mark = own_mark()
    # Field 22 of proc_pid_stat(5). The name of the program may have blanks and parentheses.
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert mark.split("/")[2:] == [str(os.getpid()), ticks]
    assert not has_ended(mark)
    assert has_ended(f"{mark}0")
    with subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)")) as other:
        ticks = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        mark = "/".join((*mark.split("/")[:2], str(other.pid), ticks))
        assert not has_ended(mark)
        other.kill()
        other.wait()
        assert has_ended(mark)


@pytest.mark.parametrize("mark", ["", "a/b", "a/b/1/2", "{boot}/{pid}/1.5"])
def test_an_owner_that_cannot_be_known_is_taken_to_live(mark: str) -> None:
    boot = "/".join(own_mark().split("/")[:2])
    assert not has_ended(mark.format(boot=boot, pid=2**30))


def test_an_image_is_pulled_once_with_progress(docker: Docker) -> None:
    docker.registry("team/new:2", id="sha256:" + "cd" * 32)
    shown: list[str] = []
    spec = dataclasses.replace(SPEC, image="team/new:2")
    provision = dataclasses.replace(PROVISION_OF_IMAGE, show=shown.append)
    container = provision.container(spec)
    assert container is not None
    assert container[1].digest == "sha256:" + "cd" * 32
    provision.container(spec)
    assert shown == ["pulling team/new:2 (once)"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("manifest for team/x:1 not found: manifest unknown", "no such image or tag; check"),
        (
            "pull access denied for team/x, repository does not exist or may need 'docker login'",
            "no right to pull it, or no such repository; check its name, or log in",
        ),
        ("write /var/lib/docker/tmp/x: no space left on device", "the disk of the runtime is full"),
        ('Get "https://r/v2/": dial tcp: lookup r: no such host', "registry can't be reached"),
        (
            "toomanyrequests: You have reached your unauthenticated pull rate limit.",
            "limit of pulls is reached; log in to it",
        ),
        (
            "reading manifest 1 in docker.io/team/x: 429 Too Many Requests",
            "limit of pulls is reached; log in to it",
        ),
        (
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
            "isn't built for this machine's processor; use a tag",
        ),
        (
            "no image found in manifest list for architecture arm64, OS linux",
            "isn't built for this machine's processor; use a tag",
        ),
        (
            'Get "https://r/v2/": x509: certificate signed by unknown authority',
            "certificate isn't trusted; put the certificate",
        ),
        (
            'Get "https://r:5000/v2/": http: server gave HTTP response to HTTPS client',
            "registry has no TLS; add it to insecure-registries",
        ),
        (
            'exec: "docker-credential-desktop": executable file not found in $PATH, out: ``',
            "program that keeps its passwords is missing; install it, or remove",
        ),
        (
            'Get "https://r/v2/": context deadline exceeded',
            "registry can't be reached; check the network",
        ),
    ],
)
def test_an_image_that_cannot_be_pulled_says_what_to_do(
    docker: Docker, answer: str, says: str
) -> None:
    docker.registry("team/x:1", error=answer)
    provision = PROVISION_OF_IMAGE
    with pytest.raises(EnvironmentSetupError, match=says):
        provision.container(dataclasses.replace(SPEC, image="team/x:1"))


def test_a_tag_that_a_registry_refuses_is_said_before_anything_starts(docker: Docker) -> None:
    del docker
    case = dataclasses.replace(
        builders.CASE, server=dataclasses.replace(SPEC, image="team/gone:9"), control=None
    )
    with pytest.raises(UnsupportedError, match="image 'team/gone:9': no such image or tag"):
        PROVISION_OF_IMAGE.check([case])


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///v",
            "this user may not use the socket of its daemon; add the user to the group docker",
        ),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "start it"),
        ("something new", "fails: something new; repair it"),
    ],
)
def test_a_runtime_that_does_not_work_says_what_to_do(
    docker: Docker, monkeypatch: pytest.MonkeyPatch, output: str, says: str
) -> None:
    (docker.state / "problem.txt").write_text(output)
    monkeypatch.setenv(RUNTIME_VARIABLE, "docker")
    with pytest.raises(UnsupportedError, match=says):
        find_runtime()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (ARGUMENTS_VARIABLE, "--ulimit 'x", "SPECREG_CONTAINER_ARGS: No closing quotation; write"),
        (RUNTIME_VARIABLE, "docker 'x", "SPECREG_CONTAINER_RUNTIME: No closing quotation; write"),
        (RUNTIME_VARIABLE, "  ", "SPECREG_CONTAINER_RUNTIME: names no program"),
        (RUNTIME_VARIABLE, "''", "SPECREG_CONTAINER_RUNTIME: names no program"),
    ],
)
def test_a_setting_that_is_no_command_line_is_named(
    docker: Docker, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    del docker
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedError, match=says):
        find_runtime()
    if variable == RUNTIME_VARIABLE:
        with pytest.raises(UnsupportedError, match="--specreg-container-runtime: "):
            find_runtime(value)


@pytest.mark.parametrize(
    ("program", "version", "is_podman"),
    [
        ("docker", "podman version 4.3.1", True),
        # podman under another name: it prints how it was called.
        ("docker", "docker version 5.4.0", True),
        ("docker", "Docker version 28.2.2, build e6534b4", False),
        ("podman", "Docker version 28.2.2, build e6534b4", False),
        ("our-containers", "podman version 5.4.0", True),
    ],
)
def test_podman_is_known_by_its_answer(
    tmp_path: Path, program: str, version: str, *, is_podman: bool
) -> None:
    path = tmp_path / program
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" || echo 1.2.3\n')
    path.chmod(0o755)
    runtime = find_runtime(str(path))
    assert runtime.is_podman == is_podman
    image = Image(name=IMAGE, digest=DIGEST, source=DIGEST)
    inside = Inside(variables={}, gpu_ids=("GPU-1",))
    command = runtime.wrap(image, ("python3",), inside).command
    assert ("nvidia.com/gpu=GPU-1" in command, "--gpus" in command) == (is_podman, not is_podman)


def test_a_client_of_docker_at_the_service_of_podman_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "docker"
    path.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo "Docker version 28.2.2, build e6534b4"'
        ' || echo "5.4.0 Podman Engine,Conmon,"\n'
    )
    path.chmod(0o755)
    with pytest.raises(UnsupportedError, match=r"it asks podman's service.*podman"):
        find_runtime(str(path))


REPOSITORIES = (
    f"docker.io/team/other@sha256:{'01' * 32}",
    f"docker.io/team/engine@sha256:{'0c' * 32}",
    f"docker.io/team/engine@sha256:{'0b' * 32}",
    f"localhost/engine@sha256:{'0d' * 32}",
    f"docker.io/library/python@sha256:{'0e' * 32}",
)


@pytest.mark.parametrize(
    ("name", "byte"),
    [
        ("team/engine:1", "0b"),
        ("docker.io/team/engine", "0b"),
        (f"team/engine:1@sha256:{'0c' * 32}", "0c"),
        ("engine:1", "0d"),
        ("python:3", "0e"),
        ("team/mine:1", "ab"),
    ],
)
def test_a_digest_is_that_of_the_named_repository(docker: Docker, name: str, byte: str) -> None:
    docker.images({name: DIGEST}, REPOSITORIES)
    image = Runtime(program=("docker",)).find(name)
    assert image is not None
    assert image.digest == f"sha256:{byte * 32}"


def test_images_of_apptainer_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    apptainer = Apptainer(program=("apptainer",))

    def pull(command: Sequence[str]) -> None:
        Path(command[-2]).write_text(command[-1])

    for name in ("team/vllm-openai:1", "team-vllm/openai:1"):
        apptainer.pull(name, pull)
    sources = []
    for name in ("team/vllm-openai:1", "team-vllm/openai:1"):
        image = apptainer.find(name)
        assert image is not None
        sources.append(Path(image.source).read_text())
    assert sources == ["docker://team/vllm-openai:1", "docker://team-vllm/openai:1"]


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("a,b", Runtime(program=("docker",))),
        ('a"b', Runtime(program=("docker",))),
        ("a,b", Apptainer(program=("apptainer",))),
        ("a:b", Apptainer(program=("apptainer",))),
    ],
)
def test_a_folder_that_no_mount_can_name_is_refused(name: str, runtime: Runtime) -> None:
    image = Image(name=IMAGE, digest=DIGEST, source=DIGEST)
    folder = Path("/work") / name
    for inside in (
        Inside(variables={}, folder=folder),
        Inside(variables={}, read_only=(folder,)),
        Inside(variables={}, writable=(folder,)),
    ):
        with pytest.raises(UnsupportedError, match=f"folder '/work/{name}': .* can't be mount"):
            runtime.wrap(image, ("python3",), inside)


def test_the_cache_of_the_hub_is_mounted_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache/hub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "cache")
    inside = inside_container(
        builders.SPEC, builders.SITE, root=tmp_path, folders=(tmp_path, tmp_path), gpu_ids=()
    )
    assert inside.variables["HF_HUB_CACHE"] == str(tmp_path / "cache/hub")
    assert tmp_path / "cache/hub" in inside.read_only


def test_without_a_runtime_the_error_names_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    with pytest.raises(UnsupportedError, match="none of docker, podman, apptainer is on PATH"):
        find_runtime()


def test_each_runtime_is_given_the_gpus_by_their_uuids() -> None:
    image = Image(name=IMAGE, digest=DIGEST, source=DIGEST)
    inside = Inside(variables={"A": "b"}, gpu_ids=("GPU-1", "GPU-2"))
    docker = Runtime(program=("docker",)).wrap(image, ("python3",), inside).command
    assert docker[docker.index("--gpus") + 1] == '"device=GPU-1,GPU-2"'
    podman = Runtime(program=("podman",), is_podman=True).wrap(image, ("python3",), inside).command
    assert podman.count("--device") == 2
    assert "nvidia.com/gpu=GPU-2" in podman
    sif = Image(name="/images/engine.sif", digest=DIGEST, source="/images/engine.sif")
    apptainer = Apptainer(program=("apptainer",)).wrap(sif, ("python3",), inside)
    assert "--nv" in apptainer.command
    assert apptainer.variables["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_an_image_and_another_source_of_the_engine_contradict_each_other(docker: Docker) -> None:
    del docker
    case = dataclasses.replace(builders.CASE, server=SPEC, control=None)
    provision = Provision(on_gpu=False, show=print, version="0.31.0")
    with pytest.raises(UnsupportedError, match="with image 'team/engine:1'"):
        provision.check([case])


def test_a_side_of_a_gate_may_be_an_image() -> None:
    assert parse_origin("image:vllm/vllm-openai:v0.33.0").image == "vllm/vllm-openai:v0.33.0"
    with pytest.raises(UnsupportedError, match="isn't the name of an image"):
        parse_origin("image:")
