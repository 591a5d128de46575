"""Mends the build of vLLM for CPUs, which verifies drawn drafts by values that it never writes.

`_expand_kernel_impl` of `vllm/utils/cpu_triton_utils.py` (read in 0.26.0 to 0.33.0) hands its C++
code a copy of its output in int64, and doesn't copy that back. So the temperature, top-k and top-p
by which drafts are verified are whatever the memory held before. Greedy answers need none of them.

Only tests put this folder on PYTHONPATH. Python then imports this file at the start of every
process, and the function is replaced once the server has imported its module.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MODULE = "vllm.utils.cpu_triton_utils"


def _expand(
    output: Any,  # noqa: ANN401
    input_val: Any,  # noqa: ANN401
    cu_num_tokens: Any,  # noqa: ANN401
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,  # noqa: N803 - vLLM's own name
) -> None:
    """Write the value of each request once for each of its drafts.

    Args:
        output: a value for each draft, to be written.
        input_val: a value for each request.
        cu_num_tokens: the drafts of each request and of those before it.
        replace_from: the value that is replaced.
        replace_to: what replaces it.
        MAX_NUM_TOKENS: not used.
    """
    del MAX_NUM_TOKENS
    values = input_val.clone()
    values[values == replace_from] = replace_to
    drafts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(values.repeat_interleave(drafts))


class _MendingLoader(importlib.abc.Loader):
    """Loads the module as its own loader does, and replaces the function."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if not hasattr(module, "_expand_kernel_impl"):
            raise ImportError(f"{_MODULE} has no _expand_kernel_impl: see if it is mended")
        module._expand_kernel_impl = _expand  # type: ignore[attr-defined]  # noqa: SLF001


class _MendingFinder(importlib.abc.MetaPathFinder):
    """Finds the module to mend, and leaves all others to Python."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _MendingLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _MendingFinder())
