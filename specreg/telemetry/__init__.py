"""Read the machine: its name as an environment, its devices, and the energy that they draw.

A sampler in a process of its own reads the drivers. Nothing is judged, and no process of others is
touched.
"""
