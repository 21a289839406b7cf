"""Meaning: one class per thing on disk, one file per class."""
