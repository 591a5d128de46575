"""The matrix: `fixtures/matrix/<tier>.toml` in, the cases of that tier out."""

from specreg.matrix.case import NO_LIMITS, Case, Limits, ServerSpec, Tier
from specreg.matrix.needs import Needs, Sizes
from specreg.matrix.tables import MOST_DRAFT_TOKENS, Width, render_schema
from specreg.matrix.tier import all_case_ids, load_tier, tier_names, with_prompts

__all__ = [
    "MOST_DRAFT_TOKENS",
    "NO_LIMITS",
    "Case",
    "Limits",
    "Needs",
    "ServerSpec",
    "Sizes",
    "Tier",
    "Width",
    "all_case_ids",
    "load_tier",
    "render_schema",
    "tier_names",
    "with_prompts",
]
