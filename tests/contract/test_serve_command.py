"""A server that is started from the command line which its author types, and measured.

Starts a real server: a minute. `nox -s contract` runs it.
"""

from pathlib import Path

from specreg.matrix.tier import load_tier
from tests.contract.engines import measure, start

TIER = """
needs_gpus = 0

[[cases]]
command = '''
OMP_NUM_THREADS=1 vllm serve fixtures/models/tiny/target --dtype float32 --max-model-len 1024 \\
    --max-num-seqs 8 --seed 7 \\
    --speculative-config '{
        "method": "eagle3", "model": "fixtures/models/tiny/eagle3", "num_speculative_tokens": 3
    }'
'''
dataset = "toy"
concurrency = [4]
prompts = 20
output_cap_tokens = 64
speed = false
"""
STEPS = 386
"""What the same prompts, models and settings take in the tier `sglang_cpu`, by both engines."""


def test_a_server_from_its_command_line_takes_the_steps_of_its_settings(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix"
    matrix.mkdir()
    (matrix / "mine.toml").write_text(TIER)
    tier = load_tier(matrix, "mine")
    case = tier.named("vllm-eagle3-target-toy-c4")
    assert case.server.engine_args == ("--seed", "7")

    with start(case, tmp_path) as server:
        _, acceptance = measure(case, server)
        server_log = (tmp_path / f"{case.server.id}.log").read_text()

    assert "'seed': 7" in server_log
    assert acceptance.total.steps == STEPS
    assert acceptance.total.proposed == 3 * STEPS
