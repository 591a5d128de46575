"""Whether an effect is within what is tolerated, and how sure that is."""
