"""Decoding: what a decoder raises of bytes that it can't read; foreign exceptions end there."""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The last of what is nested too deeply: some hundred brackets are enough."""
