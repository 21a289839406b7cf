"""``whence demo`` shows real commands on a real store, and leaves nothing behind unless asked."""

import json
import os
import shlex

import pytest

from whence.cli.demo import unpack_sample


@pytest.mark.slow
def test_demo_shows_the_whole_road_and_leaves_nothing(whence, tmp_path):
    ran = whence("demo", "--quiet", env={"TMPDIR": str(tmp_path)})
    assert (ran.status, ran.err) == (0, "")
    assert set(os.listdir(tmp_path)) <= {f"whence-{os.getuid()}"}  # compiled kernels, where there is no home
    for line in ("3 messages, newest first; more match.", "70 rejected", "Now you:", "longest chains:"):
        assert line in ran.out
    for line in ("Indexed 200000 messages under 800000 keys", "dangling", "1 file mended", "nothing scanned"):
        assert line in ran.out


@pytest.mark.slow
def test_demo_keeps_the_store_if_told_where_and_its_commands_can_be_typed(here, tmp_path):
    document = json.loads(here("demo", "--dir", tmp_path / "demo", "--json").out)
    assert document["store"] == str(tmp_path / "demo" / "store")
    unpack, *steps = document["steps"]
    assert unpack["command"] is None
    for step in steps:
        if f"{tmp_path}/demo/store" not in (step["command"] or ""):
            continue  # what comes later changes the answers of what was asked before
        _, *typed = shlex.split(step["command"])
        result = json.loads(here(*typed, "--json").out)
        if "receipt" in result:
            result["receipt"]["elapsed_us"] = step["result"]["receipt"]["elapsed_us"]
        assert result == step["result"]


def test_demo_does_not_write_over_what_is_there(here, tmp_path):
    unpack_sample(tmp_path)
    ran = here("demo", "--dir", tmp_path)
    assert ran.status == 2
    assert ran.err == f"whence: {tmp_path}/store: is there already; ask it, or name another folder with --dir\n"


def test_sample_is_the_golden_store(golden, tmp_path):
    store = unpack_sample(tmp_path)
    names = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    assert names == sorted(golden("v5-clean").settings["files"])
