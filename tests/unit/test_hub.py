"""Fetching, by the real huggingface_hub in a process of its own, from a hub on this machine."""

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

from specreg.datasets import Wanted, dataset_named
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
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def prepare(hub: Hub, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`specreg prepare mt-bench` with that hub, and a cache of its own."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "SPECREG_DATA": str(folder / "data"),
    }
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "specreg", "prepare", "mt-bench", *arguments],
        cwd=builders.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_set_is_fetched_checked_and_recorded_with_its_commit(hub: Hub, tmp_path: Path) -> None:
    done = prepare(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("mt-bench: https://huggingface.co/datasets/HuggingFaceH4/mt_b")
    assert "fetching raw/question.jsonl of HuggingFaceH4/mt_bench_prompts" in done.stderr
    record = json.loads((tmp_path / "data/mt-bench.json").read_bytes())
    assert record["revision"] == COMMIT
    assert record["source"] == "HuggingFaceH4/mt_bench_prompts"
    assert record["source_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    wanted = Wanted(root=builders.ROOT, vocabulary=lambda: 768, data_dir=tmp_path / "data")
    assert len(dataset_named("mt-bench").load_prompts(wanted)) == 80
    path = "/datasets/HuggingFaceH4/mt_bench_prompts/resolve/main/raw/question.jsonl"
    assert ("GET", path, "") in [(method, path, "") for method, path, _ in hub.asked]


def test_what_was_prepared_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    assert prepare(hub, tmp_path).returncode == 0
    hub.asked.clear()
    done = prepare(hub, tmp_path)
    assert done.returncode == 0
    assert "mt-bench: kept 80 prompts of 8 categories, of HuggingFaceH4" in done.stderr
    assert hub.asked == []


def test_a_download_that_broke_off_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.break_at_bytes = 30_000
    tries = [prepare(hub, tmp_path) for _ in range(2)]
    assert tries[-1].returncode == 0, tries[-1].stderr
    ranges = [asked for method, _, asked in hub.asked if method == "GET" and asked]
    assert any(asked == "bytes=30000-" for asked in ranges), hub.asked
    record = json.loads((tmp_path / "data/mt-bench.json").read_bytes())
    assert record["source_sha256"] == hashlib.sha256(CONTENT).hexdigest()


def test_another_revision_is_fetched(hub: Hub, tmp_path: Path) -> None:
    assert prepare(hub, tmp_path).returncode == 0
    hub.asked.clear()
    assert prepare(hub, tmp_path, "--revision", "v1").returncode == 0
    assert any("/resolve/v1/" in path for _, path, _ in hub.asked)


def test_without_a_hub_the_remedy_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.port = 9  # discard: nobody listens there
    done = prepare(hub, tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hub dataset 'HuggingFaceH4/mt_bench_prompts': raw/question.jsonl: ")
    assert last.endswith("; run it again where the hub can be reached, or give --from")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", "its terms must be accepted at the hub first; then run hf auth login"),
        (404, "EntryNotFound", "or give --from"),
        (401, "RepoNotFound", "or give --from"),
        (404, "RevisionNotFound", "or give --from"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: Hub, tmp_path: Path, status: int, code: str, words: str
) -> None:
    hub.status, hub.code = status, code
    done = prepare(hub, tmp_path)
    assert done.returncode == 1
    assert words in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_without_huggingface_hub_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from specreg.hub import fetch_dataset_file\n"
        "fetch_dataset_file('openai/gsm8k', 'main/test.parquet', 'main')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=builders.ROOT, capture_output=True, text=True, check=False
    )
    assert "which isn't installed; pip install 'specreg[datasets]', or give --from" in done.stderr
