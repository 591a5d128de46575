"""The machine: its name as an environment, its devices, and the energy they draw in a span.

Drivers and the samples of a sampler in a process of its own come in, environments and records of
power go out. Nothing is judged here, and no process of others is touched.
"""
