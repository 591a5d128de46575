"""What an interpreter says of itself, whatever stands around it."""

import sys
from pathlib import Path

import pytest

from specreg.core.probes import ask_program
from specreg.servers.build_tools import missing_tools
from specreg.servers.interpreters import installed_version, why_no_module

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
