"""Compute intervals, levels, chances and percentiles of plain numbers.

The room knows nothing of cases, metrics or outcomes.
"""
