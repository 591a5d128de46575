"""Luggage: what travels to other machines, and what doesn't."""

import dataclasses
from pathlib import Path

import pytest

from specreg.core.errors import SpecregError
from specreg.many.luggage import pack, unpack
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from tests.unit import builders

TARGET, DRAFT = "fixtures/models/tiny/target", "fixtures/models/tiny/eagle3"


def case(target: str = TARGET, draft: str | None = DRAFT) -> Case:
    """A case of these models."""
    spec = dataclasses.replace(builders.SPEC, target=target, draft=draft)
    return dataclasses.replace(builders.CASE, server=spec, dataset="toy", prompts=3)


def files(folder: Path) -> set[str]:
    """The files in a folder, by their paths from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_a_case_reads_of_a_repository_is_the_same_elsewhere(tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    (baselines / "machine").mkdir(parents=True)
    (baselines / "machine" / "case.json").write_text("{}")
    there = unpack(pack(builders.ROOT, baselines, [case()]), tmp_path / "there")
    assert load_case_prompts(there.root, case()) == load_case_prompts(builders.ROOT, case())
    for name in (TARGET, DRAFT):
        here = resolve_model(builders.ROOT, name)
        assert model_sha256(resolve_model(there.root, name)) == model_sha256(here)
    assert files(there.baselines) == {"machine/case.json"}
    assert {name.split("/")[1] for name in files(there.root)} == {"prompts", "models"}


def test_models_that_lie_elsewhere_stay_there(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    for folder in (root / "fixtures/prompts", tmp_path / "llama"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    elsewhere = [case(str(tmp_path / "llama"), "some/hub-id"), case("../llama", None)]
    there = unpack(pack(root, tmp_path / "none", elsewhere), tmp_path / "there")
    assert files(tmp_path / "there") == {"root/fixtures/prompts/file"}
    assert files(there.baselines) == set()


def test_too_much_is_named_with_the_largest_of_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/weights.safetensors").write_bytes(bytes(3 * 2**20))
    with pytest.raises(SpecregError) as caught:
        pack(tmp_path, tmp_path / "none", [case("./models", None)], most_bytes=2**20)
    assert str(caught.value) == (
        f"'{tmp_path}/models': 3 MiB, and what is sent to other machines has 1 MiB at most; put it"
        " on each of them, and name it by an absolute path or by its id on the hub"
    )
