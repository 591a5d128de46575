"""Read and write the files of a report: its document, and what is rendered from it."""

import contextlib
from pathlib import Path

import msgspec

from specreg.core.commands import portable_options, run_command, without_recording
from specreg.core.errors import ReportError
from specreg.core.files import MIB, UNREADABLE, cause_of, replace_file
from specreg.core.readable import readable_block
from specreg.core.received import read_received, write_below
from specreg.core.values import readable_values, with_texts
from specreg.measurement.plausible import check_numbers
from specreg.report.document import ComparedReport, Report, RunReport, RunVerdict, reproduce_command

FILE_NAME = "report.json"
_MAX_BYTES = 256 * MIB


def record_document(path: Path, content: object) -> None:
    """Write a document as indented JSON, whole or not at all.

    Raises:
        ReportError: the file can't be written.
    """
    encoded = msgspec.json.encode(readable_values(content))
    write_whole(path, msgspec.json.format(encoded, indent=1) + b"\n")


def write_in(folder: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder, whole or not at all, and return its path.

    Args:
        folder: the folder that the file must stay below.
        name: the path below the folder. Part of it may come from a document, for example the id
            of a case, so it isn't trusted.
        content: what the file shall contain.

    Raises:
        ReportError: the file would be outside the folder, or it can't be written.
    """
    try:
        return write_below(folder, name, content)
    except OSError as error:
        message = f"{str(folder / name)!a}: not written, {error.strerror}"
        advice = "make room, repair its rights, or name another folder"
        raise ReportError(f"{message}; {advice}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        ReportError: the file can't be written.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        message = f"'{path}': not written, {error.strerror}; make room or repair its rights"
        raise ReportError(message) from error


class _Sides(msgspec.Struct, frozen=True):
    """The part of a document that tells its kind: a run has no sides."""

    arms: tuple[msgspec.Raw, ...] = ()


def load_report(path: Path) -> Report:
    """Load a report document, which somebody else may have sent.

    The commands in it are replaced by those of this machine, or left out if the document has two
    sides, so that a reader who copies a command starts no program that the document names.

    Raises:
        ReportError: the file is missing, can't be read, or doesn't have the form of a report.
    """
    try:
        report = _decode(read_received(path.parent, path.name, _MAX_BYTES))
        check_numbers(msgspec.to_builtins(report))
    except (OSError, *UNREADABLE) as error:
        advice = "run the tier again, or use the specreg of the run"
        raise ReportError(f"report '{path}': {cause_of(error)}; {advice}") from error

    # The renderers hide secrets, because not all secrets are known yet when a report is loaded.
    readable = with_texts(report, lambda text: readable_block(text, secrets=()))
    if isinstance(readable, ComparedReport):
        return _without_commands(readable)
    return _with_own_commands(readable)


def load_run_report(path: Path) -> RunReport:
    """Load the report of a run, as `load_report` does.

    Raises:
        ReportError: as for `load_report`, or the report has two sides.
    """
    report = load_report(path)
    if isinstance(report, ComparedReport):
        message = f"report '{path}': compares two sides already, needed the report of a run"
        raise ReportError(f"{message}; name the folder of a run")
    return report


def _decode(content: bytes) -> Report:
    if msgspec.json.decode(content, type=_Sides).arms:
        return msgspec.json.decode(content, type=ComparedReport)
    return msgspec.json.decode(content, type=RunReport)


def _with_own_commands(report: RunReport) -> RunReport:
    """Replace all commands of a run's report by those with which this machine does the same."""
    options = portable_options(report.origin.options)
    cases = []
    for case in report.cases:
        command = reproduce_command(case.case_id, without_recording(options), case.figures)
        cases.append(msgspec.structs.replace(case, reproduce=command))
    case_ids = []

    # A run of the whole tier needs no names of cases.
    if not report.run.complete:
        case_ids = [case.case_id for case in cases]
    command = run_command(case_ids, options, report.tier_cases)
    origin = msgspec.structs.replace(report.origin, command=command, options=options)
    return msgspec.structs.replace(report, origin=origin, cases=tuple(cases))


def _without_commands(report: ComparedReport) -> ComparedReport:
    """Remove all commands, and the hints, which have commands too.

    They name programs and folders of the machine that compared the sides.
    """
    cases = [msgspec.structs.replace(case, reproduce="") for case in report.cases]
    options = portable_options(report.origin.options)
    origin = msgspec.structs.replace(report.origin, command="", options=options)
    return msgspec.structs.replace(report, origin=origin, cases=tuple(cases), hints=())


def load_verdict(path: Path) -> RunVerdict | None:
    """Load what a run decided; return None if the file is missing or can't be read."""
    with contextlib.suppress(OSError, *UNREADABLE):
        content = read_received(path.parent, path.name, _MAX_BYTES)
        return msgspec.json.decode(content, type=RunVerdict)
    return None
