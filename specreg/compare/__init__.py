"""Measurements against each other: gate and bisect of two arms, soak of one arm over time."""
