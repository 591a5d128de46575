"""A plugin of real vLLM that plants faults; put on PYTHONPATH, chosen by `PLANTED_FAULT`.

vLLM loads it in each of its processes by the entry point `vllm.general_plugins`. Several faults
stand with commas between. `PLANTED_SINCE` names the version from which on it is planted; without it
that is any.
"""

import importlib
import os
import re
import time
from collections.abc import Callable
from typing import Any

SLEEP_S = float(os.environ.get("PLANTED_SLEEP_S", "0.005"))
"""How long each step sleeps."""
LONGER_FRAC = float(os.environ.get("PLANTED_LONGER_FRAC", "0"))
"""How long each step computes more, as a share of the step before it, in place of sleeping.

Sleeping would leave the processor to the other side of a gate, which becomes faster by it, and
waking up takes time, so nobody would know how large the planted loss is.
"""
LONGEST_STEP_S = 0.05
"""A longer time between two steps is a pause without requests."""


def plant() -> None:
    """Changes the engine's classes before they are used."""
    planted: dict[str, Callable[[], None]] = {
        "sleep": lambda: _plant_sleep(speculating_only=True),
        "sleep_always": lambda: _plant_sleep(speculating_only=False),
        "fewer_drafts": lambda: _plant_settings(
            "num_speculative_tokens", lambda tokens: tokens - 1
        ),
        "forgets": lambda: _plant_settings("suffix_decoding_max_cached_requests", lambda _: 0),
        "spoilt_draft": _plant_spoilt_draft,
        "no_drafts": _plant_no_drafts,
        "shuffled_mtp": _plant_shuffled_mtp,
    }
    chosen = [name for name in os.environ.get("PLANTED_FAULT", "").split(",") if name in planted]
    if chosen and _is_since():
        for name in chosen:
            planted[name]()


def _is_since() -> bool:
    """Whether this vLLM is one of those in which it is to be planted."""
    import vllm  # noqa: PLC0415 - only there

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)[:2]]

    return numbers(str(vllm.__version__)) >= numbers(os.environ.get("PLANTED_SINCE", "0"))


def _plant_sleep(*, speculating_only: bool) -> None:
    """Every step takes longer; where asked so, not those of a control, which doesn't speculate."""
    for model_runner in _model_runners():
        _slow_down(model_runner, speculating_only=speculating_only)


def _model_runners() -> list[Any]:
    """The classes by which this vLLM runs a model: V1's, and V2's, which a GPU may choose."""
    from vllm.v1.worker import gpu_model_runner  # noqa: PLC0415 - only in vLLM

    v2 = _v2_module()
    modules = [gpu_model_runner] if v2 is None else [gpu_model_runner, v2]
    return [module.GPUModelRunner for module in modules]


def _v2_module() -> Any:  # noqa: ANN401
    """The module of the second model runner; None where it doesn't load, as on a CPU."""
    try:
        return importlib.import_module("vllm.v1.worker.gpu.model_runner")
    except ImportError:
        return None


def _slow_down(model_runner: Any, *, speculating_only: bool) -> None:  # noqa: ANN401
    execute_model = model_runner.execute_model
    woke_s = time.monotonic()

    def slower(runner: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        nonlocal woke_s
        if runner.speculative_config is not None or not speculating_only:
            _idle_or_compute(min(time.monotonic() - woke_s, LONGEST_STEP_S))
            woke_s = time.monotonic()
        return execute_model(runner, *args, **keywords)

    model_runner.execute_model = slower


def _idle_or_compute(step_s: float) -> None:
    """Take the time that a step takes longer, of which the one before took so many seconds."""
    if not LONGER_FRAC:
        time.sleep(SLEEP_S)
        return
    end_s = time.monotonic() + LONGER_FRAC * step_s
    while time.monotonic() < end_s:
        pass


def _plant_no_drafts() -> None:
    """Speculation is configured, and nothing is ever drafted by looking it up."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415 - only in vLLM

    propose = GPUModelRunner.propose_draft_token_ids

    def nothing(runner: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        return [[] for _ in propose(runner, *args, **keywords)]

    GPUModelRunner.propose_draft_token_ids = nothing


def _plant_settings(name: str, change: Callable[[Any], int]) -> None:
    """The server has another setting of speculation than it was told, or than its default."""
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - only in vLLM

    create = EngineArgs.create_speculative_config

    def changed(arguments: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        if arguments.speculative_config is not None:
            config = arguments.speculative_config
            arguments.speculative_config = {**config, name: change(config.get(name))}
        return create(arguments, *args, **keywords)

    EngineArgs.create_speculative_config = changed


def _plant_spoilt_draft() -> None:
    """The last draft of each step is one that is never said: the text stays, a draft is lost.

    What is looked up, in lists and not in a tensor, stays.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415 - only in vLLM

    propose = GPUModelRunner.propose_draft_token_ids

    def spoilt(runner: Any, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        drafts = propose(runner, *args, **keywords)
        if not isinstance(drafts, list):
            drafts[:, -1] = 0
        return drafts

    GPUModelRunner.propose_draft_token_ids = spoilt
    _plant_spoilt_draft_in_v2()


def _plant_spoilt_draft_in_v2() -> None:
    """The second model runner has its drafts proposed by an object of its own."""
    v2 = _v2_module()
    if v2 is None:
        return
    init_speculator = v2.init_speculator

    def init_spoilt_speculator(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        speculator = init_speculator(*args, **keywords)
        propose = speculator.propose

        def spoilt(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401
            drafts = propose(*args, **keywords)
            drafts[:, -1] = 0
            return drafts

        speculator.propose = spoilt
        return speculator

    v2.init_speculator = init_spoilt_speculator


def _plant_shuffled_mtp() -> None:
    """The layer that MiMo drafts with has the numbers of each tensor in another order."""
    import torch  # noqa: PLC0415 - only in vLLM's environment
    from vllm.model_executor.models.mimo_mtp import MiMoMTP  # noqa: PLC0415 - only in vLLM

    load = MiMoMTP.load_weights
    seeded = torch.Generator().manual_seed(0)

    def shuffle(tensor: Any) -> Any:  # noqa: ANN401
        order = torch.randperm(tensor.numel(), generator=seeded)
        return tensor.flatten()[order].view_as(tensor)

    def shuffled(model: Any, weights: Any) -> Any:  # noqa: ANN401
        mtp = ((name, shuffle(weight) if "mtp" in name else weight) for name, weight in weights)
        return load(model, mtp)

    MiMoMTP.load_weights = shuffled
