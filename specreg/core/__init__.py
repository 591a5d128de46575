"""Errors, files, HTTP, child processes, redaction and signals, which every other room uses.

It knows nothing of engines, servers or measurements.
"""
