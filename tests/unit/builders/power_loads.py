"""Loads of scripted GPUs whose energy is known."""

from tests.doubles.nvml.device import Load

SQUARE = Load(low_w=100.0, high_w=700.0, period_ms=100.0)
UNEVEN = Load(low_w=100.0, high_w=700.0, period_ms=130.0, duty_frac=0.3)
SLOW = Load(low_w=100.0, high_w=700.0, period_ms=1_700.0)
BOUNDS = ((10.0, 0.02), (30.0, 0.01))
"""How long one uninterrupted block is in seconds, and how far off its energy may be."""
