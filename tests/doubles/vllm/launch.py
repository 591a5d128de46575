"""How the server was started. In: the flags of vLLM's command line. Out: a Launch."""

import argparse
from collections.abc import Sequence

import msgspec


class Speculation(msgspec.Struct, frozen=True):
    """The part of vLLM's `--speculative-config` that the server acts on."""

    num_speculative_tokens: int
    method: str = "draft_model"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server.

    Attributes:
        model: the folder or hub id of the model; never opened.
        name: the name it is served under.
        host: the address to listen on.
        port: the TCP port to listen on.
        speculation: absent without `--speculative-config`.
        counts: whether each response counts its speculation.
    """

    model: str
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    speculation: Speculation | None = None
    counts: bool = False

    def __post_init__(self) -> None:
        """Refuses what the real engine refuses, in its words."""
        if self.counts and self.speculation is None:
            message = (
                "--per-request-spec-decode-metrics requires speculative decoding "
                "to be enabled (via --speculative-config)."
            )
            raise ValueError(message)

    @property
    def draft_tokens(self) -> int:
        """k, the tokens drafted per step; 0 without speculation."""
        return self.speculation.num_speculative_tokens if self.speculation else 0


def parse_launch(arguments: Sequence[str]) -> Launch:
    """The launch that a command line asks for; flags it doesn't know are ignored.

    Raises:
        ValueError: the flags contradict each other, as the real engine says it.
    """
    flags, _ = _parser().parse_known_args(arguments)
    spelled = flags.speculative_config
    return Launch(
        model=flags.model,
        name=flags.served_model_name or flags.model,
        host=flags.host,
        port=flags.port,
        speculation=msgspec.json.decode(spelled, type=Speculation) if spelled else None,
        counts=flags.per_request_spec_decode_metrics != "none",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    # As the real one, which listens everywhere unless it is told where.
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speculative-config")
    parser.add_argument("--per-request-spec-decode-metrics", default="none")
    return parser
