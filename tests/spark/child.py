"""A process with a session of its own: runs tasks that tell where they are, and prints what it learned as JSON.

python child.py '{"master": "local[2]", "conf": {}, "log_file": "spark.log", "task": "where", "inputs": [0, 1]}'
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from tests.spark import tasks
from whence.cli.interrupt import Interrupts
from whence.cli.job_bars import JobBars
from whence.pipeline.runner import Runner
from whence.pipeline.session import SparkSettings, open_session


def main(asked: dict[str, Any]) -> int:
    interrupts = Interrupts()
    interrupts.watch()
    settings = SparkSettings(asked.get("master"), asked.get("conf", {}))
    log_file = Path(asked["log_file"]) if "log_file" in asked else None
    started = time.monotonic()
    try:
        with JobBars(quiet=False) as bars, open_session(settings, log_file=log_file) as spark:
            elapsed_s = time.monotonic() - started
            context: Any = spark.sparkContext
            results = Runner(spark, bars).map("job", getattr(tasks, asked.get("task", "where")), asked["inputs"])
            java = context._gateway.proc
            told = {
                "driver": os.getpid(),
                "java": None if java is None else java.pid,
                "master": context.master,
                "app": context.appName,
                "local_dir": context.getConf().get("spark.local.dir"),
                "java_version": context._jvm.java.lang.System.getProperty("java.version"),
                "java_property": context._jvm.java.lang.System.getProperty("whence.test"),
                "elapsed_s": elapsed_s,
                "places": [asdict(result) for result in results],
            }
    except KeyboardInterrupt:
        interrupts.tell()
        return interrupts.status
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
