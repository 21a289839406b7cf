"""Jobs on Spark: the only floor that imports pyspark. A task is a shell around what the floors below do."""
