"""Servers: their environments, start, readiness, GPU leases and end."""
