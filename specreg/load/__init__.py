"""Send prompts under a load, and trace when each chunk of an answer came.

This is the client, of one process or several. It starts no server and judges nothing.
"""
