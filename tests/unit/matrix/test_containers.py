"""A table of cases that has the container in which somebody runs the server.

The lines of `docker run` have the form of those in vLLM's page "Using Docker", in SGLang's page
"Install", and in the quick start of TensorRT-LLM.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specreg.core.errors import MatrixError
from specreg.core.redaction import hide
from specreg.engines.server_spec import Parallel
from specreg.matrix.case import Case, Tier
from specreg.matrix.tier import load_tier
from tests.unit import builders
from tests.unit.builders.container_files import EAGLE3, SECRET, SGLANG_COMPOSE, VLLM_KUBERNETES

OTHER_SECRET = "sk-PLANTED-4567"  # noqa: S105 - planted
LOAD = 'dataset = "toy"\nconcurrency = [2]\nprompts = 8\noutput_cap_tokens = 16\n'


def load(folder: Path, command: str, keys: str = "") -> Tier:
    """The tier of a command, which is a text or a table of TOML."""
    (folder / "matrix").mkdir(exist_ok=True)
    text = f"needs_gpus = 1\n[[cases]]\ncommand = {command}\n{keys}\n{LOAD}"
    (folder / "matrix/mine.toml").write_text(text)
    return load_tier(folder / "matrix", "mine")


def quoted(command: str) -> str:
    return f"'''\n{command}\n'''"


def in_file(folder: Path, content: str, *, name: str = "server.yaml", **which: str) -> str:
    """The table of TOML that names a file of the tier's folder."""
    (folder / "matrix").mkdir(exist_ok=True)
    (folder / "matrix" / name).write_text(content)
    ((key, value),) = which.items()
    return f'{{ file = "{name}", {key} = "{value}" }}'


def only_case(tier: Tier) -> Case:
    (case,) = (case for case in tier.cases if case.speculates or len(tier.cases) == 1)
    return case


def notes_of(tier: Tier) -> str:
    (lines,) = tier.commands.values()
    return "\n".join(lines)


def refuse(folder: Path, command: str, words: str) -> str:
    with pytest.raises(MatrixError, match=words) as refused:
        load(folder, command)
    return str(refused.value)


VLLM_DOCKER = f"""
docker run --runtime nvidia --gpus all \\
    -v ~/.cache/huggingface:/root/.cache/huggingface \\
    --env "HF_TOKEN={SECRET}" -e VLLM_LOGGING_LEVEL=DEBUG \\
    -p 8000:8000 --ipc=host -it --rm \\
    vllm/vllm-openai:v0.33.0 \\
    --model some/target --host 0.0.0.0 --port 8000 --max-model-len 4096 --seed 7 \\
    --speculative-config '{EAGLE3}' --enable-prefix-caching
"""


def test_a_docker_run_of_vllm_is_its_image_and_the_keys_of_a_case(tmp_path: Path) -> None:
    tier = load(tmp_path, quoted(VLLM_DOCKER))
    case = only_case(tier)
    server = case.server
    assert (server.engine, server.image) == ("vllm", "vllm/vllm-openai:v0.33.0")
    assert server.method == "eagle3"
    assert (server.target, server.draft, server.draft_tokens) == ("some/target", "some/head", 5)
    assert (server.max_model_len_tokens, server.engine_args) == (4096, ("--seed", "7"))
    assert server.engine_env == (("VLLM_LOGGING_LEVEL", "DEBUG"),)
    assert case.control == server.without_speculation
    notes = notes_of(tier)
    assert "--runtime, --gpus, --volume, --publish, --ipc, --interactive, --tty, --rm" in notes
    for name in ("--host", "--port", "--enable-prefix-caching", "HF_TOKEN"):
        assert f"# {name} is left out" in notes
    # The secret is named, left out and hidden.
    assert SECRET not in notes
    assert SECRET not in hide(f"echoed {SECRET}")


@pytest.mark.parametrize(
    "start",
    [
        "sudo docker run -d -p8000:8000 --gpus '\"device=0,1\"' -eNCCL_DEBUG=INFO",
        "podman run --rm --device nvidia.com/gpu=all --env=NCCL_DEBUG=INFO --replace --name vllm",
        "nvidia-docker run -dit --shm-size 16g --ulimit memlock=-1 -e NCCL_DEBUG=INFO",
        "docker container run --network host --restart always -e NCCL_DEBUG=INFO --init",
    ],
)
def test_flags_of_the_runtime_are_told_from_the_image(tmp_path: Path, start: str) -> None:
    tier = load(tmp_path, quoted(f"{start} vllm/vllm-openai:latest some/target -tp 2"))
    server = only_case(tier).server
    assert (server.image, server.target) == ("vllm/vllm-openai:latest", "some/target")
    assert server.parallel == Parallel(tensor=2)
    assert server.engine_env == (("NCCL_DEBUG", "INFO"),)


