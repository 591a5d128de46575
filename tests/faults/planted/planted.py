"""A plugin of real vLLM that plants a fault; put on PYTHONPATH, chosen by `PLANTED_FAULT`.

vLLM loads it in each of its processes by the entry point `vllm.general_plugins`.
"""

import os
import time
from typing import Any

SLEEP_S = float(os.environ.get("PLANTED_SLEEP_S", "0.005"))


def plant() -> None:
    """Changes the engine's classes before they are used."""
    planted = {"sleep": _plant_sleep, "fewer_drafts": _plant_fewer_drafts}
    if os.environ.get("PLANTED_FAULT") in planted:
        planted[os.environ["PLANTED_FAULT"]]()


def _plant_sleep() -> None:
    """Every step of a server that speculates takes longer; the control stays as it is."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415 - only in vLLM

    execute_model = GPUModelRunner.execute_model

    def slower(runner: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        if runner.speculative_config is not None:
            time.sleep(SLEEP_S)
        return execute_model(runner, *args, **keywords)

    GPUModelRunner.execute_model = slower


def _plant_fewer_drafts() -> None:
    """The server drafts one token fewer than it was told to."""
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - only in vLLM

    create = EngineArgs.create_speculative_config

    def fewer(arguments: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        if arguments.speculative_config is not None:
            given = arguments.speculative_config
            fewer_tokens = given["num_speculative_tokens"] - 1
            arguments.speculative_config = {**given, "num_speculative_tokens": fewer_tokens}
        return create(arguments, *args, **keywords)

    EngineArgs.create_speculative_config = fewer
