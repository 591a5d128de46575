"""Look for known vulnerabilities in what the sessions install, with pip-audit.

Exit status: 0 if none is known, 1 if there are some, which are named, and 10 if that couldn't be
looked up. pip-audit calls the last one a success, because it skips what it can't look up.
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
        id: its name.
        fix_versions: the versions without it.
    """

    id: str
    fix_versions: tuple[str, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution that was looked up.

    Attributes:
        name: the name of the distribution.
        version: its version; empty if it was skipped.
        vulns: its vulnerabilities, by pip-audit's name for them.
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
        answer: pip-audit's answer; empty or no JSON if it failed.
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
            f" because: {reason}; run it where pypi.org can be reached, or api.osv.dev with"
            " --vulnerability-service osv"
        )
        return UNKNOWN_STATUS, message
    return NONE_STATUS, f"NONE: no vulnerability is known of {len(dependencies)} packages"


def main(requirements: str, options: Sequence[str]) -> int:
    """Audit a file of requirements with further options of pip-audit; return the exit status."""
    command = ("pip-audit", "--requirement", requirements, *_OPTIONS, *options)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603 - our own
    status, message = judge(done.stdout)
    print(message)  # noqa: T201 - that is its purpose
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
