"""Prometheus metrics of a follower, on loopback: ``curl http://127.0.0.1:PORT/metrics``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from whence.errors import UsageError
from whence.pipeline.follow_state import LATENCY_BOUNDS_S, FollowMeter, FollowState, FollowWatcher

HOST = "127.0.0.1"
PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GAUGES = {
    "state_timestamp_seconds": "When it was so: what is told is as old as this. Once it is known.",
    "log_present": "1 if the log is there; else 0, and then nobody knows what lags. Once it is known.",
    "log_end_offset": "Where the log ends.",
    "indexed_to_offset": "Up to where it is indexed.",
    "lag_bytes": "Bytes of the log that are not indexed yet; as all that lags, only while it is known.",
    "lag_messages": "Messages that are not indexed yet; about, where there are many.",
    "lag_seconds": "Age of the oldest message that is not indexed yet.",
    "messages_per_second": "Messages indexed, over the last ten seconds.",
    "bytes_per_second": "Bytes of log read, over the last ten seconds.",
    "fields_to_offset": "Up to where all fields are indexed; only where there are some.",
    "fields_failing": "1 while a field is not followed, for its expression failed on a message; else 0.",
}
COUNTERS = {
    "batches_total": "Batches published.",
    "messages_total": "Messages indexed.",
    "items_total": "Items put into the index.",
    "read_bytes_total": "Bytes of log read.",
    "damaged_total": "Places of the log that could not be read.",
    "cuts_total": "How often the log was cut, or was another one, and the index was cut with it.",
}
LATENCY = "latency_seconds"
ASKED_TIMEOUT_S = 5.0  # who calls and says nothing is let go
ASKING_MAX = 16  # at once; others find nobody there


class _Server(ThreadingHTTPServer):
    """Answers each in a thread of its own, a few at once, and tells nobody of those that went away."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(ASKING_MAX)
        super().__init__((HOST, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class MetricsServer:
    """Answers from a thread of its own what the state was when it was last told."""

    def __init__(self, port: int) -> None:
        self._meter: FollowMeter | None = None
        self._state: FollowState | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = ASKED_TIMEOUT_S

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == PATH
                body = server.text().encode() if is_known else f"whence follow tells at {PATH}\n".encode()
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing of who asks."""

        try:
            self._server = _Server(port, Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"--metrics-port {port}: {error}") from error
        self.port = int(self._server.server_address[1])

    def watched(self, meter: FollowMeter, watcher: FollowWatcher) -> FollowWatcher:
        """A watcher of what is metered that tells another one, and keeps what it was told."""
        self._meter, meter.metrics_port = meter, self.port

        def watch(state: FollowState) -> None:
            self._state = state
            watcher(state)

        return watch

    def text(self) -> str:
        """All metrics, as Prometheus reads them."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        state = self._state
        values = _counters(state or FollowState()) | ({} if state is None else _gauges(state))
        for kind, known in (("gauge", GAUGES), ("counter", COUNTERS)):
            for name, words in known.items():
                value = values.get(name)
                if value is not None:
                    yield from _head(name, kind, words)
                    yield f"whence_follow_{name} {round(value, 3)}"
        counts, total_s = ([0], 0.0) if self._meter is None else self._meter.latencies()
        yield from _head(
            LATENCY, "histogram", "From when the oldest message of a batch was stored until it was indexed."
        )
        count = 0
        for bound, more in zip(LATENCY_BOUNDS_S, counts, strict=False):
            count += more
            yield f'whence_follow_{LATENCY}_bucket{{le="{bound}"}} {count}'
        yield f'whence_follow_{LATENCY}_bucket{{le="+Inf"}} {sum(counts)}'
        yield f"whence_follow_{LATENCY}_sum {round(total_s, 3)}"
        yield f"whence_follow_{LATENCY}_count {sum(counts)}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="whence-metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _gauges(state: FollowState) -> dict[str, float | None]:
    return {
        "state_timestamp_seconds": state.time_ms / 1000,
        "log_present": int(state.log_end_offset is not None),
        "log_end_offset": state.log_end_offset,
        "indexed_to_offset": state.indexed_to_offset,
        "lag_bytes": state.lag_bytes,
        "lag_messages": state.lag_messages,
        "lag_seconds": state.lag_s,
        "messages_per_second": state.messages_per_s,
        "bytes_per_second": state.bytes_per_s,
        "fields_to_offset": state.fields_to_offset,
        "fields_failing": int(state.field_failure is not None),
    }


def _counters(state: FollowState) -> dict[str, float | None]:
    return {
        "batches_total": state.batches,
        "messages_total": state.messages,
        "items_total": state.items,
        "read_bytes_total": state.bytes_read,
        "damaged_total": state.damaged,
        "cuts_total": state.cuts,
    }


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP whence_follow_{name} {words}"
    yield f"# TYPE whence_follow_{name} {kind}"
