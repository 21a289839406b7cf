"""For Spark users: ``whence.spark.register(spark)`` makes ``spark.read.format("whence")`` known to a session."""

from whence.pipeline.source import register

__all__ = ["register"]
