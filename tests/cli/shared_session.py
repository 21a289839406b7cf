"""A process with a Spark session, which runs commands one after the other.

    python shared_session.py ADDRESS                  the process; it says that it is ready
    python shared_session.py ADDRESS build STORE      a command: it runs there, in this folder, and prints here
    python shared_session.py ADDRESS end              ends the process

To start Spark takes two cores for seconds, and most jobs are done in a fraction of one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OUTPUTS = (1, 2)  # standard output and error
REQUEST_SIZE = 65_536
END = ["end"]


@contextmanager
def shared_session() -> Iterator[list[str]]:
    """Such a process for the ``with``; gives the words that go before a command that is to run there."""
    with tempfile.TemporaryDirectory(prefix="whence-guide-") as folder:  # the address of a socket must be short
        command = [sys.executable, __file__, str(Path(folder, "socket"))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            try:
                yield command
            finally:
                subprocess.run([*command, *END], check=True)


def ask(address: str, arguments: list[str]) -> int:
    """Have a command run, and give its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps([str(Path.cwd()), arguments]).encode()], OUTPUTS)
        return connection.recv(1)[0]


def serve(address: str) -> None:
    from whence.cli.commands import main
    from whence.pipeline.session import open_session

    own = [os.dup(output) for output in OUTPUTS]
    with socket.socket(socket.AF_UNIX) as listening, open_session():
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        arguments: list[str] = []
        while arguments != END:
            connection, _ = listening.accept()
            with connection:
                request, given, _, _ = socket.recv_fds(connection, REQUEST_SIZE, len(OUTPUTS))
                folder, arguments = json.loads(request)
                os.chdir(folder)
                turn(given)
                status = 0 if arguments == END else main(arguments)
                turn([os.dup(descriptor) for descriptor in own])  # who reads what was printed sees its end
                connection.send(bytes([status]))


def turn(descriptors: list[int]) -> None:
    """Print to these from now on, by streams made anew: those that are there may take a pipe for a file."""
    sys.stdout.flush()
    for descriptor, output in zip(descriptors, OUTPUTS, strict=True):
        os.dup2(descriptor, output)
        os.close(descriptor)
    sys.stdout, sys.stderr = (open(output, "w", buffering=1, closefd=False) for output in OUTPUTS)  # noqa: SIM115


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
