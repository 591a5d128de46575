"""Intervals, alpha spending, permutation tests and percentiles of plain numbers."""
