"""WordPiece, unigram, RWKV and PLaMo-2 vocabularies: published vectors, the libraries they come from, references of a few
lines, and what is refused or bounded (faults 62 to 77 for these kinds)."""
import itertools
import random
import struct
import time

import pytest
from faults_gguf import BOOL, F32, I8, I32, STRING, U8, U16, U32, gguf, kv, kv_array
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import (T, WORDPIECE, charsmap, escaped, plamo_keys, trained, unigram_keys, wordpiece_keys, world_keys,
                   world_tokens)
from test_tokenizer import vectors, vocabulary
from vocab_models import model, strings

from pyengine import Llama, tokenizer
from pyengine.errors import GGUFError, TokenizerError
from pyengine.gguf import GGUF
from pyengine.tokenizer import characters
from pyengine.tokenizer.decode import clean
from pyengine.tokenizer.rwkv import unescaped

PLAIN = dict(add_bos=False, add_eos=False)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("kinds"), itertools.count()

    def make(keys, build=True, front=()):
        path = folder / f"{next(number)}.gguf"
        path.write_bytes(gguf([*front, *(k for k in keys.values() if k is not None)]))
        t = tokenizer.load(GGUF(path))
        if build:
            t.encode("ab")
        return t

    return make


@pytest.fixture(scope="module")
def unigram(make):
    return make(unigram_keys()[0])


@pytest.fixture(scope="module")
def world(make):
    return make(world_keys()[0])


@pytest.fixture(scope="module")
def plamo(make):
    return make(plamo_keys()[0])


# --- WordPiece ------------------------------------------------------------------------------------------------


def test_published_vectors_of_bert():
    t = vocabulary("bert-bge")
    for text, ids in vectors("bert-bge"):
        assert t.encode(text, **PLAIN) == ids, text
        assert t.encode(text) == [101, *ids, 102]


def test_accents_capitals_ideographs_and_unknown_words():
    """Case 12, measured."""
    t = vocabulary("bert-bge")
    for text, ids in (("Hokkaidō", [20826]), ("Café déjà vu", [7668, 2139, 3900, 24728]), ("歪", [100]), ("\n\n\n", []),
                      ("日本語テスト", [1864, 1876, 1950, 1713, 30233, 30240])):
        assert t.encode(text) == [101, *ids, 102]
    assert t.encode("café") != t.encode("naïve") != t.encode("Čapek")
    assert (t.bos, t.sep, t.mask, t.unk, t.pad, t.cls) == (101, 102, 103, 100, 0, 101)
    assert t.add_bos and t.add_eos and t.closing == 102 and t.eos is None and t.kind(101) == "control"


def test_special_tokens_of_bert():
    t = vocabulary("bert-bge")
    assert t.encode("[MASK]", special=True) == [101, 103, 102] and 103 not in t.encode("[MASK]")
    assert t.encode("[CLS] a [SEP]", special=True) == [101, 1037, 102]  # never twice
    assert t.encode("") == [101, 102] and t.encode("", **PLAIN) == []


def test_wordpiece_comes_back_as_english():
    t = vocabulary("bert-bge")
    for text in ("hello, world!", "it's a dog's life, isn't it?", "we're here. they've gone", "unbelievably long"):
        assert t.decode(t.encode(text)) == text.replace("n't", "n ' t").replace(" ' ", "'")
    assert t.piece(7592) == b" hello" and t.decode([7592], continued=True) == " hello"
    assert t.decode([101, 7592, 102], special=True) == "[CLS] hello[SEP]"


def in_three_passes(text):
    """The rules of llama.cpp's detokenizer, character by character."""
    for rule in (lambda s, i: (s[i] in "?!.,", 0), lambda s, i: (s[i:i + 2] == "' ", 1),
                 lambda s, i: (s[i:i + 2] in ("'s", "'m") or s[i:i + 3] in ("'re", "'ve"), 0)):
        out, i, last = [], 0, ""
        while i < len(text):
            hit, skip = rule(text, i)
            if hit and last == " ":
                out.pop()
                out.append(text[i])
                last = "" if skip else text[i]
                i += 1 + skip
                continue
            out.append(text[i])
            last = text[i]
            i += 1
        text = "".join(out)
    return text


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from([" ", "'", ".", "?", "s", "m", "t", "re", "ve", "a", "ll", "  ", " ' "]), max_size=20),
       data=st.data())
