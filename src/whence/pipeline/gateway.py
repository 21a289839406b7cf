"""The gateway through which Python talks to the Java that runs Spark, and whether anybody is at its other end.

Once Java is gone, to ask it anything fails in many ways: a connection is refused or reset, an answer is empty,
pyspark has put None where it was. What was raised does not tell; whether Java is gone does, and is looked up here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whence.errors import StoreError, WhenceError

JAVA_GONE = "Spark's Java process is gone; start again (--log-file keeps what it says)"
CLOSED_S = 0.5  # what Java was saying is cut off first, and then nobody can call it any more
POLL_S = 0.02
CONNECT_TIMEOUT_S = 1.0


def is_gone(gateway: Any) -> bool:
    """Whether Java has ended. A process that only started it may stay a moment longer."""
    process = vars(gateway).get("proc")  # any other name is looked for in Java
    if process is not None and process.poll() is not None:
        return True
    called = gateway.gateway_parameters
    try:
        socket.create_connection((called.address, called.port), CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it has no time for that now
        return False
    return False


def is_of_the_end(error: BaseException, gateway: Any) -> bool:
    """Whether this was raised because Java is gone."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    links = list(_links(error))
    if isinstance(error, WhenceError) and not any(
        isinstance(link, Py4JError | PySparkException | ConnectionError) for link in links
    ):
        return False  # nobody asked Java
    # An exception that Java itself told of is mostly told by one that goes on.
    deadline = time.monotonic() + (0 if isinstance(links[-1], Py4JJavaError | PySparkException) else CLOSED_S)
    while not is_gone(gateway):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


@contextmanager
def told_if_gone(gateway: Any) -> Iterator[None]:
    """Whatever is raised in the ``with`` because Java is gone becomes the one error that says so."""
    try:
        yield
    except Exception as error:
        if not is_of_the_end(error, gateway):
            raise
        raise StoreError(JAVA_GONE) from error


@contextmanager
def quiet_if_gone(gateway: Any) -> Iterator[None]:
    """The same for who only looks on, or ends what has ended: nothing is raised."""
    try:
        yield
    except Exception as error:
        if not is_of_the_end(error, gateway):
            raise


def _links(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came of."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