SERVERS = {
    "docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path some/target"
    " --port 30000": "sglang",
    "docker run --ipc host nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc29 trtllm-serve some/target"
    " --port 8000": "tensorrt_llm",
    "docker run --entrypoint vllm registry.local:5000/team/llm:1 serve some/target": "vllm",
    "docker run --entrypoint python3 x/y -m sglang.launch_server --model some/target": "sglang",
    "docker run public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo@sha256:0123 some/target": "vllm",
    "docker run nvcr.io/nvidia/vllm:26.10-py3 bash -lc 'exec vllm serve some/target'": "vllm",
}


@pytest.mark.parametrize(("command", "engine"), SERVERS.items())
def test_the_engine_is_what_runs_in_the_container(
    tmp_path: Path, command: str, engine: str
) -> None:
    server = only_case(load(tmp_path, quoted(command))).server
    assert (server.engine, server.target) == (engine, "some/target")
    assert server.image in command.split()


def test_a_folder_in_the_container_is_the_one_that_is_mounted_there(tmp_path: Path) -> None:
    models = tmp_path / "models"
    config = EAGLE3.replace("some/head", "/m/head")
    command = (
        f"docker run -v {models}:/m:ro --mount type=bind,source=/data,target=/data"
        f" vllm/vllm-openai /m/target --speculative-config '{config}' --tokenizer /data/t"
    )
    tier = load(tmp_path, quoted(command))
    server = only_case(tier).server
    assert (server.target, server.draft) == (f"{models}/target", f"{models}/head")
    for mount in ("", f"-v {models}:/mm"):
        command = f"docker run {mount} vllm/vllm-openai /m/target"
        refuse(tmp_path, quoted(command), "'/m/target' is a folder in the container.*mount one, or")


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ("-v models:/m", "in the volume 'models'"),
        ("-v /m", "in a volume without a name"),
        ("--tmpfs /m:size=1g", "in a folder in memory"),
        ("--mount type=volume,source=models,target=/m", "in the volume 'models'"),
        ("-v $PWD:/m", r"in '\$PWD', where '\$PWD' is replaced elsewhere"),
        ("-v $HOME/models:/m:ro", r"in '\$HOME/models', where '\$HOME' is replaced elsewhere"),
        ("-v ${HOME:-/root}/models:/m", r"in .*, where '\$\{HOME:-/root\}' is replaced elsewhere"),
        ("-v $(pwd)/models:/m", r"in .*, where '\$\(' is replaced elsewhere"),
        ("-v ~no_such_user/x:/m", "in '~no_such_user/x', a home that this machine doesn't have"),
        ("-v /data:/m -v models:/m/target", "in the volume 'models'"),
    ],
)
def test_a_model_in_what_is_no_folder_of_this_machine_says_so(
    tmp_path: Path, mounts: str, words: str
) -> None:
    command = f"docker run {mounts} vllm/vllm-openai /m/target"
    refuse(tmp_path, quoted(command), f"model '/m/target' is a path in the container, {words}")
    # Nothing else needs that folder.
    load(tmp_path, quoted(f"docker run {mounts} vllm/vllm-openai some/target"))


@pytest.mark.parametrize(
    ("mounts", "model", "folder"),
    [
        ("-v /data:/m -v /d2:/m/s", "/m/s/x", "/d2/x"),
        ("-v /d2:/m/s/ -v /data:/m", "/m/s/x", "/d2/x"),
        ("-v /data:/m -v /d2:/m/s", "/m/sx", "/data/sx"),
        ("-v /data:/m -v /d2:/m/s", "/m/t/../s/x", "/d2/x"),
        ("-v /data:/ ", "/m/x", "/data/m/x"),
        ("-v /data:/m -w /m/s", "./x", "/data/s/x"),
        ("-v /data:/m -w /m/s", "../x", "/data/x"),
    ],
)
def test_the_deepest_mount_is_the_one_that_a_model_is_in(
    tmp_path: Path, mounts: str, model: str, folder: str
) -> None:
    tier = load(tmp_path, quoted(f"docker run {mounts} vllm/vllm-openai {model}"))
    assert only_case(tier).server.target == folder


