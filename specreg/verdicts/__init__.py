"""Measurements and what is known of their case in, verdicts out, confirmed and corrected.

It never starts a server or measures.
"""
