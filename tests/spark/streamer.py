"""A process that streams a store to files until it is killed: ``python streamer.py STORE OUT CHECKPOINT``."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from whence.pipeline.session import open_session
from whence.pipeline.source import register


def main(store: str, out: str, checkpoint: str) -> None:
    with open_session() as spark:
        register(spark)
        messages = spark.readStream.format("whence").option("columns", "physical_offset,topic,body")
        messages = messages.option("maxBytesPerTrigger", 3000)
        query = (
            messages.load(store)
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start(out)
        )
        while query.isActive:
            time.sleep(0.1)
        print(query.exception())


if __name__ == "__main__":
    main(*sys.argv[1:])
