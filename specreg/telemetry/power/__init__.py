"""Power: a sampler in a process of its own, what it wrote, and the energy of a window of time."""
