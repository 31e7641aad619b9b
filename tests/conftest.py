"""Where tests find their helpers, the real models and files made from them. Nothing else."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

os.environ["PYENGINE_TUNE"] = "0"   # what a developer tuned on this machine is no part of a test

MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m": "gemma-3-270m.Q4_K_M.gguf"}


def find_model(name):
    """Path of a real model that was fetched before, else None. PYENGINE_TEST_MODELS names a folder to try first."""
    folder = os.environ.get("PYENGINE_TEST_MODELS")
    if folder and (pathlib.Path(folder) / MODELS[name]).exists():
        return pathlib.Path(folder) / MODELS[name]
    from pyengine import catalog

    return catalog.cached(name)


@pytest.fixture(scope="session")
def real_model():
    """real_model(name) -> path; the test is skipped where `make models` has not fetched it."""

    def find(name):
        path = find_model(name)
        if path is None:
            pytest.skip(f"{name} has not been fetched: make models")
        return path

    return find


@pytest.fixture(scope="session")
def f32_copy(real_model):
    """f32_copy(name) -> path of the model dequantized to F32, made once and kept beside the cached models."""
    import f32_copy as tool
    from pyengine import catalog

    def find(name):
        source = real_model(name)
        target = catalog.cache_dir() / "tests" / f"{source.stem}.F32.gguf"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            tool.copy(source, target)
        return target

    return find


@pytest.fixture(scope="session")
def smollm2_server(real_model):
    """A server process over SmolLM2, named smollm2, shared by the tests of the dialects (serve_process.Server)."""
    from serve_process import Server

    with Server(real_model("smollm2"), "--alias", "smollm2", "-c", "512", "--parallel", "8") as server:
        yield server