def test_blanks_are_cleaned_in_a_stream_too(parts, data):
    text = "".join(parts)
    assert clean(text) == in_three_passes(text)
    t = vocabulary("bert-bge")
    ids = data.draw(st.lists(st.sampled_from([1005, 1055, 1056, 1012, 1029, 1010, 7592, 1049, 2128, 2310, 29527, 101, 100]), max_size=15))
    d = t.decoder()
    assert "".join(map(d.push, ids)) + d.flush() == t.decode(ids)
    assert t.decode(ids) == in_three_passes(b"".join(map(t.piece, ids)).decode().removeprefix(" "))


def test_lowercase_and_accents_are_the_files_choice(make):
    tokens = [*WORDPIECE, "▁A", "▁É", "▁cafe", "▁café"]
    kept = make(wordpiece_keys(tokens, low=kv(T + "normalizer.lowercase", BOOL, 0)))
    assert kept.encode("A a É é", **PLAIN) == [16, 5, 17, 12]
    both = make(wordpiece_keys(tokens, low=kv(T + "normalizer.lowercase", BOOL, 0), acc=kv(T + "normalizer.strip_accents", BOOL, 1)))
    assert both.encode("A É é café", **PLAIN) == [16, 1, 13, 18]
    accents = make(wordpiece_keys(tokens, acc=kv(T + "normalizer.strip_accents", BOOL, 0)))
    assert accents.encode("A CAFÉ", **PLAIN) == [5, 19]
    assert make(wordpiece_keys(tokens)).encode("A CAFÉ", **PLAIN) == [5, 18]
    with pytest.raises(GGUFError, match="normalizer.lowercase"):
        make(wordpiece_keys(low=kv(T + "normalizer.lowercase", U8, 1)))


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.text("▁abé", min_size=1, max_size=5), min_size=1, max_size=25, unique=True),
       texts=st.lists(st.text("abé ", max_size=30), min_size=1, max_size=6))
def test_wordpiece_is_greedy(make, tokens, texts):
    have = {t: i for i, t in enumerate([*WORDPIECE[:5], *tokens]) if i > 4}
    t = make(wordpiece_keys([*WORDPIECE[:5], *tokens], acc=kv(T + "normalizer.strip_accents", BOOL, 0)))
    for text in texts:
        expected = []
        for word in text.split():
            word, found = "▁" + word, []
            while word:
                hit = max((t for t in have if word.startswith(t)), key=len, default=None)
                if hit is None:
                    found = [1]
                    break
                found.append(have[hit])
                word = word[len(hit):]
            expected += found
        assert t.encode(text, **PLAIN) == expected


def test_characters_are_those_of_unicode_15_1():
    import unicodedata

    version = tuple(map(int, unicodedata.unidata_version.split(".")))
    tables = ("M", characters.MARKS), ("P", characters.PUNCTUATION), ("C", characters.CONTROLS)
    differ = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        for letter, table in tables:
            if bool(characters.is_in(table, code)) != (category[0] == letter and category != "Cn"):
                differ.append((code, category))
    if version < (15, 1):
        assert all(category == "Cn" for _, category in differ)
    elif version < (16,):
        assert not differ
    else:  # what came later is unknown to the tables
        assert not any(characters.is_in(table, code) for code, _ in differ for _, table in tables)
    assert "".join(chr(characters.lower(ord(c))) for c in "AÉİΣДⰯꟀ𐕰") == "aéiσдⱟꟁ𐖗"
    assert [chr(characters.base(ord(c))) for c in "éṩ한a"] == ["e", "s", "\u1112", "a"]
    assert characters.lower(0x10D50) == 0x10D50  # of Unicode 16: left alone


# --- unigram ---------------------------------------------------------------------------------------------------


def total(sp, ids):
    return sum(sp.get_score(i) for i in ids)


def check_library(t, sp, text):
    """The library's sums are floats: where two ways are equally good, it may take the other one."""
    ours, theirs = t.encode(text, **PLAIN), sp.EncodeAsIds(text)
    if ours != theirs:
        assert sp.DecodeIds(ours) == sp.DecodeIds(theirs), text
        assert ours.count(2) == theirs.count(2) and abs(total(sp, ours) - total(sp, theirs)) < 1e-5 * len(text) + 1e-4, text


SHAPES = {"t5": {}, "not merged": dict(merge=False), "bare": dict(merge=False, prefix=False, rule="identity"),
          "merged, no blank in front": dict(prefix=False), "bytes": dict(bytes_=True, size=800), "cased": dict(rule="nmt_nfkc_cf")}


