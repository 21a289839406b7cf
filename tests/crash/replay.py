"""Run one case again by its number: ``python -m tests.crash.replay power|kill|expiry SEED FOLDER [TIMES]``.

Threads take their turns as they like, so that a case may need several times to fail again; what it left is in FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.crash import test_expiry, test_kill, test_power_loss
from tests.crash.workload import BATCH_FILE_SIZE, set_batch_file_size
from tests.crash.writer import Writers


def run(sort: str, seed: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    if sort == "power":
        test_power_loss.lose_power(folder, range(seed, seed + 1))
    elif sort == "expiry":
        test_expiry.lose_power(folder, range(seed, seed + 1))
    else:
        with Writers() as writers:
            test_kill.kill_store(writers, folder, seed)


if __name__ == "__main__":
    set_batch_file_size(BATCH_FILE_SIZE)
    for time in range(int(sys.argv[4]) if len(sys.argv) > 4 else 1):
        run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) / str(time))
