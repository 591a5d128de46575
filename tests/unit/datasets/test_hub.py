"""Fetching and asking, by the real huggingface_hub, of a hub on this machine."""

import dataclasses
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from specreg.core.errors import DatasetError
from specreg.datasets.hub import (
    cached_commit,
    fetch_dataset_file,
    hub_cache_dir,
    is_cached,
    is_offline,
    why_gated,
    why_unfetchable,
)
from specreg.datasets.prepare import load_prompts, prepare
from specreg.datasets.table import dataset_named
from specreg.matrix.models import config_of, vocabulary_of, why_no_models
from tests.unit import builders

COMMIT = "e3a795c7b1c2a8a6b3f0f2d1c4b5a69788776655"
ROWS = [
    {"question_id": 81 + row, "category": f"c{row % 8}", "turns": [f"Question {row}." + "x" * 999]}
    for row in range(80)
]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
REPO, FILE = "HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl"
MODEL = "org/model"
TERMS = why_gated(has_token=False)


@dataclass(slots=True)
class Hub:
    """A hub with one file, which it gives where its status is 200; `code` is what it calls else."""

    cache: Path
    status: int = 200
    code: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)


class Answers(BaseHTTPRequestHandler):
    """Answers as the hub does when a file of a dataset is downloaded."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(CONTENT)

    def answer(self, body: bytes) -> None:
        self.hub.requests.append((self.command, self.path))
        status = self.hub.status if "/resolve/" in self.path else 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(CONTENT) if status == 200 else 0))
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if self.hub.code:
            self.send_header("X-Error-Code", self.hub.code)
        self.end_headers()
        if status == 200:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that runs, and that huggingface_hub asks."""
    new_hub = Hub(cache=tmp_path / "hub")
    answers = type("Here", (Answers,), {"hub": new_hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}{template}")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(new_hub.cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    why_unfetchable.cache_clear()
    yield new_hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", TERMS),
        (401, "RepoNotFound", "or give --from"),
        (404, "EntryNotFound", "or give --from"),
    ],
)
def test_a_refusal_of_the_hub_is_named(hub: Hub, status: int, code: str, words: str) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(DatasetError) as error:
        fetch_dataset_file(REPO, FILE)
    assert str(error.value).startswith(f"hub dataset '{REPO}': {FILE}: ")
    assert str(error.value).endswith(words)
    assert str(status) in str(error.value) or code == "GatedRepo"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (200, "", ""),
        (404, "EntryNotFound", ""),
        (403, "GatedRepo", TERMS),
        (401, "RepoNotFound", "401"),
        (503, "", "503"),
    ],
)
def test_the_hub_is_asked_whether_it_would_give_a_model(
    hub: Hub, status: int, code: str, words: str
) -> None:
    hub.status, hub.code = status, code
    spec = dataclasses.replace(builders.PLAIN_SPEC, target=MODEL)
    elsewhere = dataclasses.replace(spec, engine_env=(("HF_HOME", "/models"),))
    assert why_no_models(elsewhere) == ""
    reason = why_no_models(spec)
    assert bool(reason) == bool(words)
    assert words in reason
    assert reason.startswith(f"MODEL_NOT_FETCHED: hub model '{MODEL}': " if words else "")
    assert hub.requests[0] == ("HEAD", f"/{MODEL}/resolve/main/config.json")


@pytest.mark.parametrize("repo", ["a/b/c", "a b/c", "x" * 200, "-a/b"])
def test_what_is_no_id_of_the_hub_is_not_in_its_cache_and_is_said(hub: Hub, repo: str) -> None:
    assert not is_cached(repo)
    assert why_unfetchable(repo).startswith(f"MODEL_NOT_FETCHED: hub model '{repo}': Repo id must")
    assert hub.requests == []


