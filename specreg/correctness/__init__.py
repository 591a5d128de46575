"""A running case in, a verdict out on whether speculation changed its text or its steps.

It never compares with a baseline.
"""
