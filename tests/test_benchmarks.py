"""The benchmark harness: peers take turns, must agree, and a table tells what came out."""

import subprocess
import sys

import pytest

from benchmarks.harness import Comparison, Options, Peer, Sample, Target, as_json, measure, table


def peer(name, walls, checks=None, log=None):
    """A peer that claims to have taken so long in each round."""

    def run(round_number):
        if log is not None:
            log.append(name)
        return Sample(walls[round_number], walls[round_number] / 2, 0 if checks is None else checks[round_number])

    return Peer(name, run)


def test_peers_take_turns_and_the_first_rounds_do_not_count():
    log: list[str] = []
    peers = [peer("ours", [9, 1, 3, 2], log=log), peer("theirs", [9, 10, 30, 20], log=log)]
    result = measure(Comparison("work", peers), Options(rounds=3, warm_up=1))
    assert log == ["ours", "theirs"] * 4
    assert [sample.wall_s for sample in result.samples["ours"]] == [1, 3, 2]
    assert result.value == 10


def test_peers_that_do_not_agree_end_the_run():
    peers = [peer("ours", [1, 1], checks=[5, 6]), peer("theirs", [1, 1], checks=[5, 7])]
    with pytest.raises(SystemExit, match="do not agree in round 1"):
        measure(Comparison("work", peers), Options(rounds=2, warm_up=0))


def test_only_what_is_asked_for_is_measured():
    options, log = Options(rounds=1, warm_up=0, only="rest"), list[str]()
    works = [Comparison(work, [peer("ours", [1], log=log)]) for work in ("at work", "at rest")]
    assert [bool(measure(work, options).samples) for work in works] == [False, True]
    assert log == ["ours"]


TARGETS = [  # seconds of ours and theirs for 10 units, the target, the verdict
    (1, 6, Target(5, 7.5), "6x: met"),
    (1, 8, Target(5, 7.5), "8x: aim reached"),
    (1, 4, Target(5, 7.5), "4x: NOT met"),
    (0.001, None, Target(5_000, 20_000, "a second"), "10,000 a second: met"),
    (2.5, 1, Target(3, 2, "times as long"), "2.5x: met"),
    (3.5, 1, Target(3, 2, "times as long"), "3.5x: NOT met"),
    (0.5, None, Target(1.5, 0.6, "s"), "0.5 s: aim reached"),
    (0.03, 1, Target(0.05, 0.01, "of a core"), "0.03 of a core: met"),
    (1, None, Target(5, 7.5), "no peer"),
    (1, 2, None, "2x"),
    (1, None, None, ""),
]


@pytest.mark.parametrize(("ours", "theirs", "target", "verdict"), TARGETS)
def test_verdict_tells_what_was_reached(ours, theirs, target, verdict):
    peers = [peer("ours", [ours])] + ([] if theirs is None else [peer("theirs", [theirs])])
    result = measure(Comparison("work", peers, target, 10), Options(rounds=1, warm_up=0))
    assert result.verdict == verdict
    assert result.value == as_json(result)["value"]


def test_table_tells_median_spread_and_cpu_of_one_unit():
    peers = [peer("ours", [2e-6, 4e-6, 3e-6]), peer("theirs", [2e-2, 4e-2, 3e-2])]
    result = measure(Comparison("work", peers, Target(5, 7.5), 10), Options(rounds=3, warm_up=0))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table([result]).splitlines()]
    assert cells[0] == ["work", "peer", "median", "best to worst", "CPU", "result", "target"]
    assert cells[2][:5] == ["work", "ours", "300 ns", "200 ns to 400 ns", "150 ns"]
    assert cells[3][:5] == ["", "theirs", "3 ms", "2 ms to 4 ms", "1.5 ms"]


@pytest.mark.slow
def test_rehearsal_runs_all_benchmarks(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--small", "--no-java", "--rounds", "1", "--warm-up", "0"]
    command += ["--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert "a rehearsal on little data" in told
    works = ["scan of 1 GiB", "batch lookup", "find of one key", "whence find STORE", "scan of 1 MiB"]
    works += ["a full IndexFile from", "a full IndexFile held", "index and queues", "append_batch"]
    works += ["positions of verified messages", "with decoded messages"]
    works += ["export of 1 GiB to Parquet"]
    works += ["append from 32 threads", "open a session on all cores", "index files, memory up to"]
    works += ["build --field of a JSON path", "find of one value, in every topic"]
    for work in works:
        assert work in told
