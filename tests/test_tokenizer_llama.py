"""Our token ids beside llama.cpp's, which it gives at /tokenize: real vocabularies, every pre-tokenizer by name, every code
point. Where they are meant to differ a test says how and why.

make test takes a few strings, make test-long hundreds, the campaigns 20,000 a vocabulary and all of Unicode:

    pytest -s -m campaign tests/test_tokenizer_llama.py
"""
import random
import unicodedata

import pytest
import vocab_models
from faults_gguf import I32, STRING, U32, kv, kv_array

from pyengine import tokenizer
from pyengine.gguf import GGUF
from pyengine.tokenizer.bpe import ALPHABET
from pyengine.tokenizer.pre import OF_CHARACTERS, RULES
from pyengine.tokenizer.rules import splitter

pytest.importorskip("xllamacpp")

NAMES = ("deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")

# llama.cpp takes "</s>" for a control token in every vocabulary. In qwen2's it is a word like another, the end of a
# strike-through; in phi-3's its own tokenizer always finds it, control tokens asked for or not.
PLAIN_END = ("qwen2", "phi-3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llama")


def compare(t, ids, texts, missing=frozenset()):
    """Asserts equal ids of every text, control tokens asked for and not; missing: bytes without a token, which
    llama.cpp leaves out and ours refuses. The number of texts."""
    n = 0
    for text in texts:
        if missing:
            text = "".join(c for c in text if not missing.intersection(c.encode()))
        for special in (False, True):
            theirs, ours = ids(text, special), t.encode(text, special=special, add_bos=False, add_eos=False)
            assert ours == theirs, (text, special, [t.piece(i, True) for i in ours], [t.piece(i, True) for i in theirs])
        n += 1
    return n


# --- real vocabularies --------------------------------------------------------------------------------------


def strings_for(name, t, n):
    for text in vocab_models.strings(n, 7, vocab_models.texts_of(t)):
        yield text.replace("</s>", "") if name in PLAIN_END else text


def check_vocabulary(name, folder, n):
    path = vocab_models.VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    t = tokenizer.load(GGUF(path))
    t.encode("a")
    with vocab_models.oracle(vocab_models.wrap(path, folder)) as ids:
        return compare(t, ids, strings_for(name, t, n), getattr(t._model, "_missing", frozenset()))


@pytest.mark.parametrize("name", ("gpt-2", "llama-spm"))
def test_a_real_vocabulary(name, folder):
    assert check_vocabulary(name, folder, 150) == 150


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies(name, folder):
    assert check_vocabulary(name, folder, 500) == 500


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies_at_length(name, folder):
    assert check_vocabulary(name, folder, 20_000) == 20_000


# --- every name ---------------------------------------------------------------------------------------------

T = "tokenizer.ggml."
UNREACHED = ["Ġthe", "hello", "World", "123", "ĠIts"]  # tokens that no merge makes: met only where a whole word is one
PAIRED = [*range(0x20, 0x7F), *b"\n\r\t\x0b\x80\x81\x82\x84\x88\x8d\x93\x9c\xa0\xa4\xa8\xaf\xb0\xb8\xb9\xbf\xc2\xc3\xc5\xcc\xd0\xe0\xe2\xe3\xe4\xea\xf0"]


def pairs_of(known, seed):
    """Every two of them in random order: with these as merges, words that are cut elsewhere mostly show in the ids."""
    pairs = [(a, b) for a in known for b in known]
    random.Random(seed).shuffle(pairs)
    return pairs


def byte_vocabulary(pre):
    pairs = pairs_of([ALPHABET[b] for b in PAIRED], 5)
    tokens = ["<|end|>", *ALPHABET.values(), *(a + b for a, b in pairs), *UNREACHED]
    return vocabulary(pre, tokens, [3] + [1] * (len(tokens) - 1), pairs)


def character_vocabulary(pre):
    known = [*"▁abcdehlorstTHWw.,!\n\t012é漢字けが🦙'"]
    pairs = pairs_of(known, 6)
    tokens = ["<|end|>", *(f"<0x{b:02X}>" for b in range(256)), *known, *(a + b for a, b in pairs), "\n\n\n", "\n\n\n\n", "▁the"]
    return vocabulary(pre, tokens, [3] + [6] * 256 + [1] * (len(tokens) - 257), pairs)


def vocabulary(pre, tokens, kinds, pairs):
    return [kv(T + "model", STRING, "gpt2"), kv(T + "pre", STRING, pre), kv_array(T + "tokens", STRING, tokens),
            kv_array(T + "token_type", I32, kinds), kv_array(T + "merges", STRING, [f"{a} {b}" for a, b in pairs]),
            kv(T + "bos_token_id", U32, 0), kv(T + "eos_token_id", U32, 0)]


