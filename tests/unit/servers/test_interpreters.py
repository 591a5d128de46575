"""What an interpreter says of itself, whatever stands around it."""

import dataclasses
import re
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from specreg.core.probes import ask_program
from specreg.servers.build_tools import missing_tools
from specreg.servers.interpreters import installed_version, why_no_module
from tests.doubles.vllm.script import Script
from tests.unit import builders
from tests.unit.builders.started_servers import PROVISION, left_of, start

MODULES = {
    "csv.py": "raise SystemExit(3)",
    "email.py": "raise ImportError",
    "msgspec/__init__.py": "raise SystemExit(3)",
    "sysconfig.py": "print('nowhere')",
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    installed_version.cache_clear()


def test_a_module_of_the_working_folder_takes_no_package_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = installed_version(sys.executable, "msgspec")
    installed_version.cache_clear()
    for name, content in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    assert version
    assert installed_version(sys.executable, "msgspec") == version
    assert not why_no_module(sys.executable, "msgspec", variables={})


def test_what_the_start_of_an_interpreter_prints_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = installed_version(sys.executable, "msgspec")
    installed_version.cache_clear()
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installed_version(sys.executable, "msgspec") == version


@pytest.mark.parametrize("program", ["", "#!/bin/sh\nprintf '\\303\\n\\200'\n", None])
def test_a_program_that_is_no_interpreter_has_nothing(tmp_path: Path, program: str | None) -> None:
    path = tmp_path / "python"
    if program is None:
        path.mkdir()
    else:
        path.write_text(program)
        path.chmod(0o755)
    assert installed_version(str(path), "msgspec") in {"", "\ufffd"}
    missing = missing_tools(str(path), {}, compiles_kernels=False, is_installed=True)
    assert f"Python.h of '{path}'" in {tool.name for tool in missing}


def test_a_program_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    with pytest.raises(OSError, match=r"doesn't end within 0\.2 s"):
        ask_program((str(path),), within_s=0.2)


def test_the_wrapper_of_the_page_is_an_interpreter_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for apptainer runs this Python."""
    page = (builders.ROOT / "docs/how-to/run-servers-in-containers.md").read_text()
    recipe = re.search(r"    #!/bin/sh\n    exec apptainer .*\n", page)
    assert recipe is not None
    programs = {
        "python-in-image": textwrap.dedent(recipe[0]),
        "apptainer": "#!/bin/sh\n[ $1 = exec ] || exit 64\n"
        f'while [ $1 != python3 ]; do shift; done\nshift\nexec {sys.executable} "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    python = str(tmp_path / "python-in-image")
    provision = dataclasses.replace(PROVISION, python=python)
    spec = builders.scripted(builders.SPEC, Script(), tmp_path)
    provision.check([dataclasses.replace(builders.CASE, server=spec, control=None)])
    missing = missing_tools(python, {}, compiles_kernels=False, is_installed=True)
    assert not any(tool.name.startswith("Python.h") for tool in missing)
    with start(tmp_path, Script(), provision=provision) as server:
        assert server.engine_version == "99.0+scripted"
        assert f"msgspec=={msgspec.__version__}" in server.packages
    assert left_of(tmp_path) == []
