"""A folder for the PYTHONPATH of vLLM. Its modules run inside vLLM, and don't import specreg."""
