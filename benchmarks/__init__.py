"""Benchmarks: one module per claim, all through one harness. Run them with ``python -m benchmarks``."""
