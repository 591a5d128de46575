"""`report.json`: all that is known of a run, in one document; every other form is made of it.

`docs/report.schema.json` is its JSON Schema, made from these classes.
"""

import datetime as dt
import json
from pathlib import Path

import msgspec

from specreg.baselines.schema import CaseSettings
from specreg.core.decoding import UNREADABLE
from specreg.core.errors import ReportError
from specreg.core.files import replace_file
from specreg.core.timeline import RunTime
from specreg.measurement.figures import Figures
from specreg.report.json import RunVerdict
from specreg.stats.percentiles import Bar
from specreg.telemetry.identity import Environment
from specreg.verdicts.history import RunRecord

SCHEMA_VERSION = 1
FILE_NAME = "report.json"
_ADVICE = "run the tier again to have all of it"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run comes from.

    Attributes:
        command: what was typed.
        options: what repeats it, beside the cases; empty of a run that an earlier specreg recorded.
        commit: of the repository, empty outside one.
        driver_version: of the GPUs, empty without one.
    """

    command: str
    specreg_version: str
    commit: str
    python_version: str
    driver_version: str
    options: tuple[str, ...] = ()


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the baseline of a case holds, of the prompts that were measured.

    Attributes:
        environment: whose; recorded_on, engine_version, reason: when, with what and why.
        driver_version: of the GPUs then, empty without one.
        values: by metric.
        histogram: entry j counts the steps with j drafts accepted.
        marginal_frac: by position, from the first.
        category_acceptance_length_tokens: by category.
    """

    environment: str
    recorded_on: str
    engine_version: str
    reason: str
    values: dict[str, float]
    histogram: tuple[int, ...]
    marginal_frac: tuple[float, ...]
    category_acceptance_length_tokens: dict[str, float]
    driver_version: str = ""


class Spreads(msgspec.Struct, frozen=True, kw_only=True):
    """How durations of a case lie: the time to the first token, and of a step."""

    ttft_ms: tuple[Bar, ...] = ()
    step_ms: tuple[Bar, ...] = ()
    control_step_ms: tuple[Bar, ...] = ()


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one case.

    Attributes:
        case_id, engine, method, models, dataset: what it is called, and of what it is made.
        target, draft: folders or hub ids; the draft is empty where the method needs none.
        settings: all that must be equal to compare; null where it couldn't be told.
        figures: of its last valid launch, else of the last one; null where none was measured. What
            each request did is in the run's folder `figures`.
        spreads: of that launch.
        expected: null without a baseline.
        history: what earlier runs on this machine and this one did, the oldest first.
        reproduce: what to type.
        logs: what its servers said, from the run's folder.
        error: what went wrong with it in full, the last lines of a server's log for instance.
    """

    case_id: str
    engine: str
    method: str
    models: str
    dataset: str
    target: str
    draft: str
    settings: CaseSettings | None
    figures: Figures | None
    spreads: Spreads
    expected: Expected | None
    history: tuple[RunRecord, ...]
    reproduce: str
    logs: tuple[str, ...] = ()
    error: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document.

    Attributes:
        schema_version: of this form.
        run: what was decided, as in `verdict.json`.
        machine, origin: where, and from what.
        cases: in the order of the run.
        tier_cases: the ids of all cases of the tier.
        remarks: what a reader should know besides.
        ended_at: when it was done, in UTC by ISO 8601; empty of a run of an earlier specreg.
        time: where it went until then; null of a run of an earlier specreg.
    """

    schema_version: int = SCHEMA_VERSION
    run: RunVerdict
    machine: Environment
    origin: Origin
    cases: tuple[CaseReport, ...]
    tier_cases: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    ended_at: str = ""
    time: RunTime | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """With which its cases run as they did."""
        return self.origin.options or (f"--specreg-tier={self.run.tier}",)


def record_report(path: Path, report: Report) -> None:
    """Writes the file.

    Raises:
        ReportError: the disk refuses.
    """
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as error:
        message = f"report '{path}': not written, {error.strerror}; make room or mend its rights"
        raise ReportError(message) from error


def load_report(path: Path) -> Report:
    """The document in a file.

    Raises:
        ReportError: there is none, it can't be read, or it is of another form.
    """
    try:
        content = path.read_bytes().replace(b'"sight_frac"', b'"mde_frac"')  # until 0.1
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            newer = version > SCHEMA_VERSION
            advice = "use a newer specreg" if newer else _ADVICE
            message = (
                f"report '{path}': schema version {version}, this specreg reads {SCHEMA_VERSION};"
                f" {advice}"
            )
            raise ReportError(message)
        return msgspec.json.decode(content, type=Report)
    except OSError as error:
        raise ReportError(f"report '{path}': {error.strerror}; {_ADVICE}") from error
    except UNREADABLE as error:
        raise ReportError(f"report '{path}': {error}; {_ADVICE}") from error


def began_at(run: str) -> dt.datetime | None:
    """When a run began, by its name, which is in UTC; None of a name without a time."""
    try:
        return dt.datetime.strptime(f"{run.partition('-')[0]}+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None


def render_schema() -> str:
    """The JSON Schema of the document; `docs/report.schema.json` holds it for other tools."""
    any_value = {"description": "what a chat template takes"}
    schema = msgspec.json.schema(Report, schema_hook=lambda _: any_value)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:specreg:report:{SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


class _Version(msgspec.Struct, frozen=True):
    schema_version: int
