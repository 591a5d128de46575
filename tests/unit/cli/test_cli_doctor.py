"""`specreg doctor`, as a user types it."""

import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specreg.cli import app
from specreg.engines.registry import engine_named
from tests.unit import builders

MATRIX = """
needs_gpus = {gpus}
[models.pair]
target = "./target"
target_gib = 0.1
[[cases]]
engine = "vllm"
methods = ["none"]
models = "pair"
dataset = "toy"
concurrency = [4]
prompts = 16
output_cap_tokens = 64
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two tiers, the toy prompts and a target; vLLM seems to be installed."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path / "cache"))
    builders.seem_installed(engine_named("vllm").requirement(on_gpu=False))
    for name, gpus in (("cpu", 0), ("large", 999)):
        matrix = tmp_path / f"fixtures/matrix/{name}.toml"
        matrix.parent.mkdir(parents=True, exist_ok=True)
        matrix.write_text(MATRIX.format(gpus=gpus))
    prompts = tmp_path / "fixtures/prompts"
    prompts.mkdir()
    shutil.copyfile(builders.ROOT / "fixtures/prompts/toy.jsonl", prompts / "toy.jsonl")
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "model.safetensors").touch()
    return tmp_path


def doctor(root: Path, *options: str) -> Result:
    """Runs the command in a repository."""
    return CliRunner().invoke(app, ["doctor", "--root", str(root), *options])


def test_status_0_where_the_tier_can_run(root: Path) -> None:
    done = doctor(root, "--tier", "cpu")
    assert done.exit_code == 0, done.output
    assert "1 of 1 cases of tier 'cpu' run here" in done.output
    assert "nothing is in the way" in done.output


def test_an_interpreter_that_is_named_is_said_to_have_what_it_has(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "cache")
    without = doctor(root, "--tier", "cpu", "--engine-python", sys.executable)
    assert without.exit_code == 1
    assert "has no module 'vllm'" in " ".join(without.output.split())
    assert "isn't installed yet" not in without.output

    metadata = root / "site/vllm-0.26.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    (root / "site/vllm").mkdir()
    (root / "site/vllm/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(root / "site"))
    python = root / "python"  # another name: what an interpreter has is asked once
    python.symlink_to(sys.executable)
    found = doctor(root, "--tier", "cpu", "--engine-python", str(python))
    assert found.exit_code == 0, found.output
    assert "1 of 1 cases of tier 'cpu' run here" in found.output


def test_status_1_where_something_stands_in_its_way(root: Path) -> None:
    (root / "target/config.json").unlink()
    done = doctor(root, "--tier", "cpu")
    assert done.exit_code == 1
    assert "config.jsonismissing" in "".join(done.output.split())
    assert "→ check the path in the matrix" in done.output
    assert done.output.endswith("thing(s) in the way\n") or "1 thing(s) in the way, " in done.output


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nowhere", None, "unknown tier 'nowhere'"),
        ("broken", b"[[cases", "fixtures/matrix/broken.toml"),
        ("binary", b"\xff\xfe", "fixtures/matrix/binary.toml"),
    ],
)
def test_a_tier_that_cannot_be_read_is_named(
    root: Path, name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (root / f"fixtures/matrix/{name}.toml").write_bytes(content)
    done = doctor(root, "--tier", name)
    assert done.exit_code == 1
    assert says in str(done.exception)


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path) -> None:
    done = doctor(tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "no such folder; run this in the repository, or give --root" in str(done.exception)
