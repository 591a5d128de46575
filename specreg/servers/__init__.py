"""Servers: a server's settings in, one that has generated a token out; nothing of it is left.

Engines are installed, GPUs leased and failed starts explained here. Nothing is measured.
"""
