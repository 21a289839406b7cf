"""Verify and repair on a real Spark, through the door and through the command line."""

import json
from pathlib import Path

import pytest

from tests.golden import GoldenStore
from tests.pipeline.test_repair import built_files, files_in, flip
from whence.cli.commands import Status, main
from whence.door import build_store, repair_store, verify_store

pytestmark = pytest.mark.slow


@pytest.fixture
def store(spark, golden, tmp_path) -> Path:
    made: GoldenStore = golden("v5-clean")
    return made.copy(tmp_path)


def test_a_build_is_verified_broken_and_mended(store):
    build_store(store)
    sidecar = store.with_name("store.whence")
    fresh = built_files(sidecar)
    assert verify_store(store, jobs=7).is_healthy
    flip(files_in(sidecar, "index")[5], 3000)
    files_in(sidecar, "consumequeue")[4].unlink()
    found = verify_store(store)
    assert not found.is_healthy
    assert found.tasks > 0
    assert repair_store(store).is_healthy
    assert verify_store(store).is_healthy
    assert built_files(sidecar) == fresh


def test_commands_say_what_is_damaged_and_what_they_did(store, capsys):
    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main([*arguments, "--quiet"] if arguments[0] == "verify" else list(arguments))
        return int(status), capsys.readouterr().out

    assert run("verify", str(store)) == (Status.DONE, "")
    path = files_in(store, "index")[3]
    flip(path, 40)
    status, out = run("verify", str(store), "--json")
    document = json.loads(out)
    assert status == Status.DAMAGE
    assert document["healthy"] is False
    assert document["log"] == {"from_offset": 0, "to_offset": 755494, "messages": 1816}
    assert document["indexes"] == {"items": 5287, "files": 14, "missing": 0, "dangling": 0, "wrong": 1}
    (damage,) = document["damage"]
    assert damage["path"] == str(path)
    assert (damage["position"], damage["kind"]) == (40, "wrong_head")
    assert set(damage) == {"path", "position", "kind", "detail", "repair"}

    status, out = run("verify", str(store))
    assert status == Status.DAMAGE
    assert "Damaged: 1 finding." in out
    assert "wrong_head" in out

    status, out = run("repair", str(store), "--dry-run")
    assert status == Status.DAMAGE
    assert "build all indexes anew into" in " ".join(out.split())
    status, out = run("repair", str(store), "--dry-run", "--in-place")
    assert status == Status.DAMAGE
    assert "build this index file anew from the log" in " ".join(out.split())
    assert not store.with_name("store.whence").exists()

    status, out = run("repair", str(store), "--in-place")
    assert status == Status.DONE
    assert path.name in out
    assert "1 finding, 1 file mended." in out
    assert run("verify", str(store)) == (Status.DONE, "")

    status, out = run("repair", str(store), "--in-place", "--json")
    assert (status, json.loads(out)) == (
        Status.DONE,
        {"healthy": True, "dry_run": False, "found": 0, "unlisted": 0, "repaired": [], "damage": []},
    )
    assert run("repair", str(store), "--cut-tail")[0] == Status.WRONG_USE
