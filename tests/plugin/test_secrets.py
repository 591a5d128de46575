"""No secret leaves a run, and nothing that is no secret is lost for one."""

import base64
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest

from specreg.baselines.schema import load_baseline
from specreg.report.files import load_report
from specreg.runs.ledger import read_ledger
from tests.doubles.vllm.script import Fault, Script
from tests.plugin.conftest import MATRIX, Suite

CASE = "vllm-eagle3-tiny-toy-c1"
CHOSEN = ("tests/perf", "-q", "-k", f"{CASE}- and (acceptance or lossless)")
WORDS = {
    "CACHE_KEY": "acceptance",
    "X_TOKEN": "category",
    "GROUP_KEY": "finished",
    "FLAG_KEY": "true",
    "ONE_KEY": "1",
    "LETTER_KEY": "e",
    "CASE_TOKEN": CASE,
    "OUTCOME_SECRET": "NO_BASELINE",
    "METRIC_PASS": "acceptance_length_tokens",
    "TAG_AUTH": "Replayed",
    "KIND_CREDENTIALS": "schema_version",
    "CHECK_PASSWD": "lossless",
    "PROMPT_SECRET": "question",
}
"""Variables that are called like a secret, with values that stand in each of our files."""


def test_a_word_that_is_called_a_secret_breaks_no_file(suite: Suite) -> None:
    """It is hidden where people read it, but files and their entries are found by their names."""
    suite.variables = dict(WORDS)
    suite.record("-k", f"{CASE}-")
    (path,) = suite.baselines.glob("*/*.json")
    baseline = load_baseline(path)
    assert baseline is not None

    judged = suite.run(*CHOSEN)
    assert judged.returncode == 0, judged.stdout
    folder = max(suite.runs.iterdir())
    report = load_report(folder / "report.json")
    assert {verdict.case_id for verdict in report.run.verdicts} == {CASE}
    assert set(report.run.outcomes) == {"PASS"}
    assert [key.case_id for key in read_ledger(folder / "ledger.jsonl").measured] == [CASE]

    suite.variables["RUN_TOKEN"] = folder.name
    again = suite.run(*CHOSEN, "--specreg-resume")
    assert again.returncode == 0, again.stdout
    assert load_report(folder / "report.json").run.outcomes == report.run.outcomes
    rendered = suite.specreg("report", folder)
    assert rendered.returncode == 0, rendered.stderr


SECRET = "planted>in?variables"  # noqa: S105 - it is planted
PLANTED = {
    "HF_TOKEN_2": SECRET,
    "HF_TOKENS": "planted-tokens",
    "DB_PASSWD": "planted-passwd",
    "SSH_PASSPHRASE": "planted-passphrase",
    "MY_CREDENTIALS": "planted-credentials",
    "GITHUB_PAT": "planted-pat",
    "REGISTRY_AUTH": "planted-auth",
    "ASKED": "http://host/x?api_key=planted-parameter&b=1",
    "MIRROR": "http://someone:planted-password@host/simple",
    "BASIC": base64.b64encode(b"someone:planted-password").decode(),
    "QUOTED": quote(SECRET),
}
ARGUMENTS = (
    "--header=Authorization: Bearer planted-bearer-1",
    '--settings={"hub": {"token": "planted-in-json"}}',
)
LEAKS = (
    *PLANTED.values(),
    *("planted-parameter", "planted-password", "planted-bearer-1", "planted-in-json"),
)


def leaks_in(suite: Suite, *outputs: str) -> list[str]:
    """Where secrets stand in the outputs and in what lies in the suite's folder."""
    expected_files = {"cpu.toml", "scripted_server.json"}
    files = [
        path
        for path in suite.folder.rglob("*")
        if path.is_file() and path.name not in expected_files
    ]
    texts = {str(path): path.read_text(errors="replace") for path in files}
    texts["output"] = "".join(outputs)
    return [f"{leak} in {name}" for leak in LEAKS for name, text in texts.items() if leak in text]


def test_no_form_of_a_secret_is_in_what_a_run_leaves_and_says(suite: Suite) -> None:
    suite.variables = dict(PLANTED)
    arguments = ", ".join(f"'{argument}'" for argument in ARGUMENTS)
    suite.write_tier(
        MATRIX.replace("    [cases.tol", f"    engine_args = [{arguments}]\n    [cases.tol")
    )
    suite.script = Script(says_secrets=True)
    junit = suite.folder / "junit.xml"
    done = suite.run(*CHOSEN, f"--junitxml={junit}", "-rA")
    assert done.returncode == 11, done.stdout
    (log,) = [path for path in suite.runs.glob("*/logs/*.log") if "HIDDEN" in path.read_text()][:1]
    assert "'HF_TOKEN_2': 'HIDDEN'" in log.read_text()
    assert leaks_in(suite, done.stdout, done.stderr) == []


COMMANDS = (
    "\x1b[31m::error::planted\n \t::add-mask::vllm\na\r::stop-commands::x\n##[error]y\0\u202e\x85"
)


