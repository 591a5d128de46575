"""Every command line that specreg writes is one that the engine's own parser takes.

`nox -s flags`; the parser runs in the engine's environment, for two versions of each engine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from specreg.engines.engine import Memory, Site
from specreg.engines.methods import METHODS, Tree
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import Parallel, ServerSpec
from specreg.matrix.tier import load_tier, tier_names
from specreg.servers.provision import Provision
from specreg.servers.provision import interpreter_of as interpreter_in_cache
from specreg.servers.shell_command import shell_command
from tests.contract.engines import interpreter_of, modules_of
from tests.unit import builders
from tests.unit.builders.shell import paste, write_stub

PARSERS = Path(__file__).parent / "parsers"
VERSIONS = [
    pytest.param(engine, version, id=f"{engine}-{version}")
    for engine, version in (
        ("vllm", "0.31.0"),
        ("vllm", "0.32.0"),
        ("vllm", "0.33.0"),
        ("sglang", "0.5.21"),
        ("sglang", "0.5.23"),
    )
]
SPREAD = Parallel(tensor=2, data=2, expert=True, draft_tensor=2)
MEMORY = Memory(cache_bytes=2**30, cache_tokens=9216, share_frac=0.03)
TREE = Tree(branches=2, drafted_tokens=6)


Start = tuple[ServerSpec, Site]


def launches(engine: str, version: str) -> Mapping[str, Start]:
    """All that a case can ask for, by what it is."""

    def start_of(method: str = "none", **changes: Any) -> Start:  # noqa: ANN401 - of any field
        usual: dict[str, Any] = {
            "engine": engine,
            "method": method,
            "draft": "/models/draft",
            "draft_tokens": 3,
            "tree": TREE if METHODS[method].drafts_trees else None,
            "engine_args": (),
            "version": version,
        }
        return builders.start_of(**usual | changes)

    methods = [
        name for name, spelling in engine_named(engine).methods.items() if spelling.is_in(version)
    ]
    return {
        **{name: start_of(name) for name in methods},
        "of the oldest": start_of("eagle3", version=engine_named(engine).oldest),
        **{f"{name} on a GPU": start_of(name, on_gpu=True, dtype="bfloat16") for name in methods},
        "pinned": start_of("eagle3", target_revision="0123abcd", draft_revision="v1.0"),
        "told its memory": start_of(on_gpu=True, memory=MEMORY),
        "over GPUs": start_of("eagle3", on_gpu=True, parallel=SPREAD),
    }


def arguments_of(engine: str, start: Start) -> Sequence[str]:
    """The arguments of the command line of a server."""
    return arguments_in(engine_named(engine).command(Path("python"), *start))


def arguments_in(words: Sequence[str]) -> Sequence[str]:
    """The words of a command line behind the module, and behind what it is asked to do."""
    first = 4 if words[3] == "serve" else 3
    return words[first:]


def problems(
    engine: str, version: str, lines: Sequence[Sequence[str] | Mapping[str, object]]
) -> Sequence[str | None]:
    """What a version's parser says of each command line, or arguments by name; None: it's fine."""
    modules = modules_of(engine, version) or builders.ROOT / "tests" / "sglang_cpu"
    done = subprocess.run(
        (interpreter_of(engine, version), str(PARSERS / f"of_{engine}.py")),
        check=False,
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(modules)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    problems_found: Sequence[str | None] = json.loads(done.stdout.splitlines()[-1])
    return problems_found


def servers_of_tiers(engine: str, version: str) -> Mapping[str, ServerSpec]:
    """Each server and control of the repository's tiers, by what it is and for which tier."""
    folder = builders.ROOT / "fixtures/matrix"
    servers = {}
    for name in tier_names(folder):
        for case in load_tier(folder, name).cases:
            for spec in (case.server, case.control):
                if spec is None or spec.engine != engine:
                    continue
                if engine_named(engine).spelling_of(spec.method).is_in(version):
                    servers[f"{spec.id} of {name}, {case.in_flight} in flight"] = spec
    return servers


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_the_engine_takes_the_command_line_of_each_server_of_the_tiers(
    engine: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a shell starts if all of `specreg matrix --commands` is pasted into it."""
    servers = servers_of_tiers(engine, version)
    provision = Provision(on_gpu=True, show=print, version=version)
    with monkeypatch.context() as patched:
        patched.setenv("SPECREG_CACHE", str(tmp_path))
        for spec in servers.values():
            write_stub(interpreter_in_cache(provision.requirement(spec)))
        text = "\n".join(shell_command(builders.ROOT, spec, provision) for spec in servers.values())
        started = paste(text, tmp_path)
    commands = {
        name: arguments_in(words) for name, (words, _) in zip(servers, started, strict=True)
    }
    assert len(commands) > 20

    problems_found = problems(engine, version, [*commands.values()])

    assert dict(zip(commands, problems_found, strict=True)) == dict.fromkeys(commands)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0", "0.33.0"])
def test_vllm_takes_each_argument_of_tritons_model_json(version: str) -> None:
    named = {
        name: json.loads(engine_named("triton").files(*start)["toy/1/model.json"])
        for name, start in launches("triton", version).items()
    }
    planted = [
        {**named["eagle3"], "no_such_argument": 1},
        {**named["eagle3"], "speculative_config": {"method": "no-such"}},
    ]
    keys = {key for argument in named.values() for key in argument}
    assert {"tensor_parallel_size", "gpu_memory_utilization", "speculative_config"} <= keys

    *problems_found, of_argument, of_method = problems("vllm", version, [*named.values(), *planted])

    assert dict(zip(named, problems_found, strict=True)) == dict.fromkeys(named)
    assert of_argument == "AsyncEngineArgs has no no_such_argument"
    assert of_method == "no method no-such"


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_the_engine_takes_each_command_line(engine: str, version: str) -> None:
    starts = launches(engine, version)
    commands = {name: arguments_of(engine, start) for name, start in starts.items()}
    # A check that takes everything would be none: a flag and a method that don't exist.
    unnamed = [
        word.replace("eagle3", "no-such").replace("EAGLE3", "NONE_SUCH")
        for word in commands["eagle3"]
    ]
    planted = [(*commands["eagle3"], "--no-such-flag"), unnamed]

    *problems_found, of_flag, of_method = problems(engine, version, [*commands.values(), *planted])

    assert dict(zip(commands, problems_found, strict=True)) == dict.fromkeys(commands)
    assert of_flag
    assert of_method


def test_the_recorded_architectures_are_those_of_the_pinned_wheels(tmp_path: Path) -> None:
    """The unit tests look up each published model of the tiers in that record."""
    sglang = engine_named("sglang").requirement(on_gpu=True).version
    vllm = engine_named("vllm").requirement(on_gpu=True).version
    environment = Path(interpreter_of("sglang", sglang)).parents[1]
    (sglang_folder,) = environment.glob("lib/python*/site-packages")
    vllm_folder = modules_of("vllm", vllm)
    assert vllm_folder is not None
    read = subprocess.run(
        (
            sys.executable,
            str(builders.ROOT / "fixtures/recordings/read_architectures.py"),
            str(vllm_folder),
            str(sglang_folder),
        ),
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    recorded = builders.ROOT / "fixtures/recordings/architectures.json"
    assert read.stdout == recorded.read_text()
