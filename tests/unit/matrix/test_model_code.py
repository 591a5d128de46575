"""A model that brings code is refused unless the case trusts it; then its engine is told so."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from specreg.core.errors import ModelError, UnsupportedError
from specreg.matrix.case import ServerSpec
from specreg.matrix.models import check_model_code
from tests.unit import builders

AUTO_MAP = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
SPEC = dataclasses.replace(builders.SPEC, target="./target", draft="./draft")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A target and a draft that bring nothing."""
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    return tmp_path


@pytest.mark.parametrize("spec", [SPEC, builders.SPEC], ids=["folders", "hub-ids"])
def test_a_model_without_code_is_silent(root: Path, spec: ServerSpec) -> None:
    (root / "target/tokenizer_config.json").write_text('{"auto_map": {}}')
    (root / "target/modeling.py").write_text("raise SystemExit")  # which nothing names
    check_model_code(root, spec)


@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_model_that_brings_code_is_refused_with_file_and_remedy(
    root: Path, part: str, name: str
) -> None:
    (root / part / name).write_text(json.dumps({"text": [{"auto_map": AUTO_MAP}]}))
    words = (
        f"model folder '{root / part}': {name} brings code of its own, auto_map ="
        ' {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}; name another model, or read that'
        " code and set trust_remote_code = true in the matrix"
    )
    with pytest.raises(ModelError, match=f"^{re.escape(words)}$"):
        check_model_code(root, SPEC)
    check_model_code(root, dataclasses.replace(SPEC, trust_remote_code=True))


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "9" * 5_000, "\udcff"])
def test_a_configuration_that_nobody_can_read_is_refused(root: Path, content: str) -> None:
    path = root / "draft/config.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json can't be read, .*; restore it$"):
        check_model_code(root, SPEC)


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("vllm", "--trust-remote-code"),
        ("vllm", "--trust_remote_code"),
        ("triton", "trust_remote_code=true"),
    ],
)
def test_trust_is_a_setting_and_no_argument(root: Path, engine: str, argument: str) -> None:
    spec = dataclasses.replace(SPEC, engine=engine, engine_args=(argument,))
    with pytest.raises(UnsupportedError, match="set trust_remote_code = true in the matrix"):
        check_model_code(root, spec)


def test_an_engine_that_runs_no_code_of_models_says_so(root: Path) -> None:
    spec = dataclasses.replace(SPEC, engine="reference", trust_remote_code=True)
    with pytest.raises(UnsupportedError, match="engine 'reference': it runs no code of models"):
        check_model_code(root, spec)