@pytest.mark.parametrize("shape", SHAPES)
def test_unigram_equals_the_library(make, shape):
    t = make(unigram_keys(**SHAPES[shape])[0])
    sp, _ = trained(**SHAPES[shape])
    for text in strings(400, 11, [sp.id_to_piece(i) for i in range(sp.vocab_size())]):
        check_library(t, sp, text)
    for text in ("", " ", "  ", "\x15", "a", " a", "a ", "  a   b  ", "ﷺ", "①Ａ", "▁", "▁a", "\ufffd", "日本語"):
        check_library(t, sp, text)


def test_unigram_without_closing_or_with(unigram):
    assert (unigram.bos, unigram.eos, unigram.pad, unigram.unk) == (None, 1, 0, 2)
    assert (unigram.add_bos, unigram.add_eos, unigram.end_ids) == (False, True, {1})
    assert unigram.encode("")[-1] == 1 and unigram.encode("the mill")[-1] == 1
    ids = unigram.encode("the mill", add_eos=False)
    assert unigram.encode("the mill</s>", special=True) == [*ids, 1] and unigram.decode(ids) == "the mill"
    with pytest.raises(TokenizerError, match="add_bos"):
        unigram.encode("x", add_bos=True)
    assert unigram.encode(" of", continued=True, **PLAIN) == unigram.encode("of", **PLAIN)


def test_user_defined_tokens_of_unigram(make):
    more = [("{x}", -1000.0, 4), ("<extra>", 0.0, 3)]
    t = make(unigram_keys(more=more)[0])
    n = t.n_vocab
    front, rest = t.encode("the", **PLAIN), t.encode("mill", **PLAIN)
    assert t.encode("the {x} mill", **PLAIN) == [*front, n - 2, *rest] == t.encode("the{x}mill", **PLAIN)
    assert n - 1 not in t.encode("the <extra> mill", **PLAIN)
    assert t.encode("the <extra> mill", special=True, **PLAIN) == [*front, n - 1, *rest]


def naive_unigram(pieces, text, unk_score):
    best = [(0.0, [])] + [None] * len(text)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            score = pieces.get(text[start:end], (unk_score, None) if end == start + 1 else None)
            if score is not None and (best[end] is None or best[start][0] + score[0] > best[end][0]):
                best[end] = best[start][0] + score[0], [*best[start][1], score[1]]
    ids = best[-1][1]
    return [2 if i is None else i for k, i in enumerate(ids) if i is not None or k == 0 or ids[k - 1] is not None]


@settings(max_examples=200, deadline=None)
@given(pieces=st.dictionaries(st.text("abé", min_size=1, max_size=5), st.integers(-40, 0), min_size=1, max_size=20),
       texts=st.lists(st.text("abcé漢", max_size=30), min_size=1, max_size=6))
def test_unigram_is_the_best_sum(make, pieces, texts):
    tokens = ["<pad>", "</s>", "<unk>", *pieces]
    keys = {"model": kv(T + "model", STRING, "t5"), "tokens": kv_array(T + "tokens", STRING, tokens),
            "scores": kv_array(T + "scores", F32, [0.0] * 3 + [s / 4 for s in pieces.values()]),
            "token_type": kv_array(T + "token_type", I32, [3, 3, 2] + [1] * len(pieces))}
    t = make(keys)
    scored = {p: (s / 4, i + 3) for i, (p, s) in enumerate(pieces.items())}
    for text in texts:
        assert t.encode(text, **PLAIN) == naive_unigram(scored, text, min(pieces.values()) / 4 - 10), text


# --- RWKV --------------------------------------------------------------------------------------------------------


def trie_encode(tokens, raw):
    """The published tokenizer in ten lines: a trie of dicts, the longest token at each place."""
    root = {}
    for i, token in enumerate(tokens):
        node = root
        for b in token:
            node = node.setdefault(b, {})
        node[None] = i + 1
    at = 0
    while at < len(raw):
        node, k = root, at
        while k < len(raw) and raw[k] in node:
            node, k = node[raw[k]], k + 1
            if None in node:
                best = node[None], k
        yield best[0]
        at = best[1]


def test_world_equals_a_trie(world):
    tokens = world_tokens()
    for text in strings(150, 12, [t.decode("utf-8", "replace") for t in tokens]):
        assert world.encode(text) == list(trie_encode(tokens, text.encode())), text


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=60))
def test_world_keeps_every_byte(world, raw):  # 77
    assert b"".join(map(world.piece, world.encode(raw))) == raw


