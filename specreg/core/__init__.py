"""Errors, files, processes, signals and HTTP, which every other room uses."""
