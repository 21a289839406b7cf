"""Jobs: results in order, progress, errors, attempts."""

from socket import gethostname

import pytest

from tests.spark import tasks
from whence.errors import CorruptError, StoreError
from whence.pipeline.runner import JobState, Runner

pytestmark = pytest.mark.slow  # they share a session, which takes seconds to start


def test_results_come_in_the_order_of_the_inputs(runner):
    assert runner.map("count", tasks.count, range(9)) == [tasks.Counted(n, n * 100) for n in range(9)]


def test_no_inputs_are_no_job(runner):
    assert runner.map("count", tasks.count, []) == []


def test_progress_tells_tasks_bytes_messages_and_files(spark):
    states: list[JobState] = []
    Runner(spark, states.append).map("count", tasks.count, [1, 2, 3], size_of=lambda number: number * 10)
    assert all(state.name == "count" and state.tasks == 3 and state.bytes_total == 60 for state in states)
    assert [state.is_ended for state in states] == [False] * (len(states) - 1) + [True]
    last = states[-1]
    assert (last.tasks_done, last.bytes_done, last.messages, last.files) == (3, 60, 600, 6)
    assert last.share == 1 and last.left_s == 0


def test_an_error_of_whence_comes_back_as_it_was_raised_and_ends_the_job(spark):
    states: list[JobState] = []
    with pytest.raises(CorruptError) as raised:
        Runner(spark, states.append).map("check", tasks.fail_with_damage, range(200))
    assert str(raised.value) == "commitlog/0 at byte 3: a checksum disagrees"
    assert raised.value.__notes__ == [f"in a task on {gethostname()}"]
    assert states[-1].tasks_done < 100, "the job went on"
    assert states[-1].tasks_failed == 0, "it was tried again"


def test_another_error_is_tried_again_and_then_told_in_one_line(runner, tmp_path):
    with pytest.raises(StoreError) as raised:
        runner.map("check", tasks.fail_with_a_bug, [str(tmp_path)])
    assert (
        str(raised.value) == f"check failed: input 0, attempt 4, on {gethostname()}: ValueError: two lines of words"
    )
    assert len(list(tmp_path.iterdir())) == 4


def test_a_worker_that_dies_is_replaced(runner, tmp_path):
    assert len(runner.map("check", tasks.die_once, [str(tmp_path)])) == 1


def test_workers_that_always_die_are_told_in_one_line(runner):
    with pytest.raises(StoreError, match=r"^check failed: task 1, attempt 4: .*worker exited unexpectedly"):
        runner.map("check", tasks.die, range(3))


def test_the_session_serves_after_all_that(runner):
    assert runner.map("count", tasks.count, range(2)) == [tasks.Counted(n, n * 100) for n in range(2)]
