"""The name of a dataset in, its prompts out; it never says how they are sent."""
