"""A core of a quarter of the others' speed: parts go to whoever is free, so it takes fewer and nobody waits for its share."""
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CC = (sysconfig.get_config_var("CC") or "cc").split()[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    cc = shutil.which(CC) or shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("slow") / "slow_thread"
    subprocess.run([cc, "-std=gnu11", "-O1", "-Icsrc", "tests/fuzz/slow_thread.c", "csrc/pool.c", "-o", str(out), "-pthread"], cwd=ROOT, check=True)
    return out


@pytest.mark.parametrize("parts", [16, 64])
def test_the_slow_thread_takes_what_it_can(program, parts):
    """Of 64 parts in each of ten phases an equal share were 160 of 640, by its speed it is 49; of 16, 12 of 160."""
    text = subprocess.run([str(program), str(parts)], capture_output=True, text=True, check=True, timeout=120).stdout
    *took, _ = text.split()
    took = [int(n) for n in took]
    assert sum(took) == 10 * parts
    assert 0 < took[3] < 0.6 * 10 * parts / 4 and min(took[:3]) > took[3]


def test_the_table_of_the_document_is_what_the_simulation_prints():
    """And in no mixture of cores does a prompt take longer for the slow ones."""
    out = subprocess.run([sys.executable, "bench/slow_cores.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(out) <= set((ROOT / "docs/threads.md").read_text(encoding="utf-8").splitlines())
    assert len(out) == 26 and all(float(line.split("|")[4]) >= 1.05 for line in out[2:])
