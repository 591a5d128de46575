"""How the server was started. In: the flags of vLLM's command line. Out: a Launch."""

import argparse
from collections.abc import Sequence

import msgspec


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server.

    Attributes:
        model: the folder or hub id of the model; never opened.
        name: the name it is served under.
        draft_tokens: k, drafted per step; 0 without `--speculative-config`.
        counts: whether each response counts its speculation.
    """

    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    draft_tokens: int = 0
    counts: bool = False

    def __post_init__(self) -> None:
        """Refuses what the real engine refuses, in its words."""
        if self.counts and not self.draft_tokens:
            message = (
                "--per-request-spec-decode-metrics requires speculative decoding "
                "to be enabled (via --speculative-config)."
            )
            raise ValueError(message)


def parse_launch(arguments: Sequence[str]) -> Launch:
    """The launch that a command line asks for; flags it doesn't know are ignored.

    Raises:
        ValueError: the flags contradict each other, as the real engine says it.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    # As the real one, which listens everywhere unless it is told where.
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speculative-config", default="{}")
    parser.add_argument("--per-request-spec-decode-metrics", default="none")
    flags, _ = parser.parse_known_args(arguments)
    speculation = msgspec.json.decode(flags.speculative_config)
    return Launch(
        model=flags.model,
        name=flags.served_model_name or flags.model,
        host=flags.host,
        port=flags.port,
        draft_tokens=speculation.get("num_speculative_tokens", 0),
        counts=flags.per_request_spec_decode_metrics != "none",
    )
