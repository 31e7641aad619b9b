"""bpe.c beside the libraries it stands for: the same ids from sentencepiece and HF tokenizers, for any text."""
import random
import struct

import pytest
from faults_gguf import gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import vocabulary
from test_tokenizer_faults import bpe_keys, spm_keys
from texts import PASSAGES

from pyengine import tokenizer
from pyengine.gguf import GGUF
from pyengine.tokenizer.bpe import ALPHABET
from pyengine.tokenizer.pre import OF_CHARACTERS, RULES, WHOLE_WORDS
from pyengine.tokenizer.rules import Threes, splitter

CHARACTERS = "abcdefghij ABC  \n\t<>|_'.,0123456789éüßñ漢字かな한국어🦙👨‍👩‍👧▁עברית\u2028\u3000\x07\ufffd"


def hf_encode(t):
    """The ids that HF's own BPE model gives, built from the file's strings."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import AddedToken, Regex, models, pre_tokenizers

    v, gguf = t._vocabulary, t._gguf
    tokens = [str(x, "utf-8", "replace") for x in v.tokens]
    ids = {x: i for i, x in enumerate(tokens) if v.types[i] not in (2, 3)}
    merges = [tuple(str(m, "utf-8").split(" ")) for m in gguf.get_strings("tokenizer.ggml.merges")]
    hf = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=t.pre in WHOLE_WORDS))
    rules = [pre_tokenizers.Split(Regex(r), "isolated") for r in RULES[t.pre]]
    hf.pre_tokenizer = pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    hf.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in v.of_type(4)])
    return lambda text: hf.encode(text, add_special_tokens=False).ids


def field(number, payload):
    """A length-delimited field of a protobuf message, up to 2 MB of payload."""
    n, size = len(payload), b""
    while n > 127:
        size, n = size + bytes((n & 127 | 128,)), n >> 7
    return bytes((number << 3 | 2,)) + size + bytes((n,)) + payload


def sp_encode(t):
    """The ids that the sentencepiece library gives for a model of the file's tokens."""
    sentencepiece = pytest.importorskip("sentencepiece")
    v = t._vocabulary
    scores = memoryview(bytes(v.scores())).cast("f")
    proto = bytearray()  # ModelProto: pieces = 1 (piece = 1, score = 2, type = 3)
    for text, score, kind in zip(v.tokens, scores, v.types):
        text = text.replace(b" ", "▁".encode()) if kind == 4 else text
        proto += field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + bytes((0x18, {2: 3, 5: 1}.get(kind, kind))))
    proto += field(1, field(1, b"\x01unknown") + b"\x15\0\0\0\0\x18\x02")
    proto += field(2, b"\x18\x02\x98\x02\x01")  # TrainerSpec: model_type = 3 (BPE), byte_fallback = 35
    # NormalizerSpec: name = 1, add_dummy_prefix = 3, remove_extra_whitespaces = 4, escape_whitespaces = 5
    proto += field(3, field(1, b"identity") + b"\x18\x00\x20\x00\x28\x01")
    sp = sentencepiece.SentencePieceProcessor()
    sp.LoadFromSerializedProto(bytes(proto))
    return lambda text: sp.EncodeAsIds((" " if t.add_space_prefix else "") + text) if text else []


def texts(t, n, seed):
    """Prose, and token soup: pieces of random tokens, where merges cross the borders."""
    yield from PASSAGES
    draw = random.Random(seed)
    for _ in range(n):
        soup = b"".join(t.piece(draw.randrange(t.n_vocab)) for _ in range(draw.randrange(1, 25))).decode("utf-8", "replace")
        yield soup
        yield "".join(draw.choice(CHARACTERS) for _ in range(draw.randrange(80)))


@pytest.mark.parametrize("name", ["gpt-2", "falcon", pytest.param("llama-bpe", marks=pytest.mark.long),
                                  pytest.param("qwen2", marks=pytest.mark.long),
                                  pytest.param("deepseek-llm", marks=pytest.mark.long)])
