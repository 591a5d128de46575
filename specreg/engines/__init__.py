"""The engines: how each is installed, started, asked and read.

specreg never imports an engine. `pytorch/` is the reference engine, which runs in an environment of
its own, where most of specreg's dependencies are missing. It imports this package, so nothing may
be imported here.
"""
