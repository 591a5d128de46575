"""Check a running case: whether speculation changed its text or its draws, or takes wrong steps.

The outcomes are those of `verdicts`. No baseline is used.
"""
