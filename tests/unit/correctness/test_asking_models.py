"""Asking the models: what is handed over, and what becomes of a question that has no answer.

Another program stands in the place of the reference engine's interpreter, which needs torch.
"""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import ModelError
from specreg.correctness.oracle_client import predict_drafts
from specreg.engines.pytorch.questions import OracleAnswer, Question, Text
from specreg.engines.registry import engine_named
from specreg.servers.environments import EngineEnvironment, _fingerprint
from tests.unit import builders
from tests.unit.core.test_processes import await_pid, lives
from tests.unit.servers.test_server import at_most

PROGRESS = "Loading weights: 100%|##########| 47/47"
Install = Callable[[str], None]
QUESTION = Question(
    method="eagle3",
    target="some/target",
    draft="some/head",
    draft_tokens=3,
    dtype="float32",
    texts=(Text(ids=(1, 2, 3), prompt_tokens=2, output_tokens=1),),
)
ANSWERS = """
import json, os, pathlib, sys
question = json.loads(sys.stdin.readline())  # the input stays open
variables = {name: os.environ.get(name) for name in ("PYTHONPATH", "HF_HUB_OFFLINE")}
asked = {"arguments": sys.argv[1:], "question": question, "variables": variables}
pathlib.Path(__file__).with_name("asked.json").write_text(json.dumps(asked))
print(json.dumps({"accepted": [[0, 1, 2]], "gaps_nats": [0.5]}))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program in the place of the interpreter."""
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def write(program: str) -> None:
        requirement = engine_named("reference").requirement(on_gpu=False)
        name = f"{requirement.package}-{requirement.version}-{_fingerprint(requirement)}"
        folder = tmp_path / "environments" / name
        folder.mkdir(parents=True)
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\n{program}")
        python.chmod(stat.S_IRWXU)
        made = EngineEnvironment(python=str(python), package="", version="", torch_source="")
        (folder / "specreg.json").write_bytes(msgspec.json.encode(made))

    return write


def ask(question: Question = QUESTION) -> OracleAnswer:
    """Its answer."""
    return predict_drafts(question, on_gpu=False, show=pytest.fail)


def test_the_models_are_asked_in_their_own_environment(install: Install, tmp_path: Path) -> None:
    install(ANSWERS)

    assert ask() == OracleAnswer(accepted=((0, 1, 2),), gaps_nats=(0.5,))

    asked = msgspec.json.decode((tmp_path / "asked.json").read_bytes())
    *named, device = asked["arguments"]
    assert (named, device) == (["-m", "specreg.engines.pytorch.oracle"], "cpu")
    assert msgspec.convert(asked["question"], Question) == QUESTION
    assert asked["variables"]["PYTHONPATH"] == str(builders.ROOT)


@pytest.mark.parametrize(
    ("target", "draft", "offline"),
    [
        pytest.param("folder", "folder", "1", id="folders"),
        pytest.param("folder", "", "1", id="a-folder-alone"),
        pytest.param("folder", "some/head", None, id="a-head-of-the-hub"),
        pytest.param("some/target", "folder", None, id="a-target-of-the-hub"),
    ],
)
def test_nothing_is_fetched_where_every_model_is_a_folder(
    install: Install, tmp_path: Path, target: str, draft: str, offline: str | None
) -> None:
    install(ANSWERS)
    names = {"folder": str(tmp_path)}

    ask(
        msgspec.structs.replace(
            QUESTION, target=names.get(target, target), draft=names.get(draft, draft)
        )
    )

    asked = msgspec.json.decode((tmp_path / "asked.json").read_bytes())
    assert asked["variables"]["HF_HUB_OFFLINE"] == offline


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(
            """print('{"refusal": "head: has other tensors; choose another"}')""",
            "head: has other tensors; choose another",
            id="refused",
        ),
        pytest.param(
            "import no_such_package",
            "its process ended with status 1; its last words:\nTraceback",
            id="a-traceback",
        ),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)",
            "its process ended with status -9, killed as where memory runs out; its last words:\n",
            id="killed",
        ),
    ],
)
def test_what_has_no_answer_is_told(install: Install, program: str, words: str) -> None:
    install(program)

    with pytest.raises(ModelError) as caught:
        ask()

    assert str(caught.value).startswith(f"oracle of method 'eagle3': {words}")


# Says its process id beside itself, and takes its time.
SLOW = """
import os, pathlib, time
pathlib.Path(__file__).with_name("asked.pid").write_text(f"{os.getpid()}\\n")
time.sleep(120)
"""
ASKING = """
import sys
import msgspec
from specreg.correctness.oracle_client import predict_drafts
from specreg.engines.pytorch.questions import Question
predict_drafts(msgspec.json.decode(sys.argv[1], type=Question), on_gpu=False, show=print)
"""


def test_nothing_of_it_is_left_when_we_are_killed(install: Install, tmp_path: Path) -> None:
    install(SLOW)
    (tmp_path / "asked.pid").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        (sys.executable, "-c", ASKING, msgspec.json.encode(QUESTION).decode()),
        cwd=builders.ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as run:
        reads = await_pid(tmp_path / "asked.pid")
        try:
            run.send_signal(signal.SIGKILL)
            with at_most(5):
                while lives(reads) or any(temporary.iterdir()):
                    time.sleep(0.01)
        finally:
            if lives(reads):
                os.kill(reads, signal.SIGKILL)
