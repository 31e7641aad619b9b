"""docs/models.md's table of types is what the code gives (tools/type_table.py); speeds are as the last measurement left them."""
import os
import pathlib
import platform
import shutil
import sys

import pytest

from pyengine.native import TIERS, ffi, lib
from pyengine.quants import TYPES

TOOLS = str(pathlib.Path(__file__).resolve().parent.parent / "tools")
sys.path.insert(0, TOOLS)
import type_table  # noqa: E402

sys.path.remove(TOOLS)

needs_compiler = pytest.mark.skipif(not shutil.which(os.environ.get("CC", "cc").split()[0]), reason="no C compiler")


@needs_compiler
def test_the_table_is_what_the_code_gives():
    doc = type_table.DOC.read_text(encoding="utf-8")
    assert type_table.filled(doc) == doc, "docs/models.md is not as the code says: make table"
    table = type_table.MARK.search(doc)[0]
    assert all(f"\n| {t.name} | {t.bytes * 8 / t.block:g} |" in table for t in TYPES.values() if t.act is not None)


@needs_compiler
def test_rows_from_the_source_are_the_library_s():
    """Names, types and token counts: the preprocessor sees just the rows that this build has."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in type_table.COLUMNS:
        pytest.skip(f"no table of {machine}")
    n, found = ffi.new("int32_t *"), set()
    rows = lib.pe_rows(n)
    for row in (rows[i] for i in range(n[0])):
        tier = next(t for t in (*type_table.COLUMNS[machine], "scalar") if TIERS[t] == row.isa)
        counts = [c for c, tokens in (("one", 1), ("few", 2), ("many", 512)) if row.n_min <= tokens <= row.n_max]
        found |= {(TYPES[row.wtype].name, tier, c) for c in counts or ["many"]}
    assert found == type_table.rows(machine)


@needs_compiler
def test_every_type_has_avx2_kernels_for_every_number_of_tokens():
    have = type_table.rows("x86_64")
    types = {t.name for t in TYPES.values() if t.act is not None}
    missing = {(t, tier, c) for t in types for tier in ("scalar", "avx2") for c in type_table.COUNTS} - have
    assert not missing
