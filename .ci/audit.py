"""Whether what the sessions install has known vulnerabilities, by pip-audit.

Exit status: 0 none is known of any, 1 of some, which are named, 10 unknown: pip-audit calls
that a success, as it skips whatever it can't look up.
"""

import subprocess
import sys
from collections.abc import Sequence

import msgspec

NONE_STATUS, SOME_STATUS, UNTOLD_STATUS = 0, 1, 10
_ASKED = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")


class Vulnerability(msgspec.Struct, frozen=True, kw_only=True):
    """One that is known: its name, and the versions that haven't got it."""

    id: str
    fix_versions: tuple[str, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked up.

    Attributes:
        name, version: of the distribution; no version where it was skipped.
        vulns: pip-audit's word for its vulnerabilities.
        skip_reason: why it wasn't looked up.
    """

    name: str
    version: str = ""
    vulns: tuple[Vulnerability, ...] = ()
    skip_reason: str = ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What pip-audit says."""

    dependencies: tuple[Dependency, ...]


def judge(answer: bytes) -> tuple[int, str]:
    """The status, and what to say.

    Args:
        answer: pip-audit's, empty or no JSON where it failed.
    """
    try:
        asked = msgspec.json.decode(answer, type=Audit).dependencies
    except msgspec.DecodeError:
        return UNTOLD_STATUS, "UNTOLD: pip-audit gave no answer; see above, and try again"
    lines = [
        f"{one.name} {one.version}: {each.id}, mended in {', '.join(each.fix_versions) or 'none'}"
        for one in asked
        for each in one.vulns
    ]
    untold = [one for one in asked if one.skip_reason]
    if lines:
        advice = "nox -s lock -- --upgrade-package NAME takes a newer one"
        return SOME_STATUS, "\n".join(("VULNERABLE:", *lines, advice))
    if untold or not asked:
        why = untold[0].skip_reason if untold else "nothing was looked up"
        message = (
            f"UNTOLD: {len(untold)} of {len(asked)} packages weren't looked up, the first:"
            f" {why}; run it where pypi.org or, with --vulnerability-service osv, api.osv.dev can"
            " be reached"
        )
        return UNTOLD_STATUS, message
    return NONE_STATUS, f"NONE: no vulnerability is known of {len(asked)} packages"


def main(file: str, further: Sequence[str]) -> int:
    """Audits a file of requirements with further arguments of pip-audit; the status."""
    command = ("pip-audit", "--requirement", file, *_ASKED, *further)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)  # noqa: S603 - our own
    status, said = judge(done.stdout)
    print(said)  # noqa: T201 - that is its purpose
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
