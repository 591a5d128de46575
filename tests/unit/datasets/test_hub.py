"""Fetching, by the real huggingface_hub, from a hub on this machine."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specreg.core.errors import DatasetError
from specreg.datasets.hub import cached_model, fetch_dataset_file
from specreg.datasets.prepare import load_prompts
from specreg.datasets.table import dataset_named
from tests.unit import builders

COMMIT = "e3a795c7b1c2a8a6b3f0f2d1c4b5a69788776655"
ROWS = [
    {"question_id": 81 + row, "category": f"c{row % 8}", "turns": [f"Question {row}." + "x" * 999]}
    for row in range(80)
]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@dataclass(slots=True)
class Hub:
    """A hub with one file.

    Attributes:
        port: where it listens.
        content: the file.
        break_at_bytes: after how much of the file the first answer breaks off; None for never.
        status: what it answers to everything; 200 where it gives the file.
        code: what the hub calls its refusal.
        asked: method, path and range of each request.
    """

    port: int = 0
    content: bytes = CONTENT
    break_at_bytes: int | None = None
    status: int = 200
    code: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)


class Answers(BaseHTTPRequestHandler):
    """Answers as the hub does to whoever downloads a file of a dataset."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """What the file is."""
        self.answer(body=False)

    def do_GET(self) -> None:
        """The file, or what is left of it."""
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        """A status, headers, and the file or the part asked for."""
        hub, asked = self.hub, self.headers.get("Range", "")
        hub.asked.append((self.command, self.path, asked))
        status = hub.status if "/resolve/" in self.path else 404
        start = int(match[1]) if (match := re.match(r"bytes=(\d+)-", asked)) else 0
        content = hub.content[start:] if status == 200 else b""
        self.send_response(206 if start and status == 200 else status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(hub.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if hub.code:
            self.send_header("X-Error-Code", hub.code)
        if start:
            whole = len(hub.content)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.end_headers()
        if body and hub.break_at_bytes is not None:
            self.wfile.write(content[: hub.break_at_bytes])
            hub.break_at_bytes = None
            self.close_connection = True
        elif body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub that runs."""
    found = Hub()
    answers = type("Here", (Answers,), {"hub": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


REPO, FILE = "HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl"
PATH = f"/datasets/{REPO}/resolve/main/{FILE}"


def fetch(hub: Hub, folder: Path) -> tuple[Path, str]:
    """Fetches the file from that hub into a cache of its own."""
    address = f"http://127.0.0.1:{hub.port}"
    return fetch_dataset_file(REPO, FILE, endpoint=address, cache=folder / "hub")


def prepare(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`specreg prepare mt-bench` as a user types it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "specreg", "prepare", "mt-bench"],
        cwd=builders.ROOT,
        env={**kept, "HF_HOME": str(folder / "hub"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_file_that_is_there_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    first = fetch(hub, tmp_path)
    hub.asked.clear()
    assert fetch(hub, tmp_path) == first
    assert [(method, path) for method, path, _ in hub.asked] == [("HEAD", PATH)]


def test_a_connection_that_broke_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    chunk_bytes = 10 * 1024 * 1024  # what huggingface_hub writes at a time
    hub.content, hub.break_at_bytes = os.urandom(2 * chunk_bytes + 5), chunk_bytes + 5
    assert fetch(hub, tmp_path)[0].read_bytes() == hub.content
    ranges = [asked for method, _, asked in hub.asked if method == "GET"]
    assert ranges == ["", f"bytes={chunk_bytes}-"]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", "its terms must be accepted at the hub first; then run hf auth login"),
        (401, "RepoNotFound", "or give --from"),
        (404, "EntryNotFound", "or give --from"),
        (404, "RevisionNotFound", "or give --from"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: Hub, tmp_path: Path, status: int, code: str, words: str
) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(DatasetError) as error:
        fetch(hub, tmp_path)
    assert str(error.value).startswith(f"hub dataset '{REPO}': {FILE}: ")
    assert str(error.value).endswith(words)
    assert str(status) in str(error.value) or code == "GatedRepo"


def asked_for_access(hub: Hub, folder: Path, **environment: str) -> str:
    """What a model whose weights aren't in the cache is told to be by the hub, of a process."""
    code = (
        "import dataclasses; from specreg.matrix.models import why_unfetchable;"
        "from tests.unit.builders import CASE;"
        "spec = dataclasses.replace(CASE.server, target='org/model', draft=None);"
        "print(why_unfetchable(spec))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(folder), "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=builders.ROOT,
        env={**kept, **own, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (200, "", ""),
        (404, "EntryNotFound", ""),
        (403, "GatedRepo", "its terms must be accepted at the hub first; then run hf auth login"),
        (401, "RepoNotFound", "401"),
        (503, "", "503"),
    ],
)
def test_the_hub_is_asked_whether_it_would_give_a_model(
    hub: Hub, tmp_path: Path, status: int, code: str, words: str
) -> None:
    hub.status, hub.code = status, code
    said = asked_for_access(hub, tmp_path)
    assert bool(said) == bool(words)
    assert words in said
    assert said.startswith("hub model 'org/model': " if words else "")
    heads = [path for method, path, _ in hub.asked if method == "HEAD"]
    assert heads == ["/org/model/resolve/main/config.json"]


def test_the_hub_is_not_asked_for_what_is_there_or_where_it_must_not(
    hub: Hub, tmp_path: Path
) -> None:
    hub.status = 503
    said = asked_for_access(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in said
    model = tmp_path / "hub/models--org--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text(COMMIT)
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / "snapshots" / COMMIT / name).touch()
    assert asked_for_access(hub, tmp_path) == ""
    assert not [path for method, path, _ in hub.asked if method == "HEAD"]


def test_a_user_fetches_a_set_once(hub: Hub, tmp_path: Path) -> None:
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
        "SPECREG_DATA": str(tmp_path / "data"),
    }
    done = prepare(tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"mt-bench: https://huggingface.co/datasets/{REPO}\nlicence: Ap")
    assert f"fetching {FILE} of {REPO}\n" in done.stderr
    assert "wrote 80 prompts (categories: 8) to " in done.stderr
    record = json.loads((tmp_path / "data/mt-bench.json").read_bytes())
    assert (record["revision"], record["source"]) == (COMMIT, REPO)
    assert record["source_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    one, folder = dataset_named("mt-bench"), tmp_path / "data"
    assert len(load_prompts(one, root=builders.ROOT, vocabulary=int, data_dir=folder)) == 80
    hub.asked.clear()
    again = prepare(tmp_path, **environment)
    assert again.returncode == 0
    assert f"mt-bench: kept 80 prompts (categories: 8), of {REPO}; remove" in again.stderr
    assert hub.asked == []


def test_without_a_network_the_remedy_is_said(tmp_path: Path) -> None:
    done = prepare(tmp_path, HF_HUB_OFFLINE="1", SPECREG_DATA=str(tmp_path / "data"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"hub dataset '{REPO}': {FILE}: ")
    assert last.endswith("; run it again where the hub can be reached, or give --from")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_without_huggingface_hub_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from specreg.datasets.hub import fetch_dataset_file\n"
        "fetch_dataset_file('openai/gsm8k', 'main/test.parquet')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=builders.ROOT, capture_output=True, text=True, check=False
    )
    assert 'which isn\'t installed; uv pip install -e ".[datasets]", or give --from' in done.stderr


def test_a_model_is_found_in_the_hubs_cache_once_it_was_fetched(tmp_path: Path) -> None:
    assert cached_model("org/name", tmp_path) is None
    model = tmp_path / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text(COMMIT)
    assert cached_model("org/name", tmp_path) is None
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    assert cached_model("org/name", tmp_path) == model / "snapshots" / COMMIT
