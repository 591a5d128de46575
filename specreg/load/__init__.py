"""The client: prompts and a load in, a round of traces out.

It starts no server and judges nothing.
"""
