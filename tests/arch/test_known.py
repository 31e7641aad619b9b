"""Every architecture string that llama.cpp knows: it runs, or is on docs/models.md with what it needs or why not."""

import pathlib
import sys

import pytest

import tiny_gguf
from tiny_gguf import Spec

from pyengine import arch, errors, plan
from pyengine.arch import known
from pyengine.gguf import GGUF

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# What the xllamacpp these tests were written beside (b11549) says of a file without keys: not "unknown model architecture".
LLAMA_CPP = """afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon chatglm clip codeshell
cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3
ernie4_5 ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4
gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok
grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3
kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3
minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert
nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts
qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6 rwkv6qwen2
rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder talkie wavtokenizer-dec xverse""".split()


def test_every_string_of_llama_cpp_is_on_the_list_once():
    ours = [*arch.ARCHITECTURES, *known.PLANNED, *known.NOT]
    assert len(ours) == len(set(ours))
    assert set(LLAMA_CPP) <= set(ours), sorted(set(LLAMA_CPP) - set(ours))


def test_what_is_said_can_be_followed():
    """Every nearest architecture runs, and every missing word has its sentence and is missing somewhere."""
    near = [nearest for _, nearest in (*known.PLANNED.values(), *known.NOT.values()) if nearest]
    assert set(near) <= set(arch.ARCHITECTURES)
    assert {word for word, _ in known.PLANNED.values()} == set(known.WORDS)


def test_the_page_is_as_the_code_says():
    sys.path.insert(0, str(ROOT / "tools"))
    import arch_table

    doc = arch_table.DOC.read_text(encoding="utf-8")
    assert arch_table.filled(doc) == doc, "docs/models.md is not as the code says: make table"
    assert all(f"`{name}`" in arch_table.MARK.search(doc)[0] for name in LLAMA_CPP)


@pytest.mark.parametrize("name", sorted({*known.PLANNED, *known.NOT}))
def test_loading_one_says_why_not_and_what_is_near(tmp_path, name):
    path = tiny_gguf.write(tmp_path / "x.gguf", Spec(n_layer=1), keys={"general.architecture": name})
    with GGUF(path) as gguf, pytest.raises(errors.UnsupportedError) as e:
        plan.compile(gguf, n_ctx=64)
    nearest = {**known.PLANNED, **known.NOT}[name][1]
    assert f"'{name}' is not supported: {known.why_not(name)}" in str(e.value)
    assert not nearest or f"the nearest that runs is {nearest}" in str(e.value)


def test_the_files_of_arch_are_short():
    """150 lines, but for the words that families share; a table of names has no length."""
    for path in (ROOT / "pyengine" / "arch").glob("*.py"):
        if path.name not in ("layers.py", "known.py"):
            assert len(path.read_text().splitlines()) <= 150, path.name


def test_the_page_about_adding_one_shows_the_file_itself():
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    example = (ROOT / "pyengine" / "arch" / "qwen3.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```" in page and len(example.splitlines()) < 100
    for line in ('    "qwen3": "qwen3",', '    "qwen3": ("rope", "norm", "head norm"),', '    "qwen3": Spec(arch="qwen3", head_dim=24),'):
        assert f"```python\n{line}\n```" in page
        assert any(line in path.read_text(encoding="utf-8") for path in (
            ROOT / "pyengine/arch/__init__.py", ROOT / "tools/tiny_spec.py", ROOT / "tests/arch/test_families.py"))
