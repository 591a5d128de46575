"""How the reference engine is asked in ids: as vLLM."""

from typing import ClassVar

from specreg.engines.token_api.vllm import VllmDialect


class ReferenceDialect(VllmDialect):
    """As vLLM."""

    name: ClassVar = "reference"


DIALECT = ReferenceDialect()