def test_the_hub_is_not_asked_where_it_must_not_be_or_for_a_model_in_its_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout that huggingface_hub documents for its cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert is_offline()
    assert "offline" in why_unfetchable(MODEL)
    snapshot = hub.cache / "models--org--model/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text(COMMIT)
    assert not is_cached(MODEL)  # a fetch that broke off leaves a folder too
    (snapshot / "model.safetensors").touch()
    (snapshot / "config.json").write_text('{"vocab_size": 7}')
    assert is_cached(MODEL)
    assert vocabulary_of(MODEL) == 7
    variables = {"HF_HUB_CACHE": str(hub.cache)}
    for revision in ("", "main", COMMIT):
        assert config_of(MODEL, revision, variables) == {"vocab_size": 7}
    assert config_of(MODEL, "v2", variables) == {}
    why_unfetchable.cache_clear()
    assert why_unfetchable(MODEL) == ""
    assert hub.requests == []


def test_a_set_is_fetched_once(hub: Hub, tmp_path: Path) -> None:
    prompt_set, folder, shown = dataset_named("mt-bench"), tmp_path / "data", list[str]()
    record = prepare(prompt_set, data_dir=folder, show=shown.append)
    assert shown[0].startswith(f"mt-bench: https://huggingface.co/datasets/{REPO}\nlicence: Ap")
    assert shown[1] == f"fetching {FILE} of {REPO}"
    assert shown[-1].startswith("wrote 80 prompts (categories: 8) to ")
    assert (record.revision, record.source) == (COMMIT, REPO)
    assert record.source_sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert len(load_prompts(prompt_set, root=builders.ROOT, vocabulary=int, data_dir=folder)) == 80
    hub.requests.clear()
    assert prepare(prompt_set, data_dir=folder, show=shown.append) == record
    assert f"mt-bench: kept 80 prompts (categories: 8) from {REPO}; remove" in shown[-1]
    assert hub.requests == []


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [(Path.touch, "Not a directory"), (make_loop, "Too many levels of symbolic links")],
    ids=["file", "loop"],
)
def test_a_cache_of_the_hub_that_cannot_be_written_is_named(
    hub: Hub, make: Callable[[Path], None], words: str
) -> None:
    make(hub.cache)
    message = rf"^hub dataset '{REPO}': {FILE}: ({words}): '{hub.cache}.*'; make room there"
    with pytest.raises(
        DatasetError, match=f"{message} or repair its rights, or name another .*HF_HUB_CACHE$"
    ):
        fetch_dataset_file(REPO, FILE)


@pytest.mark.parametrize("make", [Path.touch, make_loop], ids=["file", "loop"])
@pytest.mark.parametrize("below", ["", "x"], ids=["itself", "below"])
def test_nothing_is_fetched_for_a_folder_that_cannot_be_written(
    hub: Hub, tmp_path: Path, make: Callable[[Path], None], below: str
) -> None:
    make(tmp_path / "data")
    words = "file '.*mt-bench.jsonl': .*; set SPECREG_DATA to a folder that can be written$"
    with pytest.raises(DatasetError, match=words):
        prepare(dataset_named("mt-bench"), data_dir=tmp_path / "data" / below)
    assert hub.requests == []


def test_without_a_network_the_remedy_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = "; run again where the hub can be reached, or give --from$"
    with pytest.raises(DatasetError, match=words):
        prepare(dataset_named("mt-bench"), data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert hub.requests == []


def test_without_huggingface_hub_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    words = r'which isn.t installed; uv pip install -e "\.\[datasets\]", or give --from'
    with pytest.raises(DatasetError, match=words):
        fetch_dataset_file("openai/gsm8k", "main/test.parquet")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/models", "HF_HOME": "/home"}, "/models"),
        ({"HF_HOME": "/home", "XDG_CACHE_HOME": "/caches"}, "/home/hub"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_cache_is_where_the_hubs_own_variables_say(
    variables: dict[str, str], folder: str
) -> None:
    assert hub_cache_dir(variables) == Path(folder)


def test_the_commit_of_a_model_is_what_the_cache_has_of_its_revision(tmp_path: Path) -> None:
    """As huggingface_hub documents its cache: a branch has a file that names its commit."""
    variables = {"HF_HUB_CACHE": str(tmp_path)}
    model = tmp_path / "models--org--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text(COMMIT)
    (model / "snapshots/0123abcd").mkdir(parents=True)
    assert cached_commit(MODEL, "", variables) == COMMIT
    assert cached_commit(MODEL, "0123abcd", variables) == "0123abcd"
    assert cached_commit(MODEL, "a-branch", variables) == ""
    assert cached_commit("org/other", "", variables) == ""
