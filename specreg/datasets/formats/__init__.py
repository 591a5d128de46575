"""How the files of the field spell prompts, one module each, which defines `FORM`."""

from collections.abc import Mapping
from types import MappingProxyType

from specreg.core.errors import UnknownNameError
from specreg.datasets.formats import (
    genai_perf,
    gsm8k,
    humaneval,
    questions,
    sharegpt,
    specreg,
    speed_bench,
)
from specreg.datasets.formats._form import Loaded, RowForm

__all__ = ["FORMS", "Loaded", "RowForm", "form_named"]

_MODULES = (genai_perf, gsm8k, humaneval, questions, sharegpt, specreg, speed_bench)
FORMS: Mapping[str, RowForm] = MappingProxyType(
    {module.FORM.name: module.FORM for module in _MODULES}
)


def form_named(name: str) -> RowForm:
    """The form called `name`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    if name not in FORMS:
        raise UnknownNameError("form", name, FORMS)
    return FORMS[name]
