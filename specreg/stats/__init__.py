"""Compute intervals, levels, probabilities and percentiles of plain numbers.

Nothing here depends on cases, metrics or outcomes.
"""
