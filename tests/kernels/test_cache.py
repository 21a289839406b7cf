"""Compiled kernels on disk: shared by processes, renewed by changes, trusted only where nobody else can write."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whence
from tests.reference import java_hash
from whence.cache_folder import KEPT_S
from whence.kernels import cache

# Hashes one text, and tells how often the kernel came from disk and how often from the compiler.
HASH = """
import json
import numpy as np
from whence.kernels.hashing import java_hash
data = np.frombuffer(b"TopicTest#OrderID188".rjust(60), np.uint8)
h = java_hash(data, 40, 20)
stats = java_hash.stats
print(json.dumps([h, sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]))
"""
TEXT_HASH = java_hash("TopicTest#OrderID188")
LOADED, COMPILED = [TEXT_HASH, 1, 0], [TEXT_HASH, 0, 1]


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A folder with a copy of whence that cannot be written to, as in a system-wide install."""
    folder = tmp_path / "site"
    shutil.copytree(Path(whence.__file__).parent, folder / "whence", ignore=shutil.ignore_patterns("__pycache__"))
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    assert sorted([folder, *folder.rglob("*")]) == sorted(everything), "something was written into the package"
    for path in everything:
        path.chmod(0o755)


def start(package: Path, home: Path, code: str = HASH) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(home / "cache"),
        "TMPDIR": str(home),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> Any:
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert not stderr
    return json.loads(stdout)


def compiled_files(home: Path) -> list[Path]:
    return sorted((home / "cache" / "whence" / "kernels").iterdir())


# Loads all kernels that lie on disk, and tells which, and how often each came from there and from the compiler.
LOAD = """
import json
from whence.kernels import _kernels, load_kernels
load_kernels()
loaded = [(k.__name__, sum(k.stats.cache_hits.values()), sum(k.stats.cache_misses.values())) for k in _kernels]
print(json.dumps(sorted(kernel for kernel in loaded if kernel[1:] != (0, 0))))
"""


@pytest.mark.slow
def test_all_that_was_compiled_can_be_loaded_at_once(package: Path, tmp_path: Path):
    assert answer(start(package, tmp_path, LOAD)) == []
    assert answer(start(package, tmp_path)) == COMPILED
    damaged, _ = compiled_files(tmp_path)
    assert answer(start(package, tmp_path, LOAD)) == [["extend_hash_utf16", 1, 0], ["java_hash", 1, 0]]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert answer(start(package, tmp_path, LOAD)) == [["java_hash", 1, 0]]


@pytest.mark.slow
def test_six_processes_may_start_at_once_on_an_empty_cache(package: Path, tmp_path: Path):
    first_wave = [answer(process) for process in [start(package, tmp_path) for _ in range(6)]]
    assert all(said in (COMPILED, LOADED) for said in first_wave)
    assert COMPILED in first_wave
    files = compiled_files(tmp_path)
    assert [path.name.partition("-")[0] for path in files] == [
        "whence.kernels.hashing.extend_hash_utf16",
        "whence.kernels.hashing.java_hash",
    ]
    second_wave = [answer(process) for process in [start(package, tmp_path) for _ in range(6)]]
    assert second_wave == [LOADED] * 6
    assert compiled_files(tmp_path) == files


def damaged_forms(whole: bytes) -> Iterator[bytes]:
    yield b""
    yield whole[:20]
    yield whole[: len(whole) // 2]
    yield bytes(len(whole))
    for at in (0, 31, 32, len(whole) // 2, len(whole) - 1):
        yield whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def test_only_whole_files_are_believed(tmp_path: Path):
    path = tmp_path / "kernel"
    assert cache._read(path) is None
    assert cache._write(path, b"compiled" * 100)
    assert cache._read(path) == b"compiled" * 100
    for damaged in damaged_forms(path.read_bytes()):
        path.write_bytes(damaged)
        assert cache._read(path) is None
    assert cache._write(path, b"again")
    assert cache._read(path) == b"again"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path):
    assert not cache._write(tmp_path / "missing" / "kernel", b"compiled")
    (tmp_path / "kernel").mkdir()
    assert not cache._write(tmp_path / "kernel", b"compiled")
    assert [path.name for path in tmp_path.iterdir()] == ["kernel"]


def test_old_files_go_when_a_new_one_is_written(tmp_path: Path):
    for name, age_s in (("old", KEPT_S + 60), (".left-by-a-killed-process", KEPT_S + 60), ("young", 60)):
        (tmp_path / name).touch()
        changed = (tmp_path / name).stat().st_mtime - age_s
        os.utime(tmp_path / name, (changed, changed))
    assert cache._write(tmp_path / "new", b"compiled")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "young"]


@pytest.mark.slow
def test_a_damaged_file_is_compiled_anew(package: Path, tmp_path: Path):
    assert answer(start(package, tmp_path)) == COMPILED
    for path in compiled_files(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])
    assert answer(start(package, tmp_path)) == COMPILED
    assert answer(start(package, tmp_path)) == LOADED


@pytest.mark.slow
def test_a_change_in_any_source_of_kernels_or_formats_compiles_anew(package: Path, tmp_path: Path):
    assert answer(start(package, tmp_path)) == COMPILED
    for changed in ("kernels/checksums.py", "formats/rocketmq/message.py"):
        path = package / "whence" / changed
        path.chmod(0o644)
        path.write_text(path.read_text() + "\n# changed\n")
        assert answer(start(package, tmp_path)) == COMPILED


@pytest.mark.slow
def test_a_process_that_loaded_one_kernel_can_compile_another(package: Path, tmp_path: Path):
    assert answer(start(package, tmp_path)) == COMPILED
    then_compile = """
from whence.kernels.checksums import crc32_by_tables
address = data.ctypes.data
assert crc32_by_tables(address, 60, address) == __import__("zlib").crc32(data)
assert sum(crc32_by_tables.stats.cache_misses.values()) == 1
"""
    assert answer(start(package, tmp_path, HASH + then_compile)) == LOADED


@pytest.mark.slow
def test_kernels_work_where_nothing_can_be_kept(package: Path, tmp_path: Path):
    (tmp_path / "cache").write_text("a file, where a folder should be")
    no_temporary = "import tempfile; tempfile.tempdir = '/proc/nowhere'\n"
    assert answer(start(package, tmp_path, no_temporary + HASH)) == COMPILED


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def folders() -> tuple[Path, ...]:
    return cache.folders.__wrapped__()


def test_folders_are_made_for_this_user_alone(home: Path):
    shared, temporary = folders()
    assert shared == home / "cache" / "whence" / "kernels"
    assert temporary == home / f"whence-{os.geteuid()}"
    for folder in folders():
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_trusted(home: Path, mode: int):
    shared, temporary = folders()
    shared.chmod(mode)
    assert folders() == (temporary,)
    temporary.chmod(mode)
    assert folders() == ()


def test_a_link_is_not_trusted(home: Path):
    shared, temporary = folders()
    temporary.rmdir()
    temporary.symlink_to(shared)
    assert folders() == (shared,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_trusted(home: Path):
    shared, temporary = folders()
    os.chown(shared, 12345, -1)
    assert folders() == (temporary,)


def test_a_relative_place_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert folders() == (home / f"whence-{os.geteuid()}",)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(home))
    assert folders()[0] == home / ".cache" / "whence" / "kernels"


def test_without_sources_nothing_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_sources", list)
    assert folders() == ()
