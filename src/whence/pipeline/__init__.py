"""Spark: the only floor that imports pyspark."""
