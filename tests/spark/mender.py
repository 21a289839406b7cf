"""A process that builds, breaks a byte, verifies and mends: ``python mender.py '{"store": ..., "master": ...}'``.

All in one session. Prints what it saw at each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from whence.door import build_store, repair_store, verify_store
from whence.pipeline.runner import Runner
from whence.pipeline.session import SparkSettings, open_session

JOBS = 3


def main(asked: dict[str, Any]) -> None:
    store = Path(asked["store"])
    sidecar = store.with_name(f"{store.name}.whence")
    with open_session(SparkSettings(asked["master"], asked["conf"])) as spark:
        build_store(store, jobs=JOBS)
        path = sorted((sidecar / "index").iterdir())[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        found = [verify_store(store, jobs=JOBS)]
        repaired = repair_store(store, jobs=JOBS)
        found.append(verify_store(store, jobs=JOBS))
        told = {
            "is_local": Runner(spark).is_local,
            "damaged": [sorted({finding.path.name for finding in each.damage}) for each in found],
            "broken": path.name,
            "mended": [Path(each.path).name for each in repaired.mended],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