def test_a_path_from_the_folder_of_the_image_is_refused(tmp_path: Path) -> None:
    command = "docker run -v /data:/m vllm/vllm-openai ./x"
    refuse(tmp_path, quoted(command), "'./x' starts from the working folder of the image")


def test_paths_of_flags_are_those_on_this_machine(tmp_path: Path) -> None:
    start = "docker run -v /data:/m -v models:/v vllm/vllm-openai some/target"
    tier = load(tmp_path, quoted(f"{start} --tokenizer /m/t --chat-template=/m/c --x /image/y"))
    assert only_case(tier).server.engine_args == (
        *("--tokenizer", "/data/t", "--chat-template", "/data/c", "--x", "/image/y"),
    )
    assert "engine_args names paths in the container: /image/y" in notes_of(tier)
    refuse(tmp_path, quoted(f"{start} --tokenizer /v/t"), "'/v/t' is a path in the container, in")


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve a/b\nsleep infinity",
        "vllm serve a/b --x; sleep 5",
        "vllm serve a/b --x y&",
        "vllm serve a/b|tee log",
        "set -e\nvllm serve a/b",
        "vllm serve a/b&&sleep 5",
    ],
)
def test_only_one_command_is_read_of_what_a_shell_runs(tmp_path: Path, script: str) -> None:
    words = "is for a shell.* only one is read"
    for start in ("docker run --entrypoint sh x/y -c", "docker run x/y bash -e -o pipefail -c"):
        refuse(tmp_path, quoted(f'{start} "{script}"'), words)
    if "\n" not in script:
        refuse(tmp_path, quoted(f"docker run x/y {script}"), words)
        refuse(tmp_path, quoted(script), words)
    content = {"containers": [{"name": "a", "image": "x", "command": ["sh", "-c", script]}]}
    in_pod = in_file(tmp_path, json.dumps(content), name="pod.json", container="a")
    refuse(tmp_path, in_pod, words)


def test_operators_in_quotes_are_arguments(tmp_path: Path) -> None:
    script = "exec vllm serve a/b \\\n --x 'c;d|e&f' "
    command = json.dumps({"services": {"a": {"image": "x", "entrypoint": ["sh", "-c", script]}}})
    tier = load(tmp_path, in_file(tmp_path, command, name="a.json", service="a"))
    assert only_case(tier).server.engine_args == ("--x", "c;d|e&f")


OWN_PROGRAMS = [
    "vllm/vllm-openai bash -e -c 'vllm serve a/b'",
    "--entrypoint '' vllm/vllm-openai vllm serve a/b",
    "--entrypoint= vllm/vllm-openai vllm serve a/b",
    "--entrypoint bash vllm/vllm-openai -ec 'exec vllm serve a/b'",
    "--entrypoint python3 vllm/vllm-openai -m vllm.entrypoints.openai.api_server --model a/b",
    "vllm/vllm-openai a/b",
    "vllm/vllm-openai vllm serve a/b",
]


@pytest.mark.parametrize("line", OWN_PROGRAMS)
def test_an_image_starts_its_own_program_unless_another_one_is_named(
    tmp_path: Path, line: str
) -> None:
    server = only_case(load(tmp_path, quoted(f"docker run {line}"))).server
    assert (server.engine, server.target, server.engine_args) == ("vllm", "a/b", ())


@pytest.mark.parametrize(
    "line",
    [
        "--entrypoint '' vllm/vllm-openai a/b",
        "--entrypoint python3 vllm/vllm-openai server.py --model a/b",
        "vllm/vllm-openai bash server.sh",
    ],
)
def test_another_program_of_a_known_image_starts_no_server(tmp_path: Path, line: str) -> None:
    refuse(tmp_path, quoted(f"docker run {line}"), "starts no server")


def test_the_program_of_a_file_replaces_that_of_the_image(tmp_path: Path) -> None:
    service = {"image": "vllm/vllm-openai", "command": ["a/b"]}
    for entrypoint, reads in ((None, True), (["vllm", "serve"], True), ([], False)):
        content = json.dumps({"services": {"a": {**service, "entrypoint": entrypoint}}})
        command = in_file(tmp_path, content, name="a.json", service="a")
        if reads:
            assert only_case(load(tmp_path, command)).server.target == "a/b"
        else:
            refuse(tmp_path, command, "starts no server")