def test_special_tokens_of_the_world(world):
    assert (world.bos, world.eos, world.add_bos, world.add_eos, world.unk) == (0, 0, False, False, None)
    assert world.piece(world.eot) == b"\n\n" and world.end_ids == {0, world.eot}
    assert world.encode("<s>", special=True) == [0] != world.encode("<s>")
    last = f"[PAD{world.n_vocab - 1}]"
    assert world.n_vocab - 1 not in world.encode(last) and world.decode(world.encode(last)) == last


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=20))
def test_escaped_texts_are_read_back(raw):
    assert unescaped(escaped(raw).encode()) == raw


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.sampled_from([b"\\", b"x", b"4", b"g", b"n", b"q", b"'", b"\xe6", b"\\x41", b"\\\\"]), max_size=8).map(b"".join))
def test_escapes_are_read_strictly(text):  # 64
    """All that a converter writes and nothing else: Python's own reading of what it accepts without a warning."""
    import ast

    raw = unescaped(text)
    if raw is not None:
        body = text.decode("latin-1").replace('\\"', '"').replace('"', '\\"')
        assert raw == ast.literal_eval(f'"{body}"').encode("latin-1")
    else:
        ends = text.replace(b"\\\\", b"")
        assert b"\\" in ends


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x4", "\\xg0", "a\\", "\\x", "\\X41", "\\u0041", "\\x-1"])
def test_a_bad_escape_is_refused(make, text):  # 64
    keys, n = world_keys()
    tokens = ["<s>", *map(escaped, world_tokens()), text]
    keys |= {"tokens": kv_array(T + "tokens", STRING, tokens), "token_type": kv_array(T + "token_type", I32, [3] + [1] * (len(tokens) - 1))}
    with pytest.raises(TokenizerError, match=f"token {len(tokens) - 1} is .*expected"):
        make(keys)
    assert make(keys, build=False).piece(len(tokens) - 1) == text.encode()


def test_every_byte_of_the_world_is_a_token(make):  # 65
    with pytest.raises(TokenizerError, match="2 of the 256 bytes are no tokens, the first is 0x07"):
        make(world_keys([bytes((b,)) for b in range(256) if b not in (7, 200)])[0])


# --- PLaMo-2 -------------------------------------------------------------------------------------------------------


def naive_plamo(scores, byte_ids, text):
    best = [None] * len(text) + [(0, [])]
    for i in range(len(text) - 1, -1, -1):
        for end in range(len(text), i, -1):
            hit = scores.get(text[i:end])
            if hit and (best[i] is None or best[end][0] + hit[0] > best[i][0]):
                best[i] = best[end][0] + hit[0], [hit[1], *best[end][1]]
        if best[i] is None or best[i + 1][0] - 10**7 > best[i][0]:
            best[i] = best[i + 1][0] - 10**7, [*(byte_ids[b] for b in text[i].encode()), *best[i + 1][1]]
    return best[0][1]


def test_plamo_equals_a_table(plamo):
    v = plamo._vocabulary
    raw = memoryview(bytes(v.scores())).cast("f")
    scores = {v.tokens[i].decode(): (round(raw[i] * 1e4), i) for i in range(v.n) if v.types[i] == 1}
    pieces = list(scores)
    for text in strings(120, 13, pieces * 3):
        assert plamo.encode(text) == naive_plamo(scores, v.byte_ids(), text.removeprefix("\ufeff")), text


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=60))
def test_plamo_keeps_every_byte(plamo, raw):  # 77
    raw = raw.removeprefix("\ufeff".encode())
    assert b"".join(map(plamo.piece, plamo.encode(raw))) == raw


def test_special_tokens_of_plamo(plamo):
    assert (plamo.unk, plamo.bos, plamo.eos, plamo.pad, plamo.add_bos, plamo.end_ids) == (0, 1, 2, 3, False, {2})
    assert plamo.encode("\ufeff\ufeff") == [4 + b for b in "\ufeff".encode()]


# --- blanks beside added tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", [("jina-v2-de", "bert", ""), ("jina-v2-code", "bert", ""), ("roberta-bpe", "bert", ""),
                                   ("modern-bert", "modern-bert", ""), ("gpt-2", "x", "ModernBERT-base"), ("gpt-2", "x", "y")])
