"""How the files of the field spell prompts, one module each.

A public module here defines `FORM`; the catalogue finds it.
"""

import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.errors import UnknownNameError
from specreg.forms._form import Loaded, RowForm

__all__ = ["FORMS", "Loaded", "RowForm", "form_named"]

FORMS: Mapping[str, RowForm] = load_catalog(sys.modules[__name__], "FORM", RowForm)


def form_named(name: str) -> RowForm:
    """The form called `name`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    if name not in FORMS:
        raise UnknownNameError("form", name, FORMS)
    return FORMS[name]
