"""Load a tier's file: its cases, with their models and prompts.

Models are found, padded or widened here. Nothing is started or measured.
"""