@pytest.mark.parametrize(
    "start",
    [
        *("docker \\\n  run", "sudo -E docker run", "sudo -u me A=1 docker run"),
        *("docker --context x run", "docker -H tcp://h:1 run", "FOO=1 docker run"),
        *("nerdctl run", "/usr/bin/podman --remote --root=/r run", "docker -D container run"),
        *("docker run -it=true", "docker run -i=false -t", "docker run --rm --"),
        *("podman run --tls-verify --no-hosts --env-host --http-proxy", "podman run --no-hostname"),
        *("docker run --disable-content-trust --use-api-socket", "podman run --read-only-tmpfs"),
        *(
            "docker run --tls-verify=false",
            "docker run --brand-new=flag",
            "docker run -dit -p80:80",
        ),
    ],
)
def test_the_image_is_found_after_any_known_flag(tmp_path: Path, start: str) -> None:
    server = only_case(load(tmp_path, quoted(f"{start} vllm/vllm-openai:v1 a/b"))).server
    assert (server.image, server.target) == ("vllm/vllm-openai:v1", "a/b")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--brand-new", "--brand-new: isn't a flag of `docker run` that is known"),
        ("-Z", "-Z: isn't a flag of `docker run`"),
        ("-e '1 x=3'", "--env '1 x': is no name of a variable"),
        ("-e =3", "--env '': is no name of a variable"),
    ],
)
def test_a_flag_that_is_not_known_is_refused(tmp_path: Path, flags: str, words: str) -> None:
    refuse(tmp_path, quoted(f"docker run {flags} vllm/vllm-openai a/b"), words)


def test_the_last_of_two_equal_variables_holds(tmp_path: Path) -> None:
    flags = "-e A=1 -e A -e B -e B=2 -e C=1 -e C=3 -e HOME=/root -e TMPDIR=/t"
    tier = load(tmp_path, quoted(f"docker run {flags} vllm/vllm-openai a/b"))
    assert only_case(tier).server.engine_env == (("B", "2"), ("C", "3"))
    notes = notes_of(tier)
    assert "A is left out: its value isn't written here" in notes
    assert "B is left out" not in notes
    assert "HOME is left out: specreg gives the server a folder that it may write" in notes


@pytest.mark.parametrize("flag", ["--hf-token X1-planted", "--hf-token=X1-planted"])
def test_a_secret_on_the_command_line_is_left_out(tmp_path: Path, flag: str) -> None:
    counts = "--max-num-batched-tokens 512"
    for start in ("docker run vllm/vllm-openai", "vllm serve"):
        tier = load(tmp_path, quoted(f"{start} some/target {flag} {counts}"))
        assert only_case(tier).server.engine_args == tuple(counts.split())
        assert "# --hf-token is left out, because it holds a secret" in notes_of(tier)
        assert "X1-planted" not in hide("echoed X1-planted") + notes_of(tier)


def test_values_of_compose_are_text_as_compose_reads_it(tmp_path: Path) -> None:
    content = """
x-common: &common {MERGED: yes}
services:
  a:
    image: vllm/vllm-openai
    command: [a/b, --x, "$$y", --z, 1:30]
    volumes: [/a$$b:/m]
    environment:
      <<: *common
      NO: no
      ON: on
      DATE: 2026-01-02
      TIME: 1:30
      OCTAL: 0777
      FLAG: true
      NUMBER: 5
      DOLLAR: a$$b$$$$c
      DEFAULT: ${X:-d}$$e
      UNKNOWN: $$$X
      NESTED: ${X:-${Y:-z}}
"""
    tier = load(tmp_path, in_file(tmp_path, content, service="a"))
    server = only_case(tier).server
    assert dict(server.engine_env) == {
        "MERGED": "yes",
        "NO": "no",
        "ON": "on",
        "DATE": "2026-01-02",
        "TIME": "1:30",
        "OCTAL": "0777",
        "FLAG": "true",
        "NUMBER": "5",
        "DOLLAR": "a$b$$c",
        "DEFAULT": "d$e",
    }
    assert server.engine_args == ("--x", "$y", "--z", "1:30")
    for name in ("UNKNOWN", "NESTED"):
        assert f"{name} is left out: its value isn't written here" in notes_of(tier)


