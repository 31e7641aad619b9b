"""Every architecture string that llama.cpp knows: it runs, or is on docs/models.md with what it needs or why not."""

import pathlib
import platform
import re
import subprocess
import sys

import pytest

import tiny_gguf
from tiny_gguf import Spec

from pyengine import arch, errors, plan
from pyengine.arch import known
from pyengine.gguf import GGUF

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# What the xllamacpp these tests were written beside (b11549) does not call an "unknown model architecture"; it is all that its
# library has in its table of names (test_the_list_is_that_of_the_library).
LLAMA_CPP = """afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon chatglm clef clip
codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream
eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma-embedding2 gemma2 gemma3
gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite granite_swa granitehybrid granitemoe
graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3
k2-horizon kimi-k3 kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2
minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h
nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2
plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact
rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder talkie
wavtokenizer-dec xverse""".split()


def test_every_string_of_llama_cpp_is_on_the_list_once():
    ours = [*arch.ARCHITECTURES, *known.PLANNED, *known.NOT]
    assert len(ours) == len(set(ours))
    assert set(LLAMA_CPP) <= set(ours), sorted(set(LLAMA_CPP) - set(ours))


PROBE = """
import sys, pathlib, xllamacpp
path = pathlib.Path(sys.argv[1])
whole = path.read_bytes()
for name in sys.stdin.read().split():
    old = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama"
    new = old[:24] + len(name).to_bytes(8, "little") + name.encode()
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, new) + bytes(64))     # alignment may have moved the data
    p = xllamacpp.CommonParams()
    p.model.path, p.fit_params, p.warmup, p.n_ctx = str(path), False, False, 64
    try:
        xllamacpp.Server(p)
    except RuntimeError:
        pass
"""


def unknown_to_llama_cpp(tmp_path, names):
    """Those of the names that llama.cpp refuses as no architecture; what it says of others is about their keys."""
    spec = Spec(n_layer=1, n_embd=32, n_ff=32)
    path = tiny_gguf.write(tmp_path / "probe.gguf", spec, keys={key: None for key in tiny_gguf.metadata(spec) if key.startswith("llama.")})
    (tmp_path / "names").write_text("\n".join(names))
    with open(tmp_path / "names") as names, open(tmp_path / "log", "w+") as log:
        done = subprocess.run([sys.executable, "-c", PROBE, path], stdin=names, stdout=log, stderr=log, timeout=300)
    said = (tmp_path / "log").read_text(errors="replace")
    assert done.returncode == 0, said[-2000:]
    return set(re.findall(r"unknown model architecture: '(.*?)'", said))


def names_in_the_library():
    """The strings that follow one another in the code that fills llama.cpp's table of names: each an address relative to the
    instruction (lea), from "clip", the first of the table, to "(unknown)", the last. x86-64 ELF."""
    import numpy as np
    import xllamacpp

    (path,) = pathlib.Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    data = path.read_bytes()
    header = int.from_bytes(data[40:48], "little")
    sections = [tuple(int.from_bytes(data[at + o : at + o + 8], "little") for o in (8, 16, 24, 32))
                for at in range(header, header + 64 * int.from_bytes(data[60:62], "little"), 64)]       # flags, address, offset, size
    found = []
    for flags, address, offset, size in sections:
        if not flags & 4:       # no instructions
            continue
        code = np.frombuffer(data, np.uint8, size, offset)
        for i in np.flatnonzero((code[:-6] & 0xFB == 0x48) & (code[1:-5] == 0x8D) & (code[2:-4] & 0xC7 == 5)).tolist():
            target = address + i + 7 + int.from_bytes(data[offset + i + 3 : offset + i + 7], "little", signed=True)
            at = next((o + target - a for f, a, o, n in sections if f & 6 == 2 and a and a <= target < a + n), None)
            if at is not None and (name := re.match(rb"[a-z0-9_().-]{2,30}\0", data[at : at + 32])):
                found.append(name[0][:-1].decode())
    end = found.index("(unknown)")
    return found[max(i for i in range(end) if found[i] == "clip") : end]


@pytest.mark.long
def test_the_list_is_that_of_the_library(tmp_path):
    pytest.importorskip("xllamacpp")
    assert unknown_to_llama_cpp(tmp_path, sorted({*LLAMA_CPP, *arch.ARCHITECTURES, *known.PLANNED, *known.NOT, "zzz"})) == {"zzz", "whisper"}


@pytest.mark.campaign
@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="reads the machine code of one library")
def test_no_name_of_the_library_is_missing(tmp_path):
    """By hand, when llama.cpp moves on: a release of it with one more family is no fault of ours."""
    pytest.importorskip("xllamacpp")
    names = names_in_the_library()
    assert len(names) > 100 and not set(names) - set(LLAMA_CPP) - unknown_to_llama_cpp(tmp_path, sorted(set(names)))
    assert set(names) == set(LLAMA_CPP)


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


@pytest.mark.parametrize("name", ["clef", "clip", "deepseek4", "mamba", "t5", "whisper"])
def test_a_file_of_nothing_but_its_name_says_so_too(tmp_path, name):
    """Projectors and speech models have no vocabulary, others a key of another type: what is said first is that it does not run."""
    import gguf
    import numpy as np

    from pyengine import Llama

    writer = gguf.GGUFWriter(tmp_path / "x.gguf", name)
    writer.add_uint32(f"{name}.block_count", 0)
    writer.add_tensor("x", np.zeros((4, 32), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(errors.UnsupportedError, match=re.escape(f"'{name}' is not supported: {known.why_not(name)}")):
        Llama(str(tmp_path / "x.gguf"))


def test_the_files_of_arch_are_short():
    """150 lines, but for the words that families share; a table of names has no length."""
    for path in (ROOT / "pyengine" / "arch").glob("*.py"):
        if path.name not in ("hyper.py", "known.py", "layers.py", "rope.py"):
            assert len(path.read_text().splitlines()) <= 150, path.name


def test_the_page_about_adding_one_shows_the_file_itself():
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    example = (ROOT / "pyengine" / "arch" / "qwen3.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```" in page and len(example.splitlines()) < 100
    for line in ('    "qwen3": "qwen3",', '    "qwen3": ("rope", "norm", "head norm"),', '    "qwen3": Spec(arch="qwen3", head_dim=24),'):
        assert f"```python\n{line}\n```" in page
        assert any(line in path.read_text(encoding="utf-8") for path in (
            ROOT / "pyengine/arch/__init__.py", ROOT / "tools/tiny_spec.py", ROOT / "tests/arch/test_families.py"))
