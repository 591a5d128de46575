"""The client: prompts and a load in, a round of traces out, from one process or several.

It starts no server and judges nothing.
"""
