"""A tier's file in, its cases with models and prompts out; it starts and measures nothing."""
