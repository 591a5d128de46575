"""Run the suite as its options say: choose a tier's cases, measure, judge, record and report them.

Shards of a run are cut and merged here. How much a figure changed is decided in `specreg.verdicts`.
"""
