"""Disk: the only floor with open(), mmap, fsync and rename."""
