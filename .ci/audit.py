"""Look for known vulnerabilities in what the sessions install, with pip-audit.

Exit status: 0 if no vulnerability is known, 1 if some are, which are named, and 10 if that couldn't
be looked up. pip-audit itself skips what it can't look up, and ends with 0.
"""

import subprocess
import sys
from collections.abc import Sequence

import msgspec

NONE_STATUS = 0
SOME_STATUS = 1
UNKNOWN_STATUS = 10
_OPTIONS = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")


class Vulnerability(msgspec.Struct, frozen=True, kw_only=True):
    """A known vulnerability.

    Attributes:
        id: the name of the vulnerability.
        fix_versions: the versions without it.
    """

    id: str
    fix_versions: tuple[str, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution that was looked up.

    Attributes:
        name: the name of the distribution.
        version: its version; empty if it was skipped.
        vulns: its vulnerabilities. The field has pip-audit's name.
        skip_reason: why it wasn't looked up; empty if it was.
    """

    name: str
    version: str = ""
    vulns: tuple[Vulnerability, ...] = ()
    skip_reason: str = ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of pip-audit."""

    dependencies: tuple[Dependency, ...]


def judge(answer: bytes) -> tuple[int, str]:
    """Return the exit status and what to print.

    Args:
        answer: the answer of pip-audit; empty, or not JSON, if pip-audit failed.
    """
    try:
        dependencies = msgspec.json.decode(answer, type=Audit).dependencies
    except msgspec.DecodeError:
        message = "UNKNOWN: pip-audit gave no answer; see above, and try again"
        return UNKNOWN_STATUS, message

    lines = []
    for dependency in dependencies:
        for vulnerability in dependency.vulns:
            versions = ", ".join(vulnerability.fix_versions) or "no version"
            name = f"{dependency.name} {dependency.version}"
            lines.append(f"{name}: {vulnerability.id}, fixed in {versions}")
    if lines:
        advice = "nox -s lock -- --upgrade-package NAME takes a newer one"
        return SOME_STATUS, "\n".join(("VULNERABLE:", *lines, advice))

    skipped = [dependency for dependency in dependencies if dependency.skip_reason]
    if skipped or not dependencies:
        reason = skipped[0].skip_reason if skipped else "nothing was looked up"
        message = (
            f"UNKNOWN: {len(skipped)} of {len(dependencies)} packages weren't looked up, the first"
            f" because: {reason}; run it where pypi.org can be reached, or with"
            " --vulnerability-service osv where api.osv.dev can be"
        )
        return UNKNOWN_STATUS, message
    return NONE_STATUS, f"NONE: no vulnerability is known of {len(dependencies)} packages"


def main(arguments: Sequence[str]) -> int:
    """Audit files of requirements, with the options of pip-audit after `--`; return the status."""
    separator = [*arguments, "--"].index("--")
    options = arguments[separator + 1 :]
    statuses = set()
    for requirements in arguments[:separator]:
        command = ("pip-audit", "--requirement", requirements, *_OPTIONS, *options)
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603 - our own
        status, message = judge(done.stdout)
        print(f"{message}\n({requirements})")  # noqa: T201 - that is its purpose
        statuses.add(status)
    if SOME_STATUS in statuses:
        return SOME_STATUS
    return max(statuses)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
