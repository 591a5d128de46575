"""Measure running servers side by side, and write each measured request to the ledger.

The table of metrics is here, with their formulas and units. Nothing is judged.
"""