def test_mask_takes_the_blanks_before_it(make, front):
    from test_tokenizer_faults import BPE_TOKENS, BPE_TYPES, bpe_keys

    pre, arch, name = front
    keys = bpe_keys(BPE_TOKENS + ["<mask>", "[MASK]"], BPE_TYPES + [3, 3], pre=kv(T + "pre", STRING, pre))
    t = make(keys, front=[kv("general.architecture", STRING, arch), kv("general.name", STRING, name)])
    ab, blanks = t.encode("ab"), t.encode("ab \t")
    angled, square = (t.encode(f"ab \t{m} ab", special=True) for m in ("<mask>", "[MASK]"))
    assert (angled[0:len(blanks)] == blanks, square[0:len(blanks)] == blanks) == (pre not in ("jina-v2-de", "jina-v2-code", "roberta-bpe"),
                                                                                  "odern" not in pre + name)
    assert angled[-len(t.encode(" ab")):] == t.encode(" ab") and angled[:len(ab)] == ab


def test_mask_of_xlm_roberta(make):
    t = make(unigram_keys(more=[("<mask>", 0.0, 3)])[0])
    assert t.encode("the <mask>", special=True, **PLAIN) == [*t.encode("the", **PLAIN), t.n_vocab - 1]


def test_phi3_takes_blanks_after_user_defined_tokens_too():
    t = vocabulary("phi-3")
    assert t.kind(2) == "user_defined"
    for special in (False, True):
        assert t.encode("a</s> \n b", special=special) == t.encode("a</s>b", special=special)


# --- broken files ----------------------------------------------------------------------------------------------------------


def test_a_vocabulary_of_another_kind_is_refused(make):  # 69
    from test_tokenizer_faults import bpe_keys, spm_keys

    for keys in (spm_keys, bpe_keys):
        for kind in ("bert", "t5", "rwkv", "plamo2"):
            with pytest.raises((GGUFError, TokenizerError), match="tokenizer.ggml"):
                t = make(keys(model=kv(T + "model", STRING, kind)))
                assert kind == "t5" and keys is spm_keys and t.encode("ab", **PLAIN)  # has all that a unigram vocabulary has
                raise TokenizerError("tokenizer.ggml")
    for without in ("unknown", "cls", "seperator"):
        with pytest.raises(TokenizerError, match="tokenizer.ggml"):
            make(wordpiece_keys(**{without: None}))


