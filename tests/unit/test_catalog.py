"""A catalogue holds what the public modules of a package define."""

import pytest

import specreg.datasets
from specreg.catalog import load_catalog
from specreg.datasets import DATASETS, Dataset
from specreg.engines import ENGINES, engine_named
from specreg.errors import UnknownNameError
from specreg.methods import Method
from tests.scripted import vllm


def test_each_public_module_is_found_by_the_name_it_gives_itself() -> None:
    found = load_catalog(specreg.datasets, "DATASET", Dataset)
    assert found == DATASETS
    assert all(name == dataset.name for name, dataset in found.items())
    assert "toy" in found


def test_a_module_without_the_constant_is_named() -> None:
    words = r"tests\.scripted\.vllm\.app must define DATASET: Dataset"
    with pytest.raises(TypeError, match=words):
        load_catalog(vllm, "DATASET", Dataset)


def test_a_constant_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"specreg\.datasets\.\w+ must define DATASET: Method"):
        load_catalog(specreg.datasets, "DATASET", Method)


def test_a_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        ENGINES["other"] = ENGINES["vllm"]  # type: ignore[index]


def test_an_unknown_engine_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"a\.toml: unknown engine 'vlm'; did you"):
        engine_named("vlm", "a.toml")
