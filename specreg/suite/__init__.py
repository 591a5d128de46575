"""A run of the suite: options and a tier in, verdicts, baselines and a report document out.

It never estimates an effect itself.
"""
