"""How a follower is: lag, rates and latency, and Prometheus' form of them."""

import socket
import struct
import threading
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from urllib.error import HTTPError

import pytest

from tests.crash.following import Made, random_messages, write_log
from tests.store_maker import FILE_SIZE, T, place
from whence.errors import UsageError
from whence.files.names import sidecar_of
from whence.pipeline import follow_state, metrics
from whence.pipeline.follow_state import FollowMeter, FollowState
from whence.pipeline.metrics import COUNTERS, GAUGES, MetricsServer
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar, read_sidecar
from whence.store.spill import Spilled

RECORDS = place(random_messages(Random(2), 100))
END = RECORDS[-1].physical_offset + RECORDS[-1].size
NOTHING = Sidecar(Dialect.V5_5, 7, 20, 200)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_log(tmp_path / "store", RECORDS, file_size=FILE_SIZE)
    return tmp_path / "store"


@pytest.fixture
def meter(store: Path) -> FollowMeter:
    return FollowMeter(CommitLog(store / "commitlog"))


def indexed(store: Path, count: int) -> Sidecar:
    write_log(store, RECORDS[:count], file_size=FILE_SIZE)
    Made(Shape(7, 20), Dialect.V5_5).follow(store, sidecar_of(store), Random(1))
    write_log(store, RECORDS, file_size=FILE_SIZE)
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None
    return claim


def spilled(messages: int, size: int) -> Spilled:
    return Spilled("", 1000, 1000 + size, messages, 2 * messages, 0, "", False, False, (), (), "")


@pytest.mark.parametrize("count", [1, 40, 99, 100])
def test_what_lags_is_what_the_log_has_and_the_index_not(store, meter, monkeypatch, count):
    monkeypatch.setattr("time.time", lambda: T / 1000 + 3600)
    state = meter.state(indexed(store, count))
    assert (state.indexed_to_offset, state.log_end_offset) == (
        RECORDS[count].physical_offset if count < 100 else END,
        END,
    )
    assert state.lag_messages == 100 - count
    assert state.lag_bytes == END - state.indexed_to_offset
    oldest_s = (RECORDS[count].store_timestamp_ms - T) / 1000 if count < 100 else 3600
    assert state.lag_s == pytest.approx(3600 - oldest_s)


def test_all_of_the_log_lags_where_nothing_is_indexed_or_another_log_was(store, meter):
    assert meter.state(NOTHING).lag_messages == 100
    claim = indexed(store, 50)
    other = [replace(record, born_timestamp_ms=1) for record in RECORDS[10:30]]
    write_log(store, [*RECORDS[:10], *other], file_size=FILE_SIZE)
    assert meter.state(claim).lag_messages == 30


