"""A tier's file in, its cases out, with their models and prompts.

It starts nothing and measures nothing.
"""
