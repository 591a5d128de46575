"""A plugin of real vLLM that plants a fault; put on PYTHONPATH, chosen by `PLANTED_FAULT`.

vLLM loads it in each of its processes by the entry point `vllm.general_plugins`. `PLANTED_SINCE`
names the version from which on it is planted; without it that is any.
"""

import os
import re
import time
from typing import Any

SLEEP_S = float(os.environ.get("PLANTED_SLEEP_S", "0.005"))


def plant() -> None:
    """Changes the engine's classes before they are used."""
    planted = {
        "sleep": _plant_sleep,
        "fewer_drafts": _plant_fewer_drafts,
        "spoilt_draft": _plant_spoilt_draft,
    }
    if os.environ.get("PLANTED_FAULT") in planted and _is_since():
        planted[os.environ["PLANTED_FAULT"]]()


def _is_since() -> bool:
    """Whether this vLLM is one of those in which it is to be planted."""
    import vllm  # noqa: PLC0415 - only there

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)[:2]]

    return numbers(str(vllm.__version__)) >= numbers(os.environ.get("PLANTED_SINCE", "0"))


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


def _plant_spoilt_draft() -> None:
    """The last draft of each step is one that is never said: the text stays, a draft is lost."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415 - only in vLLM

    propose = GPUModelRunner.propose_draft_token_ids

    def spoilt(runner: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        drafts = propose(runner, *args, **keywords)
        drafts[:, -1] = 0
        return drafts

    GPUModelRunner.propose_draft_token_ids = spoilt