def test_usual_ids_where_the_file_names_none(make):
    tokens = ["[PAD]", *(f"[unused{i}]" for i in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a"]
    keys = wordpiece_keys(tokens, [3] * 104 + [1])
    t = make({k: v for k, v in keys.items() if k in ("model", "tokens", "token_type")})
    assert t.encode("a b") == [101, 104, 100, 102] and (t.pad, t.mask) == (0, 103)


def test_added_tokens_that_are_not_there(make):  # 68
    keys, _ = unigram_keys()
    for name in ("bos", "sep"):
        with pytest.raises(GGUFError, match=f"add_{name}_token"):
            make(keys | {"add": kv(T + f"add_{name}_token", BOOL, 1)})
    with pytest.raises(TokenizerError, match="add_eos_token"):
        make(keys | {"eos": None, "tokens": kv_array(T + "tokens", STRING, ["a", "b", "<unk>"]),
                     "scores": kv_array(T + "scores", F32, [0.0] * 3), "token_type": kv_array(T + "token_type", I32, [1, 1, 2])})
    assert make(keys | {"add": kv(T + "add_eos_token", BOOL, 0)}).encode("the", add_bos=False)[-1] != 1


def test_vocabularies_without_what_they_need(make):  # 65, 60
    keys, n = unigram_keys()
    with pytest.raises(TokenizerError, match="unknown token"):
        make(keys | {"unknown": None, "token_type": kv_array(T + "token_type", I32, [1] * n), "tokens": kv_array(
            T + "tokens", STRING, ["<pad>", "</s>", *map(str, range(n - 2))])})
    with pytest.raises(TokenizerError, match="no normal token"):
        make(keys | {"token_type": kv_array(T + "token_type", I32, [3, 3, 2] + [4] * (n - 3))})
    with pytest.raises(TokenizerError, match="byte token"):
        make(keys | {"token_type": kv_array(T + "token_type", I32, [3, 3, 2, 6] + [1] * (n - 4))})
    with pytest.raises(GGUFError, match="scores"):
        make(keys | {"scores": kv_array(T + "scores", F32, [0.0] * 5)})
    with pytest.raises(GGUFError, match="scores"):
        make(plamo_keys()[0] | {"scores": None})


@pytest.mark.parametrize("keys", [lambda: unigram_keys(more=[("▁the", -3.0, 1)])[0], lambda: wordpiece_keys([*WORDPIECE, "▁a"]),
                                  lambda: world_keys([*world_tokens(), b"a"])[0]])
def test_equal_texts(make, keys):  # 62
    with pytest.warns(UserWarning, match="earlier one"):
        t = make(keys())
    assert t.n_vocab - 6 > max(t.encode("a the", **PLAIN)) or t.model != "rwkv"
    assert t.encode("a", **PLAIN) != [t.n_vocab - 1]


def reach(blob, raw):
    """A walk through a charsmap with every index checked by Python: does any text of raw's bytes leave it?"""
    size = struct.unpack_from("<I", blob)[0]
    units = struct.unpack_from(f"<{size // 4}I", blob, 4)
    at = (units[0] >> 10) << ((units[0] & 512) >> 6)
    for b in raw:
        at ^= b
        if at >= len(units) or units[at] & 0x800000FF != b:
            return
        at ^= (units[at] >> 10) << ((units[at] & 512) >> 6)


BAD_MAPS = {"2 bytes": b"\0\0", "3 bytes": b"\0" * 3, "size alone": struct.pack("<I", 0), "0xFF": struct.pack("<I", 4096) + b"\xff" * 8192,
            "size beyond": struct.pack("<I", 4096) + bytes(4095), "size 5": struct.pack("<I", 5) + bytes(20),
            "size 2^32-4": struct.pack("<I", 2**32 - 4) + bytes(100), "no strings": struct.pack("<I", 8) + bytes(8),
            "unterminated": struct.pack("<I", 8) + bytes(8) + b"abc"}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_bad_charsmaps_are_refused(make, name):  # 71
    keys, _ = unigram_keys()
    with pytest.raises(GGUFError, match="precompiled_charsmap: found sizes") as e:
        make(keys | {"charsmap": kv_array(T + "precompiled_charsmap", U8, BAD_MAPS[name])})
    assert e.value.key == T + "precompiled_charsmap"


def test_charsmaps_of_other_types(make):  # 71
    keys, _ = unigram_keys()
    good = charsmap(trained()[1])
    for entry in (kv(T + "precompiled_charsmap", STRING, "abc"), kv(T + "precompiled_charsmap", U32, 1),
                  kv_array(T + "precompiled_charsmap", U16, [1] * 100)):
        with pytest.raises(GGUFError, match="precompiled_charsmap"):
            make(keys | {"charsmap": entry})
    signed = kv_array(T + "precompiled_charsmap", I8, [b - 256 if b > 127 else b for b in good])
    assert make(keys | {"charsmap": signed}).encode("①Ａ the") == make(keys).encode("①Ａ the")
    bare = make(keys | {"charsmap": kv_array(T + "precompiled_charsmap", U8, b"")})
    assert bare.encode("the") == make(keys).encode("the") and bare.encode("Ｔｈｅ") != make(keys).encode("Ｔｈｅ")


def tiny_map(keys, strings_):
    """A double array in which unit 256 * k + c is the child by c of state k, and its value lies at 256 * (k + 1)."""
    states = 1 + max((k for k, _, _, _ in keys), default=0)
    units = [0] * (256 * (states + 4))
    units[0] = 1 << 10 << 8 >> 8 if False else 256 << 10
    for state, c, to, value in keys:
        at = (256 * (state + 1)) ^ c
        base = (256 * (to + 1)) ^ at
        units[at] = base << 10 | (value is not None) << 8 | c
        if value is not None:
            units[256 * (to + 1)] = 1 << 31 | value
    raw = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(raw)) + raw + strings_


def test_charsmaps_that_lead_astray(make):  # 71
    keys, _ = unigram_keys()

    def with_map(blob):
        return make(keys | {"charsmap": kv_array(T + "precompiled_charsmap", U8, blob)})

    good = with_map(tiny_map([(0, ord("q"), 1, 0)], b"the\0"))
    assert good.encode("q", **PLAIN) == good.encode("the", **PLAIN)
    with pytest.raises(GGUFError, match="a replacement beyond its end"):
        with_map(tiny_map([(0, ord("q"), 1, 4)], b"the\0"))
    with pytest.raises(GGUFError, match="a key longer than 64 bytes or one without an end"):
        with_map(tiny_map([(0, ord("q"), 0, None)], b"the\0"))
    with pytest.raises(GGUFError, match="a key longer than 64 bytes"):
        with_map(tiny_map([(i, ord("q"), i + 1, 0 if i == 64 else None) for i in range(65)], b"\0"))
    long = with_map(tiny_map([(i, ord("q"), i + 1, 0 if i == 63 else None) for i in range(64)], b"\0"))
    assert long.encode("q" * 64 + "the", **PLAIN) == long.encode("the", **PLAIN)
    greedy = with_map(tiny_map([(0, ord("q"), 1, 0)], b"x" * 1000 + b"\0"))
    with pytest.raises(TokenizerError, match="makes 100000.* bytes of 1000, expected at most 16 of each"):
        greedy.encode("q" * 1000)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_charsmaps(make, data):  # 71
    """Refused, or sound: a walk over any bytes stays inside, and encoding ends."""
    blob = bytearray(tiny_map([(0, 97, 1, 0), (1, 98, 2, 2), (2, 97, 3, 4)], b"q\0r\0s\0"))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(blob) - 1) | st.sampled_from([0, 1, 2, 3, 4 + 4 * 256 + 4 * 97, 4 + 4 * (256 ^ 97) + 1]))
        blob[at] = data.draw(st.integers(0, 255))
    raw = data.draw(st.lists(st.sampled_from(b"ab\x01\xff"), max_size=80).map(bytes))
    try:
        t = make(unigram_keys()[0] | {"charsmap": kv_array(T + "precompiled_charsmap", U8, bytes(blob))})
    except GGUFError as e:
        assert "precompiled_charsmap" in str(e)
    else:
        reach(bytes(blob), raw)
        try:
            t.encode(raw)
        except TokenizerError as e:
            assert "expected at most 16 of each" in str(e)


