"""The problems that container runtimes and registries report, and what to do about each."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that a runtime reports.

    Attributes:
        pattern: a regular expression for its words.
        says: what is wrong.
        advice: what to do.
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
    # docker 28.2.2 and the registries: Docker Hub's limit for users without an account.
    Problem(
        r"toomanyrequests|TOOMANYREQUESTS|\b429 Too Many Requests",
        "its registry's limit of pulls is reached",
        "log in to it with the runtime's command login, wait, or name a mirror's image",
    ),
    # docker, and podman 4.3.1.
    Problem(
        r"no matching manifest for|no image found in (?:manifest list|image index) for",
        "the image isn't built for this machine's processor",
        "use a tag that is, which the image's page in its registry lists",
        is_refusal=True,
    ),
    Problem(
        r"x509:|certificate signed by unknown authority",
        "its registry's certificate isn't trusted",
        "put the certificate of its authority into /etc/docker/certs.d/HOST:PORT/ca.crt (podman:"
        " /etc/containers/certs.d)",
    ),
    Problem(
        r"server gave HTTP response to HTTPS client",
        "its registry has no TLS",
        "add it to insecure-registries in /etc/docker/daemon.json (podman: insecure = true in"
        " /etc/containers/registries.conf)",
    ),
    # The client's configuration names a program that isn't there, often Docker Desktop's.
    Problem(
        r"docker-credential-\S+: executable file not found|error getting credentials",
        "the program that keeps its passwords is missing",
        "install it, or remove credsStore and credHelpers from ~/.docker/config.json",
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
        r"|network is unreachable|dial tcp|context deadline exceeded|Client\.Timeout exceeded",
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
