"""Load the prompts of a dataset by its name, and prepare published datasets.

Files come from the hub or from the user. How prompts are sent is the business of other packages.
"""
