"""What an interrupted run had measured is taken over only if nothing of it has changed."""

import dataclasses
from pathlib import Path

import pytest

from specreg.engines.server_spec import ServerSpec
from specreg.runs.ledger import LEDGER, Key, Ledger, Recorded
from specreg.servers.provision import Provision
from specreg.suite.ledger_key import ledger_key
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.runs import LENGTH


def test_a_measurement_in_other_circumstances_is_another_one(tmp_path: Path) -> None:
    case = builders.CASE
    context = runs.context(tmp_path)
    everything = runs.everything(context)
    acceptance = runs.selection(context, {case.id: [LENGTH.name]})
    other_circumstances = [
        runs.context(tmp_path, engine_version="0.31.0"),
        runs.context(tmp_path, engine_python="/bin/python"),
        runs.context(tmp_path, attach="http://h"),
        runs.context(tmp_path, environment=builders.OTHER_ENVIRONMENT),
    ]

    keys = [
        ledger_key(case, 1, everything, context),
        ledger_key(case, 2, everything, context),
        ledger_key(builders.with_request(case, turns=1), 1, everything, context),
        ledger_key(case, 1, acceptance, context),
        *(ledger_key(case, 1, everything, circumstances) for circumstances in other_circumstances),
    ]

    assert len(set(keys)) == len(keys)


def test_a_measurement_in_another_environment_is_not_taken_over(tmp_path: Path) -> None:
    context = runs.context(tmp_path)
    everything = runs.everything(context)

    def key_with(*packages: str) -> Key:
        class OtherProvision(Provision):
            def packages(self, spec: ServerSpec) -> tuple[str, ...]:
                del spec
                return packages

        provision = OtherProvision(on_gpu=False, show=lambda _: None)
        with_packages = dataclasses.replace(context, provision=provision)
        return ledger_key(builders.CASE, 1, everything, with_packages)

    assert key_with("numpy==2.4.6") == key_with("numpy==2.4.6")
    assert key_with("numpy==2.4.6") != key_with("numpy==2.4.5")
    assert key_with() == ledger_key(builders.CASE, 1, everything, context)


def key_in(folder: Path, *, target: str, draft: str, prompts: str, weights: str) -> Key:
    """The key of a case in a repository with prompts and a model of its own."""
    toy = Path("fixtures/prompts/toy.jsonl")
    contents = {
        toy: prompts + (builders.ROOT / toy).read_text(),
        Path("fixtures/model/config.json"): "{}",
        Path("fixtures/model/model.safetensors"): weights,
    }
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    case = builders.on_server(target=target, draft=draft)
    context = runs.context(folder, root=folder, cases=(case,))
    return ledger_key(case, 1, runs.everything(context), context)


@pytest.mark.parametrize(
    ("target", "draft"), [("fixtures/model", "some/draft"), ("some/target", "fixtures/model")]
)
def test_changed_prompts_and_models_are_noticed_and_a_moved_folder_is_not(
    tmp_path: Path, target: str, draft: str
) -> None:
    added = '{"id": "another", "category": "chat", "turns": ["Hello"]}\n'
    models = {"target": target, "draft": draft}

    first = key_in(tmp_path / "first", prompts="", weights="weights", **models)
    moved = key_in(tmp_path / "moved", prompts="", weights="weights", **models)
    prompted = key_in(tmp_path / "prompted", prompts=added, weights="weights", **models)
    trained = key_in(tmp_path / "trained", prompts="", weights="others", **models)

    assert moved == first
    assert prompted != first
    assert trained != first


def test_a_ledger_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    ledger.read([ledger.path])
    assert ledger.recorded == Recorded()
