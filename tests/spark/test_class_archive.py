"""The archive of Spark's classes: made once, checked each time, and never in the way of a start."""

import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from whence.pipeline.class_archive import ClassArchive
from whence.pipeline.java import Java, find_java
from whence.pipeline.session import JAVA_OPTIONS


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ClassArchive]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "cache"))
    (tmp_path / "jars").mkdir()

    def make(version: str = "17.0.15", options: tuple[str, ...] = ("-Xshare:auto",)) -> ClassArchive:
        return ClassArchive(Java(tmp_path / "java", version), tmp_path / "jars", options, tmp_path)

    return make


def told_path(archive: ClassArchive, option: str) -> Path:
    (told,) = archive.java_options
    assert told.startswith(option)
    return Path(told.removeprefix(option))


def make_one(archive: Callable[..., ClassArchive]) -> Path:
    """Do what Java does when it ends."""
    first = archive()
    told_path(first, "-XX:ArchiveClassesAtExit=").write_bytes(b"classes" * 1000)
    first.keep()
    path = archive().path
    assert path is not None
    return path


def test_the_first_start_makes_it_and_the_next_maps_it(archive):
    path = make_one(archive)
    assert told_path(archive(), "-XX:SharedArchiveFile=") == path
    assert os.listdir(path.parent) == [path.name]
    archive().keep()
    assert os.listdir(path.parent) == [path.name]


def test_another_java_other_options_or_other_jars_need_another(archive, tmp_path):
    make_one(archive)
    assert archive(version="21").path is None
    assert archive(options=()).path is None
    (tmp_path / "jars" / "new.jar").touch()
    os.utime(tmp_path / "jars", ns=(1, 1))
    assert archive().path is None


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" + data[1:]])
def test_a_damaged_one_is_removed_and_made_again(archive, damage):
    path = make_one(archive)
    path.write_bytes(damage(path.read_bytes()))
    told_path(archive(), "-XX:ArchiveClassesAtExit=")
    assert not path.exists()
    assert make_one(archive) == path


def test_a_java_that_makes_none_leaves_nothing(archive, tmp_path):
    archive().keep()
    assert os.listdir(tmp_path / "cache" / "whence" / "spark") == []
    assert archive().path is None


def test_a_disk_that_takes_none_leaves_nothing(archive, tmp_path):
    first = archive()
    told_path(first, "-XX:ArchiveClassesAtExit=").write_bytes(b"classes")
    (tmp_path / "cache" / "whence" / "spark").rmdir()
    first.keep()
    assert archive().path is None


def test_a_folder_that_others_may_write_to_is_not_trusted(archive, tmp_path):
    path = make_one(archive)
    path.parent.chmod(0o777)
    assert archive().path is None
    for folder in (tmp_path / "cache").glob("whence-*"):
        folder.chmod(0o777)
    assert archive().java_options == []


@pytest.mark.slow
def test_spark_starts_with_an_archive_that_java_refuses(session, archive, tmp_path):
    """The archive has the right name and the right checksum, and what is in it is none."""
    cache = tmp_path / "cache"
    folder = cache / "whence" / "spark"
    folder.mkdir(parents=True, mode=0o700)
    made = ClassArchive(find_java(os.environ), Path(pyspark.__file__).parent / "jars", JAVA_OPTIONS, tmp_path)
    garbage = b"no archive" * 1000
    told_path(made, "-XX:ArchiveClassesAtExit=").write_bytes(garbage)
    made.keep()
    (path,) = folder.iterdir()
    assert path.name.endswith(f"-{zlib.crc32(garbage):08x}.jsa")
    assert session(XDG_CACHE_HOME=str(cache))["places"]
    assert list(folder.iterdir()) == [path]
