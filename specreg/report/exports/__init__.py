"""A run in the forms of other tools: a file for each tool."""
