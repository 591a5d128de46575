"""The name of a dataset in, its prompts out, prepared on this machine or committed here.

It never says how they are sent.
"""
