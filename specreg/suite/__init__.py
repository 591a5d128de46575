"""A run of the suite, from its configuration to its end."""
