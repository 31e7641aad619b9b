"""bench/serve.py: what follows from samples, and one short run of our side."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
import serve  # noqa: E402

sys.path.remove(str(ROOT / "bench"))


def side(rate, first, a, b):
    return {"tokens_per_second": rate, "first_ms": first, "system_first_ms": a, "system_second_ms": b}


def test_the_better_setting_counts_for_each_figure():
    entry = {"concurrent": 16, "prompt": 128, "tokens": 64, "system": 1000, "sides": {
        "pyengine": side([300, 400, 500], [100], [50], [10]), "pyengine avx2": side([200], [150], [70], [10]),
        "xllamacpp fa": side([100, 90, 110], [800], [400], [200]), "xllamacpp plain": side([50], [400], [500], [100])}}
    text, facts = serve.table(entry)
    assert facts["tokens_per_second"] == 4 and facts["first_ms"] == 4 and facts["system_first_ms"] == 8 and facts["system_second_ms"] == 10
    assert facts["sooner pyengine"] == 5 and facts["sooner xllamacpp fa"] == 2
    assert "| 400 | 100 (fa) | 4.00x |" in text and "| 100 | 400 (plain) | 4.00x |" in text
    del entry["sides"]["xllamacpp fa"], entry["sides"]["xllamacpp plain"]
    assert serve.table(entry)[1]["tokens_per_second"] is None


@pytest.mark.long
def test_our_side_runs(real_model, tmp_path):
    for name in ("httpx", "starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(name)
    result = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "bench/serve.py"), "--ours-only", "--model", str(real_model("smollm2")), "--concurrent", "2", "--prompt", "16",
               "--tokens", "4", "--system", "80", "--n-ctx", "256", "--rounds", "1", "--result", str(result)]
    for more, n in ((), 1), (("--resume",), 2):
        subprocess.run([*command, *more], check=True, timeout=200, capture_output=True, cwd=ROOT)
        entry = json.loads(result.read_text())
        assert list(entry["sides"]) == ["pyengine"] and len(entry["sides"]["pyengine"]["first_ms"]) == entry["rounds"] == n
    assert "tokens/s" in result.with_suffix(".md").read_text()