def test_a_ci_obeys_nothing_that_a_server_says(suite: Suite) -> None:
    suite.script = Script(fault=Fault.EXIT_AT_START, exit_log=COMMANDS)
    suite.job_summary = summary = suite.folder / "summary.md"
    junit = suite.folder / "junit.xml"
    done = suite.run(*CHOSEN, f"--junitxml={junit}", "-rA")
    assert done.returncode == 10, done.stdout
    (folder,) = suite.runs.iterdir()
    pages = [path.read_text() for path in (folder / "report.html", folder / "report.md", summary)]
    assert "planted" in done.stdout
    assert "planted" in pages[0]
    for text in (done.stdout, done.stderr, *pages, (folder / "report.json").read_text()):
        assert not {"\x1b", "\0", "\u202e", "\x85"} & set(text)
        assert not [line for line in text.splitlines() if line.strip().startswith("::")]
        assert "##[" not in text
    assert len(list(ET.parse(junit).getroot().iter("testcase"))) > 1  # noqa: S314 - our own
    forms = suite.specreg("report", folder, "--to", "junit", "--to", "csv", "--to", "prometheus")
    assert forms.returncode == 0, forms.stderr
    ET.parse(folder / "junit.xml")  # noqa: S314 - our own


@pytest.mark.parametrize(
    "url",
    [
        "http://someone:planted-password@127.0.0.1:9",
        "http://someone:planted%2Dpassword@127.0.0.1:9",
        "http://someone:planted-pass@word@127.0.0.1:9",
        "http://someone:planted-pass/word@127.0.0.1:9",
        "someone:planted-password@127.0.0.1:9",
        "https://planted-password@127.0.0.1",
        "http://127.0.0.1:9/?api_key=planted-password",
        "http://127.0.0.1:9/#planted-password",
        "http://[planted-password]:9",
        "planted-password",
    ],
)
def test_a_url_with_a_password_is_refused_in_a_line_without_it(suite: Suite, url: str) -> None:
    junit = suite.folder / "junit.xml"
    done = suite.run(*CHOSEN, f"--specreg-attach={url}", f"--junitxml={junit}")
    assert done.returncode == 4, done.stdout
    output = done.stdout + done.stderr
    assert output.count("--specreg-attach: ") == 1
    assert "give http://HOST:PORT" in output
    assert "planted" not in output
    assert "Traceback" not in output
    files = [path for path in suite.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"planted" in path.read_bytes()]


MISTYPED = (
    ("--specreg-atach=http://someone:planted-password@host",),
    ("--specreg-atach", "http://someone:planted-password@host"),
    ("--attach=http://someone:planted-password@host",),
    ("--specreg-api-key=planted-secret",),
    ("--specreg-token", "planted-secret"),
    ("--specreg-inconclusive=http://someone:planted-password@host",),
    ("--specreg-ready-within-s=http://someone:planted-password@host",),
    ("-k", "http://someone:planted-password@host"),
    ("http://someone:planted-password@host",),
)


@pytest.mark.parametrize("typed", MISTYPED, ids=lambda typed: typed[0][:30])
def test_a_secret_in_what_was_mistyped_is_not_quoted(suite: Suite, typed: tuple[str, ...]) -> None:
    done = suite.run("tests/perf", "-q", *typed)
    assert done.returncode == 4, done.stdout
    output = done.stdout + done.stderr
    assert "planted" not in output
    assert "ERROR: " in output
    assert "Traceback" not in output


FAILING = """
import builtins
import os
import pytest

ERROR = getattr(builtins, os.environ["RAISES"])

class Client:
    def __init__(self, url):
        self.url = url
    def __repr__(self):
        return f"Client({self.url})"

def ask(client, password):
    held = [password] * 20
    raise ERROR(f"no such host: {client.url}")

@pytest.mark.family("acceptance")
def test_fails(control, server, case, metric):
    ask(Client("http://someone:" + os.environ["DB_PASSWORD"] + "@host"), os.environ["DB_PASSWORD"])
"""


@pytest.mark.parametrize(("raises", "status"), [("ValueError", 1), ("KeyboardInterrupt", 2)])
def test_a_traceback_of_a_fault_has_no_secret(suite: Suite, raises: str, status: int) -> None:
    password = "planted-secret-of-many-characters-" * 4
    suite.variables = {"DB_PASSWORD": password, "RAISES": raises}
    failing = suite.folder / "test_failing.py"
    failing.write_text(FAILING)
    junit = suite.folder / "junit.xml"
    options = ("--showlocals", "-vvv", "--full-trace", "-rA", f"--junitxml={junit}")
    done = suite.run(
        "tests/perf", str(failing), "-k", f"test_fails and {CASE}- and length", *options
    )
    assert done.returncode == status, done.stdout
    for text in (done.stdout, done.stderr, junit.read_text()):
        assert "planted" not in text
    assert f"{raises}: no such host: http://someone:HIDDEN@host" in done.stdout


BROKEN = """
import os

def pytest_collection_finish(session):
    password = os.environ["DB_PASSWORD"]
    raise ValueError(f"broken: {password}")
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["here", "in-a-worker"])
def test_an_internal_error_of_pytest_has_no_secret(suite: Suite, workers: tuple[str, ...]) -> None:
    suite.variables = {"DB_PASSWORD": "planted-secret"}
    suite.python_path = suite.folder / "plugins"
    suite.python_path.mkdir()
    (suite.python_path / "broken_plugin.py").write_text(BROKEN)
    junit = suite.folder / "junit.xml"
    options = ("-p", "broken_plugin", "--showlocals", "--full-trace", f"--junitxml={junit}")
    done = suite.run(*CHOSEN, *options, *workers)
    assert "ValueError: broken: HIDDEN" in done.stdout
    assert "planted" not in done.stdout + done.stderr
    files = [path for path in suite.folder.rglob("*") if path.suffix in {".xml", ".json", ".log"}]
    assert not [path for path in files if b"planted" in path.read_bytes()]