def pod(container: str, volumes: str = "[]") -> str:
    return f"spec: {{volumes: {volumes}, containers: [{{name: a, {container}}}]}}"


def test_two_dollars_are_one_to_kubernetes(tmp_path: Path) -> None:
    content = pod(
        "image: vllm/vllm-openai, args: [a/b, --x, $$(M), --y, $$z, --w, $v],"
        " env: [{name: A, value: a$b}, {name: B, value: $$(A)}, {name: C, value: $(A)$(NONE)}]"
    )
    tier = load(tmp_path, in_file(tmp_path, content, container="a"))
    server = only_case(tier).server
    assert server.engine_args == ("--x", "$(M)", "--y", "$z", "--w", "$v")
    assert server.engine_env == (("A", "a$b"), ("B", "$(A)"))
    assert "C is left out: its value isn't written here" in notes_of(tier)


VOLUMES = "[{name: v, hostPath: {path: /d}}, {name: p, persistentVolumeClaim: {claimName: c}}]"


@pytest.mark.parametrize(
    ("mounts", "result"),
    [
        ("[{name: v, mountPath: /m}]", "/d/s/x"),
        ("[{name: v, mountPath: /m}, {name: v, mountPath: /m/s, subPath: t}]", "/d/t/x"),
        ("[{name: v, mountPath: /m/s, subPath: null}, {name: p, mountPath: /m}]", "/d/x"),
        ("[{name: v, mountPath: /m}, {name: p, mountPath: /m/s}]", "in the volume 'p'"),
        ("[{name: v, mountPath: /m, subPathExpr: $(X)}]", "the volume 'v' by subPathExpr"),
    ],
)
def test_a_model_in_a_mount_of_kubernetes_is_found_or_refused(
    tmp_path: Path, mounts: str, result: str
) -> None:
    content = pod(f"image: vllm/vllm-openai, args: [/m/s/x], volumeMounts: {mounts}", VOLUMES)
    command = in_file(tmp_path, content, container="a")
    if result.startswith("/"):
        assert only_case(load(tmp_path, command)).server.target == result
    else:
        refuse(tmp_path, command, result)


def test_the_variable_of_a_flag_with_a_secret_needs_no_value(tmp_path: Path) -> None:
    env = "env: [{name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]"
    args = "--api-key, $(KEY), --hf-token=$(KEY)"
    content = pod(f"image: vllm/vllm-openai, args: [a/b, {args}], {env}")
    tier = load(tmp_path, in_file(tmp_path, content, container="a"))
    assert only_case(tier).server.engine_args == ()
    for flag in ("--api-key", "--hf-token"):
        assert f"# {flag} is left out" in notes_of(tier)
    content = pod(f"image: vllm/vllm-openai, args: [a/b, --x, $(KEY)], {env}")
    refuse(tmp_path, in_file(tmp_path, content, container="a"), r"'\$\(KEY\)' has no value")


def test_keys_without_a_value_are_not_there(tmp_path: Path) -> None:
    content = pod(
        "image: vllm/vllm-openai, command: [vllm, serve, a/b], args: null, env:, volumeMounts:,"
        " workingDir: null, envFrom: null",
        "null",
    )
    tier = load(tmp_path, in_file(tmp_path, content, container="a"))
    assert only_case(tier).server.target == "a/b"
    service = (
        "services: {a: {image: vllm/vllm-openai, command: a/b, entrypoint: null, environment:,"
        " volumes:, extends:, env_file: null}}"
    )
    tier = load(tmp_path, in_file(tmp_path, service, service="a"))
    assert only_case(tier).server.target == "a/b"


def test_variables_from_elsewhere_and_from_secrets_are_named(tmp_path: Path) -> None:
    content = pod(
        "image: vllm/vllm-openai, args: [a/b], envFrom: [{secretRef: {name: s}}],"
        f" env: [{{name: HF_TOKEN, value: {OTHER_SECRET}}}, {{name: A, value: x$(HF_TOKEN)}},"
        " {name: B, value: y$(A)}]"
    )
    tier = load(tmp_path, in_file(tmp_path, content, container="a"))
    assert only_case(tier).server.engine_env == ()
    notes = notes_of(tier)
    assert "envFrom is left out: the values of its variables aren't written here" in notes
    for name in ("HF_TOKEN", "A", "B"):
        assert f"{name} is left out, because it holds a secret" in notes


