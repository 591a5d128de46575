"""The problems that container runtimes and registries report, and what to do about each."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that a runtime reports.

    Attributes:
        pattern: A regular expression for its words.
        says: What is wrong.
        advice: What to do.
        is_refusal: True if a registry refuses an image, so that it would refuse it again.
    """

    pattern: str
    says: str
    advice: str
    is_refusal: bool = False


_PROBLEMS = (
    # docker 28.2.2, as a user outside the group `docker`.
    Problem(
        r"permission denied while trying to connect|dial unix \S+: connect: permission denied",
        "this user may not use the socket of its daemon",
        "add the user to the group docker and log in anew, or use podman",
    ),
    # docker 28.2.2 without a daemon.
    Problem(
        r"Cannot connect to the Docker daemon|Is the docker daemon running",
        "its daemon doesn't run",
        "start it (systemctl start docker), or use podman",
    ),
    # docker about a private or a missing repository, podman and registries about a private one.
    Problem(
        r"pull access denied|requested access to the resource is denied|unauthorized"
        r"|authentication required|no basic auth credentials|\b403 Forbidden",
        "no right to pull it, or no such repository",
        "check its name, or log in to its registry with the runtime's command login",
        is_refusal=True,
    ),
    Problem(
        r"manifest unknown|manifest for \S+ not found|no such manifest|name unknown|: not found",
        "no such image or tag",
        "check its name and its tag",
        is_refusal=True,
    ),
    Problem(
        r"no space left on device|disk quota exceeded",
        "the disk of the runtime is full",
        "remove images that nobody needs (docker system prune), or move the runtime's folder",
    ),
    # podman 4.3.1.
    Problem(
        r"short-name .* did not resolve|unqualified-search registries",
        "the name doesn't say which registry has it",
        "write it with its registry, such as docker.io/vllm/vllm-openai:v0.33.0",
    ),
    Problem(
        r"no such host|connection refused|i/o timeout|TLS handshake|name resolution"
        r"|network is unreachable|dial tcp",
        "its registry can't be reached",
        "check the network, or load the image from a file (docker load, podman load)",
    ),
)
"""The known problems; the first whose words are in the output is named."""


def problem_in(output: str) -> Problem | None:
    """Return the first known problem that a runtime reports; None if it reports none of them."""
    for problem in _PROBLEMS:
        if re.search(problem.pattern, output):
            return problem
    return None
