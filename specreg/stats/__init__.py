"""Plain numbers in, intervals, levels, chances and percentiles out.

It knows nothing of cases, metrics or outcomes.
"""
