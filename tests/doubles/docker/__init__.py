"""A scripted docker: a client, and a daemon whose containers are ordinary processes."""
