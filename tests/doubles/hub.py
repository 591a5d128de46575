"""A hub of models on this machine, which answers huggingface_hub as the real one does.

It answers the four requests of a download: a model's facts, its list of files, and the head and the
content of a file. Facts, lists and headers have the fields that huggingface_hub reads.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "e3a795c7b1c2a8a6b3f0f2d1c4b5a69788776655"
_PIECE_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class FakeHub:
    """What a hub has, and what was asked of it.

    Attributes:
        models: by hub id the files of each model with their content.
        gated: the models that only a token opens.
        refused: the models whose terms no account has accepted.
        facts_are_broken: True if a model's facts are a page and no JSON, as those of a proxy.
        breaks_after: closes the connection after so many pieces of a file's content, once.
        piece_s: how long each piece of a file's content takes.
        requests: the methods and paths of all requests so far.
        url: its address while it runs.
    """

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    facts_are_broken: bool = False
    breaks_after: int | None = None
    piece_s: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def running(self) -> Iterator["FakeHub"]:
        """Serve it on a port of this machine until the context ends."""
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def contents(self) -> list[str]:
        """The names of the files whose content was requested, in that order."""
        paths = [path for method, path in self.requests if method == "GET" and "/resolve/" in path]
        return [path.rsplit("/", 1)[1] for path in paths]


class _Handler(BaseHTTPRequestHandler):
    """Answers as the hub does."""

    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _answer(self, *, with_content: bool) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path))
        parts = path.removeprefix("/api/models").strip("/").split("/")
        model = "/".join(parts[:2])
        files = self.hub.models.get(model)
        if files is None:
            self._refuse(401, "RepoNotFound", "Invalid username or password.")
        elif model in self.hub.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo", f"Access to model {model} is restricted.")
        elif model in self.hub.refused:
            self._refuse(403, "GatedRepo", f"Access to model {model} is restricted.")
        elif "absent" in parts:
            self._refuse(404, "RevisionNotFound", "Invalid rev id: absent")
        elif path.startswith("/api/") and self.hub.facts_are_broken:
            self._send(b"<html>Log in</html>")
        elif path.startswith("/api/") and "tree" in parts:
            self._send_json([_entry(name, content) for name, content in files.items()])
        elif path.startswith("/api/"):
            self._send_json(_facts(model, files))
        elif (name := "/".join(parts[4:])) in files:
            self._send_file(files[name], with_content=with_content)
        else:
            self._refuse(404, "EntryNotFound", "Entry not found")

    def _refuse(self, status: int, code: str, words: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", words)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, content: object) -> None:
        self._send(json.dumps(content).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, content: bytes, *, with_content: bool) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if not with_content:
            return
        for number, first in enumerate(range(start, len(content), _PIECE_BYTES)):
            if number == self.hub.breaks_after:
                self.hub.breaks_after = None
                self.close_connection = True
                return
            time.sleep(self.hub.piece_s)
            try:
                self.wfile.write(content[first : first + _PIECE_BYTES])
            except ConnectionError:  # whoever fetches was stopped
                self.close_connection = True
                return


def _entry(name: str, content: bytes) -> dict[str, Any]:
    """An entry of a list of files."""
    return {"type": "file", "path": name, "size": len(content), "oid": _git_id(content)}


def _facts(model: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the hub says of a model, with the sizes of its files."""
    siblings = [
        {"rfilename": name, "size": len(content), "blobId": _git_id(content)}
        for name, content in files.items()
    ]
    return {"_id": "1", "id": model, "modelId": model, "sha": COMMIT, "siblings": siblings}


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - git's id
