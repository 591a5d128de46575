"""Models are fetched by the real huggingface_hub from a hub on this machine, before a start."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import ModelError
from specreg.datasets.hub import why_gated
from specreg.datasets.hub_fetch import wanted_files
from specreg.engines.server_spec import ServerSpec
from specreg.servers import model_fetch
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.model_fetch import FetchOutput, fetch_models
from tests.doubles.hub import COMMIT, FakeHub
from tests.unit import builders
from tests.unit.builders.started_servers import PROVISION

TARGET, DRAFT = "org/target", "org/draft"
MB = 10**6
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"
OLDER = {"pytorch_model.bin": b"o" * 9 * MB, "original/consolidated.00.pth": b"p" * 9 * MB}
FILES = {
    "config.json": b"{}",
    INDEX: json.dumps({"weight_map": dict(enumerate(SHARDS))}).encode(),
    **{name: name.encode() * 50_000 for name in SHARDS},
    **OLDER,
}


@dataclass(slots=True)
class Machine:
    """A machine with a cache for the hub, and what a run says on it."""

    folder: Path
    hub: FakeHub
    settings: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    free_bytes: int = 10**12

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def snapshot(self) -> Path:
        return self.cache / "models--org--target/snapshots" / COMMIT

    def spec(self, **changes: object) -> ServerSpec:
        variables = {
            "HF_ENDPOINT": self.hub.url,
            "HF_HUB_CACHE": str(self.cache),
            "HF_HOME": str(self.folder / "home"),
            **self.settings,
        }
        values = {"target": TARGET, "engine_env": tuple(variables.items()), **changes}
        return dataclasses.replace(builders.PLAIN_SPEC, **values)  # type: ignore[arg-type]

    def fetch(
        self,
        *,
        show: Callable[[str], None] | None = None,
        interpreters: Sequence[str] = (sys.executable,),
        **changes: Any,  # noqa: ANN401 - of any field
    ) -> None:
        output = FetchOutput(
            log_path=self.folder / "logs/weights.log",
            show=show or self.shown.append,
            tell=self.lines.append,
        )
        fetch_models(self.spec(**changes), interpreters, output, lambda _: self.free_bytes)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub(models={TARGET: dict(FILES)}).running() as hub:
        yield Machine(folder=tmp_path, hub=hub)


def test_what_an_engine_loads_is_fetched_once_and_its_size_is_said(machine: Machine) -> None:
    machine.fetch()

    assert {path.name for path in machine.snapshot.iterdir()} == {"config.json", INDEX, *SHARDS}
    assert (machine.snapshot / SHARDS[1]).read_bytes() == FILES[SHARDS[1]]
    missing = f"4.8 MB are missing of the 4.8 MB of {TARGET}"
    assert machine.lines == [f"fetching weights: {missing}, in '{machine.cache}'"]
    machine.hub.requests.clear()
    machine.fetch()
    assert machine.hub.requests == []


def test_the_progress_is_that_of_huggingface_hub(machine: Machine) -> None:
    machine.hub.piece_s = 0.08
    machine.fetch()
    assert machine.shown
    assert all(".safetensors: " in bar and "%|" in bar for bar in machine.shown), machine.shown


def test_a_fetch_that_was_cut_off_goes_on_with_the_files_that_are_missing(machine: Machine) -> None:
    machine.hub.models[TARGET][SHARDS[2]] = FILES[SHARDS[2]] * 20
    machine.hub.piece_s = 0.02

    def stop_after_two_shards(_: str) -> None:
        complete = [path.name for path in machine.snapshot.glob("*.safetensors")]
        if len(complete) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.fetch(show=stop_after_two_shards)
    assert not list(machine.cache.rglob("*.incomplete"))
    machine.hub.requests.clear()
    machine.hub.piece_s = 0.0
    machine.fetch()

    assert machine.lines[1].startswith("fetching weights: 32.0 MB are missing of the 35.2 MB of ")
    assert machine.hub.contents() == [SHARDS[2]]


def test_a_connection_that_breaks_is_taken_up_again(machine: Machine) -> None:
    machine.hub.breaks_after = 3
    machine.fetch()
    for name in SHARDS:
        assert (machine.snapshot / name).read_bytes() == FILES[name]


def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(machine: Machine) -> None:
    machine.free_bytes = 3 * MB
    message = (
        f"MODEL_NOT_FETCHED: hub model {TARGET}: 4.8 MB are missing,"
        f" and the disk of '{machine.cache}' has 3.0 MB free; make room there, or name another"
        " folder with HF_HUB_CACHE"
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        machine.fetch()
    assert machine.hub.contents() == []


def test_a_cache_that_cannot_be_written_says_which_variable_names_another(machine: Machine) -> None:
    machine.cache.touch()
    remedy = "make room there or repair its rights, or name another folder with HF_HUB_CACHE"
    with pytest.raises(ModelError, match=f": Not a directory: '{machine.cache}.*'; {remedy}$"):
        machine.fetch()


def test_what_lies_in_the_working_folder_or_prints_at_the_start_breaks_no_fetch(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text("print('hello')")
    for name in ("csv", "huggingface_hub"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    machine.settings["PYTHONPATH"] = str(modules)
    machine.fetch()
    assert (machine.snapshot / SHARDS[0]).exists()


def test_a_gated_model_without_a_token_is_known_at_once(machine: Machine) -> None:
    machine.hub.gated = frozenset({TARGET})
    with pytest.raises(ModelError) as error:
        machine.fetch()
    subject = f"MODEL_NOT_FETCHED: hub model '{TARGET}': "
    assert str(error.value) == subject + why_gated(has_token=False)
    assert machine.hub.contents() == []

    machine.settings["HF_TOKEN"] = "hf_" + "x" * 30
    machine.fetch()
    assert (machine.snapshot / SHARDS[0]).exists()


def test_a_token_without_access_is_told_from_no_token(machine: Machine) -> None:
    machine.hub.refused = frozenset({TARGET})
    machine.settings["HF_TOKEN"] = "hf_" + "x" * 30
    with pytest.raises(ModelError, match="by the account of the token; accept them on its page"):
        machine.fetch()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "org/nothing"}, "check its name and revision, or set HF_TOKEN"),
        ({"target_revision": "absent"}, "check its name and revision, or set HF_TOKEN"),
    ],
)
def test_a_model_that_is_not_there_says_what_to_check(
    machine: Machine, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=f"^MODEL_NOT_FETCHED: hub model 'org/.*; {words}"):
        machine.fetch(**changes)


@pytest.mark.parametrize(
    "settings",
    [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}],
    ids=["refused", "offline"],
)
def test_without_the_hub_the_cache_will_do(machine: Machine, settings: dict[str, str]) -> None:
    without_hub = dataclasses.replace(machine, settings=settings)
    with pytest.raises(ModelError, match="run again where the hub can be reached, or name a local"):
        without_hub.fetch()

    machine.fetch()
    model_fetch.forget()
    machine.hub.requests.clear()
    without_hub.fetch()
    assert machine.hub.requests == []


def test_target_and_draft_are_fetched_by_the_revisions_of_the_pair(machine: Machine) -> None:
    machine.hub.models[DRAFT] = {"config.json": b"{}", "model.safetensors": b"d" * 1000}
    machine.fetch(draft=DRAFT, draft_revision="v2")
    assert machine.lines[0].startswith(
        "fetching weights: 4.8 MB are missing of the 4.8 MB of org/t"
    )
    assert f"{TARGET} and {DRAFT}" in machine.lines[0]
    assert ("GET", f"/api/models/{DRAFT}/revision/v2") in machine.hub.requests
    ref = machine.cache / "models--org--draft/refs/v2"
    assert ref.read_text() == COMMIT


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_args": ("--download-dir", "/models")},
        {"engine_args": ("--download-dir=/models",)},
        {"engine_args": ("--load-format=dummy",)},
        {"target": "fixtures/models/tiny/target"},
    ],
)
def test_nothing_is_fetched_for_an_engine_that_gets_its_models_elsewhere(
    machine: Machine, changes: dict[str, Any]
) -> None:
    machine.fetch(**changes)
    assert machine.hub.requests == []


def test_without_huggingface_hub_the_engine_fetches_and_that_is_shown(machine: Machine) -> None:
    machine.fetch(interpreters=("/bin/false",))
    assert machine.shown == [
        "engine 'vllm' fetches its models itself, because huggingface_hub isn't installed"
    ]
    assert machine.hub.requests == []


def test_a_program_that_breaks_names_its_log(machine: Machine) -> None:
    machine.settings["HF_ENDPOINT"] = machine.hub.url
    machine.hub.facts_are_broken = True
    with pytest.raises(ModelError, match="MODEL_NOT_FETCHED: hub model 'org/target': "):
        machine.fetch()


def test_nothing_starts_if_a_model_cannot_be_fetched(machine: Machine) -> None:
    machine.hub.gated = frozenset({TARGET})
    launcher = ServerLauncher(
        provision=dataclasses.replace(PROVISION, fetch=fetch_models),
        root=machine.folder,
        ready_within_s=30.0,
    )
    launch = Launch(spec=machine.spec(), number=1)
    log_path = machine.folder / "logs/server.log"
    handle = ServerHandle(launch=launch, launcher=launcher, log_path=log_path)
    with pytest.raises(ModelError, match="its terms must be accepted"):
        handle.poll()
    assert [path.name for path in (machine.folder / "logs").iterdir()] == ["server~weights.log"]


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["a.safetensors", "a.bin", "a.pt"], ["a.safetensors"]),
        (["a.bin", "a.pt", "onnx/a.onnx"], ["a.bin"]),
        (["a.pt"], ["a.pt"]),
        (["consolidated.safetensors"], ["consolidated.safetensors"]),
        (["consolidated.safetensors", SHARDS[0], INDEX], [SHARDS[0]]),
        (["original/a.safetensors", "a.bin"], ["a.bin"]),
        (["a.gguf", "b.gguf"], []),
    ],
)
def test_weights_are_wanted_once(names: list[str], weights: list[str]) -> None:
    wanted = wanted_files([*names, "config.json", "README.md"])
    assert [name for name in wanted if not name.endswith(".json")] == weights
    assert "config.json" in wanted
    assert "README.md" not in wanted