def test_tokens_that_begin_with_one_another_are_bounded(make):  # 74
    nested = ["a" * i for i in range(1, 300)]
    with pytest.raises(TokenizerError, match="299 tokens begin with one another, expected at most 256"):
        make(wordpiece_keys([*WORDPIECE[:5], *nested]))
    with pytest.raises(TokenizerError, match="tokens end with one another"):
        make(unigram_keys(more=[(t, -5.0, 1) for t in nested[20:]])[0])


# --- padding (case 16) ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "llama", "gpt2"])
def test_padding_is_never_sampled(tmp_path, kind):
    """Tokens that only fill the list up, and rows of the head without a token."""
    from test_tokenizer_faults import BPE_TOKENS, BPE_TYPES, SPM_TOKENS, SPM_TYPES, bpe_keys, spm_keys

    if kind == "bert":
        n = len(WORDPIECE)
        keys = wordpiece_keys([*WORDPIECE, f"[PAD{n}]", f"[PAD{n + 1}]"], [3] * 5 + [1] * (n - 5) + [5, 5])
    elif kind == "t5":
        n = trained()[0].vocab_size()
        keys = unigram_keys(more=[(f"[PAD{n}]", -1000.0, 5), (f"[PAD{n + 1}]", -1000.0, 5)])[0]
    elif kind == "rwkv":
        keys, n = world_keys(padding=2)
        n -= 2
    elif kind == "plamo2":
        keys, n = plamo_keys()
    elif kind == "llama":
        n = len(SPM_TOKENS)
        keys = spm_keys([*SPM_TOKENS, f"[PAD{n}]", f"[PAD{n + 1}]"], [*SPM_TYPES, 2, 5])
    else:
        n = len(BPE_TOKENS)
        keys = bpe_keys([*BPE_TOKENS, f"[PAD{n}]", f"[PAD{n + 1}]"], [*BPE_TYPES, 5, 5])
    path = model(tmp_path / "m.gguf", list(keys.values()), n + 10)
    with Llama(path) as llm:
        assert llm.tokenizer.n_sampled == n and llm.n_vocab == (n if kind == "plamo2" else n + 2)

        def prefer(ids, logits):
            logits[n:] = 1000.0

        for more in (dict(temperature=0.0), dict(temperature=1.0, top_k=0)):
            c = llm.generate([5], max_tokens=12, processors=[prefer], ignore_eos=True, seed=1, **more)
            assert len(c.tokens) == 12 and max(c.tokens) < n


def test_padding_is_only_what_stands_at_the_end(make):
    n = len(WORDPIECE)
    for last, types, expected in (([f"[PAD{n}]", "▁x"], [5, 1], n + 2), ([f"[PAD{n}]"], [1], n + 1), ([f"[PAD{n + 1}]"], [5], n + 1),
                                  ([f"[PAD{n}]"], [3], n)):
        t = make(wordpiece_keys([*WORDPIECE, *last], [3] * 5 + [1] * (n - 5) + types))
        assert t.n_sampled == expected


# --- hostile texts -------------------------------------------------------------------------------------------------------------

