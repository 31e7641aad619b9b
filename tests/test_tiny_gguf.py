"""The makers of test files, against the gguf package's reader and dequantizer."""

import pytest

import gguf
import numpy as np

import f32_copy  # noqa: E402
import split_gguf  # noqa: E402
import tiny_gguf  # noqa: E402


@pytest.mark.parametrize("weight_type,arch", [(t, a) for t in tiny_gguf.WEIGHT_TYPES for a in ("llama", "gemma3") if a == "llama" or not t.startswith("IQ1")])
def test_file_reads_back(tmp_path, arch, weight_type):
    spec = tiny_gguf.Spec(arch=arch, weight_type=weight_type, n_embd=256, n_ff=256, n_layer=1, n_vocab=300)
    reader = gguf.GGUFReader(tiny_gguf.write(tmp_path / "a.gguf", spec))
    assert reader.get_field(f"{arch}.embedding_length").contents() == 256
    wanted = tiny_gguf.weights(spec)
    assert [t.name for t in reader.tensors] == list(wanted)
    for tensor in reader.tensors:
        assert tensor.tensor_type.name == tiny_gguf.type_of(spec, tensor.name)
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.corrcoef(got.ravel(), wanted[tensor.name].ravel())[0, 1] > (0.88 if weight_type.startswith("IQ1") else 0.92 if weight_type == "IQ2_XXS" else 0.94)


def test_file_is_a_function_of_its_spec(tmp_path):
    for seed in (0, 1):
        for name in "ab":
            tiny_gguf.write(tmp_path / f"{name}{seed}", tiny_gguf.Spec(seed=seed, biases=True))
    data = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert data["a0"] == data["b0"] and data["a1"] == data["b1"] and data["a0"] != data["a1"]


@pytest.mark.parametrize("vocabulary", ["spm", "bpe"])
def test_smallest_vocabulary_is_named(vocabulary):
    with pytest.raises(ValueError, match="n_vocab: 200"):
        tiny_gguf.metadata(tiny_gguf.Spec(n_vocab=200, vocabulary=vocabulary))


def test_wrong_files_differ_in_one_thing():
    for arch, kinds in tiny_gguf.WRONG.items():
        spec = tiny_gguf.Spec(arch=arch, biases=arch == "llama", longrope=arch == "phi3")
        for kind in kinds:
            good, bad = tiny_gguf.weights(spec), tiny_gguf.weights(spec)
            tiny_gguf.make_wrong(spec, bad, kind)
            changed = {n for n in good if n not in bad or not np.array_equal(good[n], bad[n])}
            if kind in tiny_gguf.WRONG_KEYS:
                assert not changed, kind
                continue
            assert changed, kind
            if kind == "factors":
                assert changed == {"rope_factors_long.weight", "rope_factors_short.weight"}
            elif kind == "rope":
                assert all(".attn_q" in n or ".attn_k" in n for n in changed)
            else:
                assert len(changed) == 1


def test_f32_copy_keeps_metadata_and_values(tmp_path):
    source = tiny_gguf.write(tmp_path / "q.gguf", tiny_gguf.Spec(weight_type="Q8_0", biases=True))
    copy = gguf.GGUFReader(f32_copy.copy(source, tmp_path / "f.gguf"))
    original = gguf.GGUFReader(source)
    for name, field in original.fields.items():
        if not name.startswith("GGUF."):
            assert copy.fields[name].contents() == field.contents(), name
    for a, b in zip(original.tensors, copy.tensors, strict=True):
        assert (a.name, list(a.shape)) == (b.name, list(b.shape))
        assert b.tensor_type == gguf.GGMLQuantizationType.F32
        assert np.array_equal(gguf.quants.dequantize(a.data, a.tensor_type), b.data)


@pytest.mark.parametrize("count", [2, 3, 21])
def test_shards_hold_every_tensor_once(tmp_path, count):
    source = gguf.GGUFReader(tiny_gguf.write(tmp_path / "a.gguf", tiny_gguf.Spec()))
    paths = split_gguf.split(tmp_path / "a.gguf", tmp_path / "s", count)
    assert len(paths) == count
    readers = [gguf.GGUFReader(path) for path in paths]
    tensors = [t for reader in readers for t in reader.tensors]
    assert [t.name for t in tensors] == [t.name for t in source.tensors]
    assert all(np.array_equal(a.data, b.data) for a, b in zip(tensors, source.tensors))
    for number, reader in enumerate(readers):
        assert reader.tensors
        assert reader.get_field("split.no").contents() == number
        assert reader.get_field("split.count").contents() == count
        assert reader.get_field("split.tensors.count").contents() == len(source.tensors)
