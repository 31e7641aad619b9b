"""tools/emulate.py without an emulator: what it calls a fault, and what it says where it cannot run."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("qemu-user runs Linux programs on Linux", allow_module_level=True)

import emulate  # noqa: E402

ROOT = Path(__file__).parent.parent
BITS = {"scalar": 0, "neon": 16, "dotprod": 48, "i8mm": 112}
MOST = 2**31 - 1


def found(*rows, tiers=("scalar", "neon"), ops=("scalar", "neon")):
    """What answers.py says of a CPU; a row is (name, type, ISA, fewest tokens, most)."""
    scalar = [("mm_a_scalar", 0, 0, 1, MOST), ("mm_b_scalar", 1, 0, 1, MOST)]
    table = [[i, name, wtype, 1, isa, low, high] for i, (name, wtype, isa, low, high) in enumerate([*scalar, *rows])]
    return {"tiers": list(tiers), "bits": BITS, "rows": table, "ops": dict.fromkeys(ops, 0)}


WHOLE = [("mm_a_neon_one", 0, 16, 1, 1), ("mm_a_neon_many", 0, 16, 2, MOST), ("mm_b_neon", 1, 16, 1, MOST)]


def test_a_whole_tier_has_no_fault():
    assert emulate.faults_of(found(*WHOLE), "neon", True) == []
    dotprod = found(*WHOLE, ("mm_a_dotprod_few", 0, 48, 2, 7), tiers=("scalar", "neon", "dotprod"))
    assert emulate.faults_of(dotprod, "dotprod", True) == []
    assert emulate.faults_of(found(tiers=("scalar",), ops=("scalar",)), "scalar", False) == []


@pytest.mark.parametrize("table,tier,text", [
    ("SIGILL", "neon", "cannot be imported: SIGILL"),
    (found(*WHOLE, tiers=("scalar",)), "neon", "expected neon to be the best"),
    (found(*WHOLE, tiers=("scalar", "neon", "dotprod")), "neon", "expected neon to be the best"),
    (found(*WHOLE, tiers=("scalar", "neon", "dotprod")), "dotprod", "no row of the tier dotprod"),
    (found(), "neon", "no row of the tier neon"),
    (found(*WHOLE[:2]), "neon", "weight type 1 take the token counts []"),
    (found(*WHOLE[1:]), "neon", "weight type 0 take"),
    (found(WHOLE[0], ("mm_a_neon_many", 0, 16, 3, MOST), WHOLE[2]), "neon", "weight type 0 take"),
    (found(WHOLE[0], ("mm_a_neon_many", 0, 16, 2, 100), WHOLE[2]), "neon", "weight type 0 take"),
    (found(*WHOLE, ("mm_a_fast", 0, 16, 1, 1)), "neon", "the name of the row mm_a_fast"),
    (found(*WHOLE, ops=("scalar",)), "neon", "no neon table"),
])  # fmt: skip
def test_faults_of_the_tables(table, tier, text):
    assert any(text in fault for fault in emulate.faults_of(table, tier, True))


def test_the_first_difference_is_named():
    expected = {"F32": [["aa", "bb"], "text"], "Q4_0": [["cc"], "x"]}
    assert emulate.difference(expected, {"F32": [["aa", "bb"], "text"], "Q4_0": [["cc"], "x"]}, "") is None
    assert "[Q4_0][0][0]: 'dd', expected 'cc'" in emulate.difference(expected, {**expected, "Q4_0": [["dd"], "x"]}, "")
    assert "[F32]" in emulate.difference(expected, {**expected, "F32": [["aa", "bb"]]}, "")
    assert emulate.difference(expected, {"F32": expected["F32"]}, "") is not None


def test_every_cpu_names_a_machine_and_a_tier():
    from emulated import MACHINES
    from pyengine.native import TIERS

    assert {machine for machine, _ in emulate.CPUS.values()} == set(MACHINES) == set(emulate.WHEELS)
    assert {tier for _, tier in emulate.CPUS.values()} <= set(TIERS)


def test_says_what_is_missing(tmp_path):
    """No emulator and no apt-get on the path: an error that names the package, and nothing made."""
    env = {**os.environ, "PATH": str(tmp_path), "PYENGINE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, ROOT / "tools/emulate.py", "run", "--cpu", "cortex-a72", "--", "-c", "1"],
                          env=env, text=True, capture_output=True)
    assert done.returncode == 1 and "needs" in done.stderr and "qemu-user" in done.stderr and "Debian or Ubuntu" in done.stderr
    assert not (tmp_path / "cache").exists()
