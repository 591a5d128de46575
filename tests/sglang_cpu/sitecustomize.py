"""Lets torchvision be imported beside a torch that is built for CPUs.

PyPI's torchvision is built for CUDA. Its library doesn't load beside such a torch, so nobody
declares its operators, and importing it fails with "operator torchvision::nms does not exist".
SGLang imports it for image sizes that no text model has. Python imports this file at the start of
every process that has this folder on PYTHONPATH, spawned ones too.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is first looked for, and not in other processes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def _declare() -> None:
    import torch  # noqa: PLC0415 - seconds, and most processes don't need it

    if torch.version.cuda is None:
        for name, schema in _SCHEMAS.items():
            torch.library.define(f"torchvision::{name}", schema)


sys.meta_path.insert(0, _BeforeTorchvision())
