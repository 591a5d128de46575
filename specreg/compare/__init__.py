"""Compare measurements with each other: gate and bisect two arms, soak one arm over time.

Each drives `measurement.measure` and judges its figures by `verdicts`. No baseline is used.
"""
