"""Errors, files, HTTP, child processes, redaction and signals, which all other packages use.

Nothing here depends on engines, servers or measurements.
"""