def test_byte_level_bpe_equals_hf(name):
    t = vocabulary(name)
    theirs = hf_encode(t)
    for text in texts(t, 300, 1):
        assert t.encode(text, add_bos=False) == theirs(text), text


SOUP = ["a b", "naïve", "zé", "x y z", " ", "  ", "    ", "\n", "\r\n ", "\t", "I'll", "'S", "1", "1234567", "Ab C", "HTTPServer", "é", "É e", "歪", "日本 a", "かな。",
        "한국어", "!", " ?!", "._a b", "/", "$+", "\u0301", "e\u0301", "\u00a0", "\u3000", "ß a B", "🦙 a", "<sentinel:12>", "IMGIMGABZ", "\u200d"]


@pytest.mark.parametrize("pre", sorted({RULES[n]: n for n in sorted(RULES) if n not in OF_CHARACTERS}.values()))
def test_words_equal_those_of_hf(pre):
    """split.c beside a whole engine of regular expressions, on the expressions of every rule."""
    if any(isinstance(e, Threes) for e in RULES[pre]):
        pytest.skip("numbers are cut in threes by no expression")
    pre_tokenizers = pytest.importorskip("tokenizers.pre_tokenizers")
    from tokenizers import Regex

    theirs = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in RULES[pre]]).pre_tokenize_str
    ours = splitter(RULES[pre])
    draw = random.Random(3)
    for i in range(400):  # many short ones: what one stage remembers of a piece must not meet the next stage
        text = "".join(draw.choice(SOUP) for _ in range(1 + i % 2 * draw.randrange(25)))
        assert ours.words(text) == [word.encode() for word, _ in theirs(text)], text


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_sentencepiece_equals_the_library(name):
    t = vocabulary(name)
    theirs = sp_encode(t)
    for text in texts(t, 300, 2):
        assert t.encode(text, add_bos=False) == theirs(text), text


@pytest.mark.long
def test_gemma_equals_the_library(real_model):
    t = tokenizer.load(GGUF(real_model("gemma-3-270m")))
    theirs = sp_encode(t)
    for text in texts(t, 300, 3):
        assert t.encode(text, add_bos=False) == theirs(text), text


# --- small vocabularies of every shape, where ties and chains of merges are dense ---------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_merges_equal_hf(tmp_path_factory, data):
    pytest.importorskip("tokenizers")
    tokens, merges = [*ALPHABET.values()], []
    for _ in range(data.draw(st.integers(1, 25))):
        known = [*"abc", *tokens[256:]]
        left, right = data.draw(st.sampled_from(known)), data.draw(st.sampled_from(known))
        if (left, right) not in merges and len(left + right) < 12:
            merges.append((left, right))
            if left + right not in tokens:
                tokens.append(left + right)
    merges = data.draw(st.permutations(merges))
    path = tmp_path_factory.mktemp("bpe") / "v.gguf"
    path.write_bytes(gguf(list(bpe_keys(tokens, [1] * len(tokens), [" ".join(m) for m in merges]).values())))
    t = tokenizer.load(GGUF(path))
    theirs = hf_encode(t)
    for text in data.draw(st.lists(st.text("abc", max_size=40), min_size=3, max_size=8)):
        assert t.encode(text) == theirs(text), (merges, text)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_scores_equal_the_library(tmp_path_factory, data):
    base = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "é"]
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1, 1]
    more = data.draw(st.lists(st.text("ab▁é", min_size=2, max_size=6), max_size=25, unique=True))
    kinds += [data.draw(st.sampled_from((1, 1, 1, 1, 4, 5))) for _ in more]
    scores = [0.0] * len(base) + [float(data.draw(st.integers(-6, 3))) for _ in more]
    path = tmp_path_factory.mktemp("spm") / "v.gguf"
    path.write_bytes(gguf(list(spm_keys(base + more, kinds, scores).values())))
    t = tokenizer.load(GGUF(path))
    theirs = sp_encode(t)
    for text in data.draw(st.lists(st.text("ab é漢", max_size=40), min_size=3, max_size=8)):
        assert t.encode(text, add_bos=False) == theirs(text), (more, scores, text)
