"""Signals to a process that does not end by itself: in time, with a word, and with the status that tells why."""

import signal
import subprocess
import sys
import time

CHILD = """
import sys, time
from whence.cli import interrupt

interrupt.remove_unfinished = lambda: time.sleep(60)  # as on a disk that hangs
interrupts = interrupt.Interrupts()
interrupts.watch()
if sys.argv[1] == "a follower":
    interrupts.hand_over(lambda: None, 1.5)
if sys.argv[1] == "a follower that ends":
    interrupts.hand_over(lambda: interrupts.has_ended(0), 1.5)
print("ready", flush=True)
while True:
    try:
        time.sleep(0.05)  # a signal that comes just before a sleep is heard behind it
    except KeyboardInterrupt:
        pass
"""
WORD = "whence: interrupted\n"
CASES = [  # who first has to end
    ("a job", signal.SIGINT, 130, WORD, 1.0),
    ("a job", signal.SIGTERM, 143, WORD, 1.0),
    ("a follower", signal.SIGINT, 130, WORD, 1.0),
    ("a follower that ends", signal.SIGINT, 0, "", 1.0),
    ("a follower", signal.SIGTERM, 143, WORD, 2.0),
    ("a follower that ends", signal.SIGTERM, 0, "", 2.0),
]
SLACK_S = 0.5  # for a machine that has other things to do


def test_a_process_that_hangs_ends_in_time_with_a_word():
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for what, *_ in CASES
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for child, (_, number, *_) in zip(children, CASES, strict=True):
        child.send_signal(number)
    for child, (what, number, status, said, limit_s) in zip(children, CASES, strict=True):
        _, err = child.communicate(timeout=30)
        assert (child.returncode, err) == (status, said), (what, number)
        assert time.monotonic() - begun < limit_s + SLACK_S, (what, number)
