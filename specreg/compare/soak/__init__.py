"""A soak: one server kept under its case's load for long, and what drifts meanwhile."""