def test_a_service_of_compose_is_read_and_what_it_has_besides_is_named(tmp_path: Path) -> None:
    tier = load(tmp_path, in_file(tmp_path, SGLANG_COMPOSE, service="sglang"))
    server = only_case(tier).server
    assert (server.engine, server.image) == ("sglang", "lmsysorg/sglang:latest")
    assert server.target == str(tmp_path / "matrix/models/target")
    assert server.max_model_len_tokens == 4096
    assert server.engine_args == ("--attention-backend", "fa3")
    assert server.engine_env == (("SGLANG_LOG_MS", "1"),)
    notes = notes_of(tier)
    names = "container_name, volumes, restart, network_mode, ulimits, ipc, healthcheck, deploy"
    assert names in notes
    assert "HF_TOKEN is left out, because it holds a secret" in notes
    assert "OTHER is left out: its value isn't written here" in notes


def test_a_service_may_be_written_as_lists_and_as_json(tmp_path: Path) -> None:
    """As `docker compose config --format json` writes it."""
    service = {
        "image": "vllm/vllm-openai:v0.33.0",
        "command": ["--model", "some/target", "--max-num-seqs", 32, "--trust-remote-code"],
        "environment": ["NCCL_DEBUG=INFO", f"HF_TOKEN={SECRET}", "HOME"],
        "entrypoint": ["vllm", "serve", "--api-key", OTHER_SECRET],
        "volumes": [{"type": "bind", "source": "/data", "target": "/data"}],
    }
    content = json.dumps({"services": {"vllm": service}})
    tier = load(tmp_path, in_file(tmp_path, content, name="compose.json", service="vllm"))
    server = only_case(tier).server
    assert (server.max_sequences, server.trust_remote_code) == (32, True)
    assert server.engine_env == (("NCCL_DEBUG", "INFO"),)
    assert "--api-key is left out" in notes_of(tier)
    assert "PLANTED" not in hide(f"echoed {SECRET} and {OTHER_SECRET}") + notes_of(tier)


def test_a_container_of_kubernetes_is_read_with_the_shell_around_it(tmp_path: Path) -> None:
    tier = load(tmp_path, in_file(tmp_path, VLLM_KUBERNETES, container="vllm"))
    case = only_case(tier)
    server = case.server
    assert (server.engine, server.method, server.draft) == ("vllm", "eagle3", "some/head")
    assert (server.image, server.max_sequences) == ("vllm/vllm-openai:v0.33.0", 16)
    assert server.engine_args == ("--enable-chunked-prefill",)
    assert server.engine_env == (("VLLM_LOGGING_LEVEL", "DEBUG"),)
    notes = notes_of(tier)
    names = ("ports", "resources", "volumeMounts", "livenessProbe", "readinessProbe", "hostIPC")
    for name in (*names, "volumes"):
        assert name in notes
    for name in ("HF_TOKEN", "VLLM_API_KEY"):
        assert f"{name} is left out, because it holds a secret" in notes
    assert SECRET not in hide(f"echoed {SECRET}")


def test_the_values_of_variables_and_the_folders_of_the_node_are_put_in(tmp_path: Path) -> None:
    tier = load(tmp_path, in_file(tmp_path, VLLM_KUBERNETES, container="args"))
    server = only_case(tier).server
    assert (server.engine, server.target) == ("sglang", "/data/weights/v1/target")
    assert server.image == "docker.io/lmsysorg/sglang:latest"
    assert server.engine_env == (("MODEL", "/weights/target"), ("ROOT", "/weights"))


