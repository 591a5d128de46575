"""A folder for an engine's PYTHONPATH; nothing in it imports specreg."""
