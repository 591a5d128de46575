"""The engines: how each is installed, started, asked and read.

None is ever imported. `pytorch/` is the reference engine, which runs in an environment of its own;
so nothing may be imported here.
"""
