"""Keep what was recorded of a case, and compare a measurement with it.

A baseline is a file of one case on one kind of machine. Published figures are kept here too.
"""
