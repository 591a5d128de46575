"""Machines as `specreg doctor` examines them: a tier, a repository, and what is found."""

import io
from collections.abc import Mapping
from pathlib import Path

from specreg.report.progress import Progress
from specreg.suite.configure import open_context
from specreg.suite.context import RunContext
from specreg.suite.options import Options
from specreg.suite.preflight import PreflightFinding, Severity, examine

FindingsBySubject = Mapping[str, list[PreflightFinding]]

MATRIX = """
needs_gpus = {gpus}
[models.pair]
target = "{target}"
target_gib = {target_gib}
drafts = {{ eagle3 = "org/draft" }}
drafts_gib = {{ eagle3 = 2.0 }}
[[cases]]
engine = "{engine}"
methods = {methods}
models = "pair"
dataset = "{dataset}"
concurrency = [4]
prompts = 10
output_cap_tokens = 64
"""
METHODS = '["none", "eagle3"]'
USUAL = {"gpus": 0, "target": "./target", "target_gib": 0.1, "engine": "vllm", "dataset": "toy"}


def write_model(folder: Path) -> None:
    """Write the files by which a model folder seems whole."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()


def write_tier(root: Path, **changes: object) -> Path:
    """Write the tier `here`, which differs so from the usual one."""
    path = root / "fixtures/matrix/here.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MATRIX.format(**{**USUAL, "methods": METHODS, **changes}))
    return path


def context_here(root: Path) -> RunContext:
    """Return a run of the tier `here` on this machine."""
    return open_context(root, Options(tier="here", runs="runs"), Progress(io.StringIO()))


def context_of(root: Path, **changes: object) -> RunContext:
    """Return a run on this machine of a tier that differs so from the usual one."""
    write_tier(root, **changes)
    return context_here(root)


def findings_of(context: RunContext) -> FindingsBySubject:
    """Return what the doctor finds; what is in the way comes with what to do."""
    findings: dict[str, list[PreflightFinding]] = {}
    for finding in examine(context):
        if finding.state is Severity.IN_THE_WAY:
            assert finding.advice or "; " in finding.says, finding
        findings.setdefault(finding.subject, []).append(finding)
    return findings


def only_finding(context: RunContext, subject: str) -> PreflightFinding:
    """Return the one finding on a subject."""
    (finding,) = findings_of(context)[subject]
    return finding
