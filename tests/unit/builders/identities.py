"""What servers that run already say of themselves."""

from specreg.engines.engine import Identity
from specreg.engines.registry import engine_named
from tests.unit import builders


def answers(of: dict[str, bytes], engine: str) -> Identity:
    return engine_named(engine).identify(lambda _, path: of[path])


RECORDED_SGLANG = {
    path: (builders.ROOT / "fixtures/recordings/sglang/0.5.23" / name).read_bytes()
    for path, name in {
        "/v1/models": "models.json",
        "/server_info": "server_info.json",
        "/generate": "generate_stream.txt",
        "/metrics": "metrics_before.txt",
    }.items()
} | {"/health": b""}
