import os
import subprocess
import sys
import time

import pytest

from whence.errors import LockedError, StoreError
from whence.files.lock import StoreLock, is_lock_file, lock_holder

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX, int(sys.argv[2]), int(sys.argv[3]))
print("held", flush=True)
time.sleep(60)
"""


def held_by_another(path, length=1, start=0):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(length), str(start)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_lock_leaves_the_word_lock_as_a_broker_does(tmp_path):
    with StoreLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_second_lock_in_this_process_is_refused_and_told_who_holds_it(tmp_path):

    with StoreLock(tmp_path / "lock"), pytest.raises(LockedError, match=f"process {os.getpid()} holds"):
        StoreLock(tmp_path / "lock")


def test_a_lock_that_another_process_holds_is_refused_with_its_number(tmp_path):
    child = held_by_another(tmp_path / "lock")
    try:
        with pytest.raises(LockedError, match=f"process {child.pid} holds this store"):
            StoreLock(tmp_path / "lock")
        assert lock_holder(tmp_path / "lock") == child.pid
    finally:
        child.kill()
        child.wait()
    StoreLock(tmp_path / "lock").close()


def test_a_lock_on_another_byte_is_not_in_the_way(tmp_path):
    child = held_by_another(tmp_path / "lock", 1, 1)
    try:
        StoreLock(tmp_path / "lock").close()
    finally:
        child.kill()
        child.wait()


def test_another_process_sees_the_lock_until_it_is_closed(tmp_path):
    path = str(tmp_path / "lock")
    ask = f"from pathlib import Path; from whence.files import lock; print(lock.lock_holder(Path({path!r})))"
    lock = StoreLock(tmp_path / "lock")
    assert lock_holder(tmp_path / "lock") is not None  # asking, here too, must not give the lock up

    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert asked.stdout == f"{os.getpid()}\n"
    lock.close()
    lock.close()
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert asked.stdout == "None\n"


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    child = held_by_another(tmp_path / "lock")
    child.kill()
    child.wait()
    deadline = time.monotonic() + 10
    while lock_holder(tmp_path / "lock") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    StoreLock(tmp_path / "lock").close()


def test_a_lock_that_was_removed_or_replaced_is_told(tmp_path):
    with StoreLock(tmp_path / "lock") as lock:
        assert lock.is_there()
        (tmp_path / "lock").unlink()
        assert not lock.is_there()
        with StoreLock(tmp_path / "lock") as other:  # nothing is in the way of it
            assert other.is_there() and not lock.is_there()


def test_nobody_holds_a_lock_that_is_not_there(tmp_path):
    assert lock_holder(tmp_path / "lock") is None
    with pytest.raises(StoreError, match="cannot be opened to be locked"):
        StoreLock(tmp_path / "missing" / "lock")


def test_a_link_is_not_followed_for_what_it_leads_to_would_be_written_to(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"important")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be opened to be locked"):
        StoreLock(tmp_path / "lock")
    assert (tmp_path / "elsewhere").read_bytes() == b"important"


def test_a_look_whether_a_file_is_a_lock_does_not_give_up_the_lock(tmp_path):
    with StoreLock(tmp_path / "lock"):
        assert is_lock_file(tmp_path / "lock")
        ask = [sys.executable, "-c", "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | 4, 1)"]
        assert subprocess.run([*ask, str(tmp_path / "lock")], stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize(("data", "is_one"), [(b"lock", True), (b"", True), (b"lock\n", False), (b"poetry", False)])
def test_a_lock_file_is_told_by_what_is_in_it(tmp_path, data, is_one):
    (tmp_path / "lock").write_bytes(data)
    assert is_lock_file(tmp_path / "lock") is is_one
    assert not is_lock_file(tmp_path) and not is_lock_file(tmp_path / "none")