def test_of_much_log_the_messages_are_reckoned(store, meter, monkeypatch):
    monkeypatch.setattr(follow_state, "COUNTED_SIZE", END // 2)
    assert meter.state(NOTHING).lag_messages == pytest.approx(100, rel=0.3)
    meter.count([spilled(10, 1000)], 0.1, None)
    assert meter.state(NOTHING).lag_messages == round(END / 100)


def test_of_a_log_that_is_not_there_nobody_knows_what_lags(store):
    meter, away = FollowMeter(CommitLog(store / "commitlog")), store / "away"
    assert meter.state(NOTHING).lag_messages == 100
    (store / "commitlog").rename(away)
    for _ in range(2):
        state = meter.state(replace(NOTHING, indexed=((0, 700),)))
        assert (state.log_end_offset, state.lag_bytes, state.lag_messages, state.lag_s) == (None,) * 4
        assert state.indexed_to_offset == 700
        (store / "commitlog").mkdir(exist_ok=True)
    (store / "commitlog").rmdir()
    away.rename(store / "commitlog")
    assert meter.state(NOTHING).lag_messages == 100


def test_rates_are_those_of_the_last_ten_seconds(store, meter, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    meter = FollowMeter(CommitLog(store / "commitlog"))
    rates: list[float] = []
    for _ in range(40):
        clock[0] += 0.5
        if len(rates) < 30:
            meter.count([spilled(50, 5000)], 0.1, 0.2)
        rates.append(meter.state(NOTHING).messages_per_s)
    assert rates[:30] == pytest.approx([100.0] * 30)
    assert rates[-1] == pytest.approx(50.0, rel=0.1)  # for five of the ten
    assert meter.state(NOTHING).messages == 1500


def test_sums_are_told_as_json(meter):
    meter.count([spilled(3, 10), spilled(4, 20)], 0.25, 0.1234567)
    meter.count_cut()
    told = meter.state(NOTHING, is_ended=True).to_dict()
    assert (told["messages"], told["items"], told["bytes_read"], told["batches"]) == (7, 14, 30, 1)
    assert (told["cuts"], told["latency_s"], told["batch_s"], told["is_ended"]) == (1, 0.123, 0.25, True)


# Prometheus


def lines_of(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_metrics_are_answered_on_loopback(meter):
    for latency_s in (0.05, 0.25, 0.25, 100.0):
        meter.count([spilled(5, 50)], 0.1, latency_s)
    with MetricsServer(0) as server:
        told: list[FollowState] = []
        server.watched(meter, told.append)(meter.state(NOTHING))
        assert [state.metrics_port for state in told] == [server.port]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/other")
    values = lines_of(text)
    assert values["whence_follow_messages_total"] == 20
    assert values["whence_follow_lag_messages"] == 100
    assert values['whence_follow_latency_seconds_bucket{le="0.1"}'] == 1
    assert values['whence_follow_latency_seconds_bucket{le="0.3"}'] == 3
    assert values['whence_follow_latency_seconds_bucket{le="+Inf"}'] == values["whence_follow_latency_seconds_count"]
    for name in (*GAUGES, *COUNTERS):
        assert (f"# TYPE whence_follow_{name} " in text) == (f"whence_follow_{name}" in values)
        assert f"whence_follow_{name}" in values or name == "fields_to_offset"


def test_what_is_not_known_is_not_told_and_what_is_known_says_of_when(store, meter, monkeypatch):
    lags = {f"whence_follow_lag_{name}" for name in ("bytes", "messages", "seconds")}
    with MetricsServer(0) as server:
        values = lines_of(server.text())
        assert not {name for name in values if name.removeprefix("whence_follow_") in GAUGES}
        watch = server.watched(meter, lambda state: None)
        for at, is_there in ((1000.0, True), (1001.5, False), (1002.0, True)):
            monkeypatch.setattr("time.time", lambda at=at: at)
            if not is_there:
                (store / "commitlog").rename(store / "other")
            watch(meter.state(NOTHING))
            if not is_there:
                (store / "other").rename(store / "commitlog")
            values = lines_of(server.text())
            assert values["whence_follow_log_present"] == is_there
            assert values["whence_follow_state_timestamp_seconds"] == at
            assert lags & values.keys() == (lags if is_there else set())


def test_metrics_tell_of_fields_where_there_are_some(meter):
    with MetricsServer(0) as server:
        watch = server.watched(meter, lambda state: None)
        for to_offset, failure in ((None, None), (70, "no field"), (90, None)):
            watch(replace(meter.state(NOTHING), fields_to_offset=to_offset, field_failure=failure))
            values = lines_of(server.text())
            assert values.get("whence_follow_fields_to_offset") == to_offset
            assert values["whence_follow_fields_failing"] == (failure is not None)


def test_who_calls_and_says_nothing_or_goes_away_is_let_go_without_a_word(monkeypatch, capfd):
    monkeypatch.setattr(metrics, "ASKED_TIMEOUT_S", 0.3)
    before = threading.active_count()
    with MetricsServer(0) as server:
        address = ("127.0.0.1", server.port)
        for _ in range(3):
            with socket.create_connection(address) as gone:
                gone.sendall(b"GET /metrics HTTP/1.0\r\n")
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(address, 20)) for _ in range(3 * metrics.ASKING_MAX)
            ]
            for each in silent:
                assert each.recv(1) == b""
            assert threading.active_count() <= before + 1 + metrics.ASKING_MAX
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                assert "whence_follow_batches_total" in answer.read().decode()
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_told(meter):
    with MetricsServer(0) as server, pytest.raises(UsageError, match=f"--metrics-port {server.port}"):
        MetricsServer(server.port)
    with pytest.raises(UsageError, match="--metrics-port 70000"):
        MetricsServer(70_000)
