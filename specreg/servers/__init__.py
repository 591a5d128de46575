"""Start servers from their settings, wait for the first token, and stop all of their processes.

Engines are installed, GPUs leased and failed starts explained here. Nothing is measured.
"""
