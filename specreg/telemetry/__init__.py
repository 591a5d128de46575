"""Identify the machine and its devices, and measure the energy that they draw.

A sampler in a process of its own reads the drivers. This package judges nothing and touches no
process of anybody else.
"""
