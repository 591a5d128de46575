"""A run in the forms of other tools: aiperf's."""
