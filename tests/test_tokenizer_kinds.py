"""WordPiece, unigram, RWKV and PLaMo-2 vocabularies: published vectors, the libraries they come from, references of a few
lines. What is refused or bounded: test_tokenizer_kinds_faults.py."""
import itertools

import pytest
from faults_gguf import BOOL, F32, I32, STRING, U8, gguf, kv, kv_array
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import T, WORDPIECE, escaped, plamo_keys, trained, unigram_keys, wordpiece_keys, world_keys, world_tokens
from test_tokenizer import vectors, vocabulary
from vocab_models import strings

from pyengine import tokenizer
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
    assert t.decode([101, 7592, 102], special=True) == "[CLS]hello[SEP]"


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


@settings(max_examples=100, deadline=None)
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


@pytest.mark.long
def test_characters_are_those_of_unicode_15_1():
    import unicodedata

    version = tuple(map(int, unicodedata.unidata_version.split(".")))
    have = {"M": set(), "P": set(), "C": set()}
    for letter, table in (("M", characters.MARKS), ("P", characters.PUNCTUATION), ("C", characters.CONTROLS)):
        for first, end in zip(table[::2], table[1::2]):
            have[letter].update(range(first, end))
        assert all(characters.is_in(table, c) == (c in have[letter]) for c in range(0x2100))
    known = {"M": set(), "P": set(), "C": set()}
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category[0] in known and category != "Cn" and not (category == "Cc" and chr(code).isspace() and code not in range(0x1C, 0x20)):
            known[category[0]].add(code)
    differ = [(code, unicodedata.category(chr(code))) for letter in have for code in have[letter] ^ known[letter]]
    if version < (15, 1):
        assert all(category == "Cn" for _, category in differ)
    elif version < (16,):
        assert not differ
    else:  # what came later is unknown to the tables
        assert not any(code in have[letter] for code, _ in differ for letter in have)
    for code in range(0x110000):  # one table says what they say together
        k = characters.kind(code)
        blank, gone = characters.is_in(characters.BLANKS, code), code in have["C"] or code == 0xFFFD
        alone = any(characters.is_in(t, code) for t in (characters.ASCII_SYMBOLS, characters.IDEOGRAPHS)) or code in have["P"]
        assert k == (1 if blank else 2 if gone else 3 if code in have["M"] else 4 if alone else 0), hex(code)
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


@settings(max_examples=100, deadline=None)
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


def trie(tokens):
    root = {}
    for i, token in enumerate(tokens):
        node = root
        for b in token:
            node = node.setdefault(b, {})
        node[None] = i + 1
    return root


def trie_encode(root, raw):
    """The published tokenizer in a few lines: a trie of dicts, the longest token at each place."""
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
    root = trie(tokens)
    for text in strings(400, 12, [t.decode("utf-8", "replace") for t in tokens]):
        assert world.encode(text) == list(trie_encode(root, text.encode())), text


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=60))
def test_plamo_keeps_every_byte(plamo, raw):  # 77
    raw = raw.removeprefix("\ufeff".encode())
    assert b"".join(map(plamo.piece, plamo.encode(raw))) == raw


def test_special_tokens_of_plamo(plamo):
    assert (plamo.unk, plamo.bos, plamo.eos, plamo.pad, plamo.add_bos, plamo.end_ids) == (0, 1, 2, 3, False, {2})
    assert plamo.encode("\ufeff\ufeff") == [4 + b for b in "\ufeff".encode()]


# --- Gemma 4's kind -------------------------------------------------------------------------------------------------------


def test_gemma4_is_bpe_of_characters(make):
    from test_tokenizer_llama import character_vocabulary

    same = dict(enumerate(character_vocabulary("gemma4")))
    named = same | {0: kv(T + "model", STRING, "gemma4"), 1: kv(T + "pre", STRING, "whatever")}
    t, u = make(named), make(same)
    assert (t.model, t.pre, t.add_bos) == ("gemma4", "gemma4", True)
    for text in ("hello the  World", "\n\n\n", "é🦙 漢字\x07", "ab\ufffd", ""):
        assert t.encode(text) == u.encode(text) and t.encode(text)[0] == t.bos
        assert t.decode(t.encode(text)) == text == u.decode(u.encode(text))
    assert t.piece(1 + 0x41) == b"A" and b" t" in {t.piece(i) for i in t.encode("the the")}
    with pytest.warns(UserWarning, match="add_bos_token: found false"):
        assert make(named | {"add": kv(T + "add_bos_token", BOOL, 0)}).encode("a")[0] == t.bos


def test_docs_name_every_kind_and_rule():
    from pathlib import Path

    from pyengine.tokenizer.pre import RULES

    doc = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    names = doc[doc.index("<!-- pre -->"):doc.index("<!-- end -->", doc.index("<!-- pre -->"))]
    assert names.split()[3:] == ", ".join(f"`{name}`" for name in sorted(RULES)).split()
    assert all(f"\n| `{model}` |" in doc for model in tokenizer.MODELS)


# --- blanks beside added tokens ------------------------------------------------------------------


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
