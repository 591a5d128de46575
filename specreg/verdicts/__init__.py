"""Whether an effect is within tolerance, and how sure that is."""
