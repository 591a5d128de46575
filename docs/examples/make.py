"""Make the examples from real runs: the tier `cpu` as it is and with planted faults, and a gate.

The gate compares vLLM with itself, one side with a planted fault, so that its answer is *don't*.
`nox -s examples` runs all of them and needs a quiet machine; `-- --render` only draws the committed
reports again. Each folder gets `report.json`, `report.html`, `report.md`, `verdict.svg`, and
pictures of the page by day, by night, on a phone and on a wide screen, and of one case unfolded:
one that fails. A test compares what is drawn with what is committed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize, sync_playwright

from specreg.report.exports import write_outputs
from specreg.report.files import FILE_NAME, load_report
from specreg.report.pictures import render_pictures
from tests.browser.test_page import NAMES, chromium

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SCRATCH = Path(".specreg/examples")
HISTORY = Path(".specreg/history")

_GATE_CASES = ("vllm-eagle3-tiny-toy-c1", "vllm-draft_model-tiny-toy-c1")
_Scheme = Literal["light", "dark"]
_DESK: ViewportSize = {"width": 1280, "height": 1700}
_PHONE: ViewportSize = {"width": 400, "height": 1700}
_WIDE: ViewportSize = {"width": 1920, "height": 1700}
_PICTURES: tuple[tuple[str, ViewportSize, _Scheme], ...] = (
    ("light", _DESK, "light"),
    ("dark", _DESK, "dark"),
    ("phone", _PHONE, "light"),
    ("wide", _WIDE, "light"),
)


def run_suite(name: str) -> Path:
    """Run the tier in a folder of its own, and return the folder of the run.

    The example with planted faults fails, as it has to.
    """
    folder = SCRATCH / name
    shutil.rmtree(ROOT / folder, ignore_errors=True)
    (ROOT / folder).mkdir(parents=True)
    if (ROOT / HISTORY).is_dir():
        # The page shows the history of other runs. This run isn't added to it.
        shutil.copytree(ROOT / HISTORY, ROOT / folder / "history")
    arguments = ["tests/perf", "--specreg-tier=cpu", f"--specreg-runs={folder / 'runs'}"]
    environment = dict(os.environ)
    if name == "cpu_perf":
        # On a shared machine a speed may stay undecided, which must not make an example fail.
        arguments.append("--specreg-inconclusive=warn-speed")
    if name == "planted_faults":
        # One draft of each step is lost, and a step with speculation takes about twice as long.
        arguments += ["-k", "c1-"]
        environment |= {
            "PLANTED_FAULT": "spoilt_draft,sleep",
            "PLANTED_SLEEP_S": "0.02",
            "PYTHONPATH": str(ROOT / "tests/faults/planted"),
        }
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
    subprocess.run(command, check=False, cwd=ROOT, env=environment)  # noqa: S603 - our own
    return max((ROOT / folder / "runs").iterdir())


def run_gate() -> Path:
    """Compare vLLM with itself, one side with a planted fault, and return the gate's folder."""
    folder = ROOT / SCRATCH / "gate"
    shutil.rmtree(folder, ignore_errors=True)
    faults = ROOT / "tests/faults/planted"
    command = [sys.executable, "-m", "specreg", "gate", "vllm", "vllm", "--tier", "cpu"]
    for case in _GATE_CASES:
        command += ["--case", case]
    for setting in ("engine_env.PLANTED_FAULT=spoilt_draft", f"engine_env.PYTHONPATH={faults}"):
        command += ["--set-b", setting]
    command += ["--launches", "1", "--in-turn", "--out", str(folder)]
    subprocess.run(command, check=False, cwd=ROOT)  # noqa: S603 - our own
    return folder


def keep(name: str, run_folder: Path) -> None:
    """Copy the report of a run beside this file, with its page and pictures of it."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    if run_folder != folder:
        # Where the checkout was says nothing about the run.
        written = (run_folder / FILE_NAME).read_text().replace(f"{ROOT}/", "")
        (folder / FILE_NAME).write_text(written)
    report = load_report(folder / FILE_NAME)
    page, _ = write_outputs(("html", "markdown"), report, folder, folder)
    card = render_pictures(report)["pictures/verdict.svg"]
    (folder / "verdict.svg").write_text(card)
    _picture(folder, page)


def _picture(folder: Path, page: Path) -> None:
    """Take the pictures of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, viewport, scheme in _PICTURES:
            context = browser.new_context(viewport=viewport, color_scheme=scheme)
            tab = context.new_page()
            tab.goto(page.resolve().as_uri())
            tab.screenshot(path=folder / f"{name}.png")
            if name == "light":
                # Cases that fail stand first. Without one, the last case has most to show.
                cases = tab.locator("details.case")
                red = tab.locator("details.case.red")
                case = red.first if red.count() else cases.last
                case.evaluate("details => details.open = true")
                case.screenshot(path=folder / "case.png")
            context.close()
        browser.close()


def main() -> None:
    """Make all examples. `--render` only draws again those that there are, and names the others."""
    for name in NAMES:
        if "--render" not in sys.argv:
            keep(name, run_gate() if name == "gate" else run_suite(name))
        elif (HERE / name / "report.json").is_file():
            keep(name, HERE / name)
        else:
            print(f"example '{name}': nothing to draw; make it with nox -s examples")  # noqa: T201


if __name__ == "__main__":
    main()
