"""Starts the scripted SGLang with the real one's command line."""

import argparse
import logging
import os

from tests.doubles.protocols.sglang import ScriptedSglang
from tests.doubles.vllm.launch import Launch, Speculation
from tests.doubles.vllm.script import load_script


def main() -> None:
    """Serves until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    script = load_script(os.environ)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-num-steps", type=int)
    flags, _ = parser.parse_known_args()
    steps = flags.speculative_num_steps
    launch = Launch(
        model=flags.model_path,
        name=flags.served_model_name,
        host=flags.host,
        port=flags.port,
        speculation=Speculation(num_speculative_tokens=steps) if steps else None,
    )
    ScriptedSglang(launch, script).serve()


if __name__ == "__main__":
    main()
