"""Check a running case: whether speculation changed its text, its draws or its steps.

The verdicts are those of `verdicts`. No baseline is used.
"""