MEGABYTE = 1_000_000
RUNS = ["a", "é", "漢", " ", "a ", "\u0301", "🦙", ".", "##ing", "[MASK", "▁", "ﷺ", "\x00", "'", "7", "한", "the", " '", "<s"]


def check_speed(t, texts):
    for unit in texts:
        text = unit * (MEGABYTE // len(unit.encode()))
        start = time.process_time()
        ids = t.encode(text, special=True)
        seconds = time.process_time() - start
        assert seconds < 1.0, (t.model, unit[:20], seconds)
        if t.model in ("rwkv", "plamo2"):
            assert b"".join(map(t.piece, ids)) == text.encode()


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2"])
def test_hostile_texts_take_less_than_a_second_per_megabyte(make, kind, request):  # 73, 74
    t = vocabulary("bert-bge") if kind == "bert" else request.getfixturevalue({"t5": "unigram", "rwkv": "world"}.get(kind, kind))
    t.encode("x")
    longest = max((t.piece(i).decode("utf-8", "ignore") for i in range(t.n_vocab)), key=len)
    check_speed(t, [*RUNS, longest[:-1], longest])


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2"])
def test_hostile_vocabularies_do_not_slow_texts_down(make, kind):  # 74
    """A token of 64 KB that the text almost has at each place, and as many nested ones as are allowed."""
    long = "a" * 65535 + "b"
    nested = ["a" * i for i in range(2, 250)]
    if kind == "bert":
        keys = wordpiece_keys([*WORDPIECE, *nested, long])
    elif kind == "t5":
        keys = unigram_keys(more=[(t, -5.0, 1) for t in [*nested, "b" + "a" * 65535]])[0]
    elif kind == "rwkv":
        keys = world_keys([*(bytes((b,)) for b in range(256)), *(t.encode() for t in nested), long.encode()])[0]
    else:
        keys, n = plamo_keys()
        tokens = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", *(f"<0x{b:02X}>" for b in range(256)), *nested, long]
        keys |= {"tokens": kv_array(T + "tokens", STRING, tokens), "scores": kv_array(T + "scores", F32, [-1.0] * len(tokens)),
                 "token_type": kv_array(T + "token_type", I32, [2, 3, 3, 3] + [6] * 256 + [1] * (len(nested) + 1))}
    check_speed(make(keys), ["a", "a" * 65534 + "c"])


# --- llama.cpp's /tokenize -----------------------------------------------------------------------------------------------------


def check_llama(tmp_path, kind, n, seed):
    from vocab_models import oracle, texts_of, wrap

    pytest.importorskip("xllamacpp")
    if kind == "bert":
        vocabulary("bert-bge")
        from test_tokenizer import VOCAB

        path = wrap(VOCAB / "ggml-vocab-bert-bge.gguf", tmp_path)
    else:
        keys, size = {"t5": lambda: unigram_keys(more=[("{x}", 0.0, 4), ("{y}", -1000.0, 4), ("<z>", 0.0, 3)]),
                      "bare": lambda: unigram_keys(merge=False, prefix=False, rule="identity"),
                      "rwkv": world_keys, "plamo2": plamo_keys}[kind]()
        path = model(tmp_path / f"{kind}.gguf", list(keys.values()), size)
    t = tokenizer.load(GGUF(path))
    # llama.cpp makes control and padding tokens of texts that look like them in these two, asked for or not
    never = ("<s>", "[PAD", "<|plamo:") if kind in ("rwkv", "plamo2") else ()
    with oracle(path) as theirs:
        for k, text in enumerate(strings(n, seed, texts_of(t))):
            special = k % 2 == 0
            if special or not any(x in text for x in never):
                assert t.encode(text, special=special, **PLAIN) == theirs(text, special), (special, text)
        if kind == "bert":
            assert theirs("a b", True, True) == t.encode("a b")
            assert theirs("", True, True) == t.encode("")
        if kind == "t5":
            assert theirs("a b", True, True) == t.encode("a b")


LLAMA = ["bert", "t5", "bare", "rwkv", "plamo2"]


@pytest.mark.parametrize("kind", LLAMA)
def test_some_strings_against_llama_cpp(tmp_path, kind):
    check_llama(tmp_path, kind, 300, 21)


@pytest.mark.long
@pytest.mark.parametrize("kind", LLAMA)
def test_strings_against_llama_cpp(tmp_path, kind):
    check_llama(tmp_path, kind, 4000, 22)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", LLAMA)
def test_20_000_strings_against_llama_cpp(tmp_path, kind):
    check_llama(tmp_path, kind, 20_000, random.randrange(1 << 30))
