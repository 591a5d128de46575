"""Proofs, on a server whose answers are written down by hand."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from specreg.datasets import Prompt
from specreg.engines import engine_named
from specreg.proving import Scene, prove_oracle
from specreg.questions import Foreseen, Question
from specreg.verdict import Outcome
from tests.unit import builders

ANSWERED = {
    "output_ids": [4, 5, 6, 7, 8],
    "meta_info": {
        "spec_num_correct_drafts": 2,
        "spec_num_proposed_drafts": 6,
        "spec_correct_drafts_histogram": [0, 2],
    },
}
"""By SGLang, of three drafts per step: both steps accepted one, and the histogram ends there."""


class Generates(BaseHTTPRequestHandler):
    """`/generate`."""

    def do_POST(self) -> None:
        """The same to everybody."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWERED).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Its URL, while it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Generates) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def foresee(question: Question) -> Foreseen:
    """Models that get one draft right everywhere, and would have said what was said."""
    texts = question.texts
    return Foreseen(accepted=tuple((1,) * len(text.ids) for text in texts), gaps_nats=(0.0,))


def test_a_histogram_that_ends_at_the_most_accepted_tells_the_same_steps() -> None:
    spec = dataclasses.replace(builders.SPEC, engine="sglang", method="eagle3", draft_tokens=3)
    with listening() as url:
        server = dataclasses.replace(builders.server(url), engine=engine_named("sglang"), spec=spec)
        verdict = prove_oracle(
            Scene(
                case=dataclasses.replace(builders.CASE, server=spec),
                server=server,
                control=None,
                prompts=[Prompt(id="ids", category="any", token_ids=(1, 2, 3))],
                foresee=foresee,
                models=("target", "head"),
            )
        )
    assert (verdict.outcome, verdict.value, verdict.expected) == (Outcome.PASS, 2.0, 2.0)
    assert verdict.reason == ""
