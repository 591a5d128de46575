"""The path to the command of the real vLLM."""