BOMB = "\n".join(
    ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("services: {vllm: {image: x}}", "service 'here': isn't in the file, which has 'vllm'"),
        ("services: {here: 3}", "service 'here': isn't in the file, which has 'here'"),
        ("services: {here: {command: x}}", "service 'here': has no image"),
        ("services: {here: {image: [x]}}", r"Expected `str`, got `array` - at `\$.image`; correct"),
        ("services: {here: {image: 'x:${TAG}', command: y}}", r"'\$\{TAG\}' is replaced elsewhere"),
        ("services: {here: {image: x, command: vllm serve $MODEL}}", r"'\$MODEL' is replaced"),
        ("services: {here: {image: x, command: 'vllm serve \"a'}}", "No closing quotation"),
        ("services: {here: {image: x, extends: {service: y}}}", "extends isn't followed"),
        ("services: {here: {image: x, env_file: .env}}", "env_file isn't followed"),
        ("services: {here: {image: x/y, command: --model a/b}}", "starts no server; needed one of"),
        ("services: [", "can't be read, "),
        ("services: !!python/object:os.system {}", "can't be read, "),
        ("\0", "can't be read, "),
        ("[" * 100_000, "can't be read, "),
        (r'services: {here: {image: x, command: "\0 a"}}', "a character that no argument can have"),
        (r'services: {here: {image: x, command: "\ud800"}}', "a character that no argument can ha"),
        ("", "which has none"),
        (BOMB, "which has none"),
        ("{", "can't be read, "),
    ],
)
def test_a_service_that_cannot_be_read_says_why(tmp_path: Path, content: str, words: str) -> None:
    message = refuse(tmp_path, in_file(tmp_path, content, service="here"), words)
    place = f"tier file '{tmp_path}/matrix/mine.toml', [[cases]] no. 1: 'server.yaml', service"
    assert message.startswith(f"{place} 'here': ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("spec: {containers: [{name: a}, {name: b}]}", "isn't in the file, which has 'a', 'b'"),
        ("spec: {containers: [{name: here}]}\n---\nspec: {containers: [{name: here}]}",
         "is there 2 times"),
        ("spec: {containers: [{name: here}]}", "has no image"),
        ("spec: {containers: [{name: here, image: x, args: [1]}]}", "Expected `str`, got `int`"),
        ("spec: {containers: [{name: here, image: vllm-openai, args: [$(M)]}]}",
         r"'\$\(M\)' has no value in the file"),
        ("spec: {containers: [{name: here, image: x, args: [vllm, serve]}]}", "names no model"),
        ("spec: {containers: [{name: here, image: x, command: [sh, -c, 'a && vllm serve b/c']}]}",
         "for a shell"),
        (BOMB, "which has none"),
    ],
)  # fmt: skip
def test_a_container_that_cannot_be_read_says_why(tmp_path: Path, content: str, words: str) -> None:
    refuse(tmp_path, in_file(tmp_path, content, container="here"), words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('{ file = "none.yaml", service = "x" }', "'none.yaml', service 'x': can't be read"),
        ('{ file = "none.yaml" }', "name its service .Compose. or its container"),
        ('{ file = "none.yaml", service = "x", container = "y" }', "name its service"),
        ('{ file = "none.yaml", pod = "x" }', "unknown field `pod`, needed a command line"),
        ("{}", "missing required field `file`, needed"),
        ("3", "Expected `object`, got `int`, needed a command line"),
        (quoted("docker run --rm"), "names no image"),
        (quoted("docker run --env-file .env vllm/vllm-openai a/b"), "write its variables as engi"),
        (quoted("docker run vllm/vllm-openai $MODEL"), "for a shell"),
        (quoted("docker run vllm/vllm-openai --model=$MODEL"), "'.MODEL' is replaced elsewhere"),
        (quoted("docker run 'x"), "No closing quotation"),
        (quoted("docker run vllm/vllm-openai a/b --config /x.yaml"), "--config"),
        (quoted("docker compose up vllm"), "starts no server"),
    ],
)
def test_a_command_of_a_container_that_cannot_be_read_says_why(
    tmp_path: Path, command: str, words: str
) -> None:
    refuse(tmp_path, command, words)


def test_without_a_parser_of_yaml_the_error_says_what_to_install(tmp_path: Path) -> None:
    command = in_file(tmp_path, SGLANG_COMPOSE, service="sglang")
    load(tmp_path, command)
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from pathlib import Path; from specreg.matrix.tier import load_tier\n"
        "from specreg.core.errors import MatrixError\n"
        "try: load_tier(Path(sys.argv[1]), 'mine')\n"
        "except MatrixError as error: print(error)"
    )
    done = subprocess.run(
        (sys.executable, "-c", program, str(tmp_path / "matrix")),
        capture_output=True,
        text=True,
        check=True,
        cwd=builders.ROOT,
    )
    assert "needs PyYAML" in done.stdout
    assert "[yaml]" in done.stdout
    assert "--format json" in done.stdout