# Names whose words hold combining marks with us, as with the models' own tokenizers, and not with llama.cpp.
WITH_MARKS = frozenset("gpt-4o llama4 kanana2 talkie minimax-m2 tekken kimi-k2".split())


def without_marks(text):
    # Python's tables may be of another Unicode; what is new in them is left out with the marks
    return "".join(c for c in text if unicodedata.category(c)[0] != "M" and (ord(c) < 0x300 or unicodedata.category(c) != "Cn"))


def check_name(pre, folder, n):
    path = folder / f"{pre}.gguf"
    vocab_models.model(path, (character_vocabulary if pre in OF_CHARACTERS else byte_vocabulary)(pre))
    t = tokenizer.load(GGUF(path))
    texts = vocab_models.strings(n, 11)
    with vocab_models.oracle(path) as ids:
        for text in ("hello", "hello World", " the", "Its 123", "\n\n", "\n\n\n"):
            assert t.encode(text) == ids(text, add_special=True), text
        done = compare(t, ids, map(without_marks, texts) if pre in WITH_MARKS else texts)
    path.unlink()
    return done


@pytest.mark.parametrize("pre", ("deepseek-v3", "gemma4"))
def test_a_name(pre, folder):
    assert check_name(pre, folder, 60) == 60


def test_gemma4_is_a_kind_of_its_own(folder):
    """Text in and out, without tokenizer.ggml.pre, BOS unless the file says no."""
    path = folder / "kind.gguf"
    entries = [kv(T + "model", STRING, "gemma4"), *character_vocabulary("gemma4")[2:]]
    vocab_models.model(path, entries)
    t = tokenizer.load(GGUF(path))
    with vocab_models.oracle(path) as ids:
        assert compare(t, ids, vocab_models.strings(60, 12)) == 60
    text = "The  cat\n\n\n 🦙 \u1234 x"
    assert t.encode(text)[0] == 0 and t.decode(t.encode(text)) == text


@pytest.mark.long
@pytest.mark.parametrize("pre", RULES)
def test_every_name(pre, folder):
    assert check_name(pre, folder, 100) == 100


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pre", sorted({RULES[n]: n for n in sorted(RULES)}.values()))
def test_every_rule_at_length(pre, folder):
    assert check_name(pre, folder, 3000) == 3000


@pytest.mark.parametrize("pre", sorted(WITH_MARKS | {"granite-embed-multi-97m"}))
def test_marks_are_part_of_words(pre):
    """Where llama.cpp begins a new word at each (but for granite's, the latest rule of the kind)."""
    for word in ("हिन्दी", "العَرَبِيَّة", "עִבְרִית", "ไทยดี", "ne\u0301e"):
        assert splitter(RULES[pre]).words(word) == [word.encode()]


# --- every code point ---------------------------------------------------------------------------------------

CONTEXTS = ("{}", "a{}", "{}a", " {} ")


def check_code_points(name, folder, code_points):
    """Each in four contexts, thousands a request: control tokens between them keep one from another. Their number."""
    path = vocab_models.VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    t = tokenizer.load(GGUF(path))
    wall = t.piece(t.eos, special=True).decode()
    n = 0
    with vocab_models.oracle(vocab_models.wrap(path, folder)) as ids:
        for context in CONTEXTS:
            for at in range(0, len(code_points), 512):
                texts = [context.format(chr(cp)) for cp in code_points[at:at + 512]]
                whole = wall.join(texts)
                theirs, ours = ids(whole, True), t.encode(whole, special=True, add_bos=False)
                if ours != theirs:
                    for text in texts:
                        assert t.encode(text, special=True, add_bos=False) == ids(text, True), ascii(text)
                    pytest.fail("differs only among others")
                n += len(texts)
    return n


def without_surrogates(code_points):
    return [cp for cp in code_points if not 0xD800 <= cp <= 0xDFFF]


@pytest.mark.long
@pytest.mark.parametrize("name", ("llama-bpe", "llama-spm"))
def test_code_points(name, folder):
    """The first and last of each run of a category, and every 97th."""
    some = sorted({ord(c) for c in vocab_models.edges()} | set(without_surrogates(range(0, 0x110000, 97))))
    assert check_code_points(name, folder, some) == 4 * len(some)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ("llama-bpe", "llama-spm"))
def test_all_code_points(name, folder):
    assert check_code_points(name, folder, without_surrogates(range(0x110000))) == 4 * (0x110000 - 2048)
