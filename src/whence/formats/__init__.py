"""Bytes: pure functions from bytes to values and back. No files, no sockets, no clock."""
