"""Broken vocabularies and hostile texts (faults 59 to 77) of sentencepiece and BPE; test_tokenizer_kinds.py has the rest."""
import itertools
import pathlib
import time
import warnings

import pytest
from faults_gguf import BOOL, F32, F64, I8, I32, STRING, U8, U32, gguf, kv, kv_array
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine import tokenizer
from pyengine.errors import GGUFError, TokenizerError, UnsupportedError
from pyengine.gguf import GGUF
from pyengine.tokenizer.bpe import ALPHABET
from pyengine.tokenizer.control import ControlTokens
from pyengine.tokenizer.pre import OF_CHARACTERS, RULES
from pyengine.tokenizer.rules import splitter

T = "tokenizer.ggml."
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "ab", "▁ab", "<|x|>", "  "]
SPM_TYPES = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 3, 4]
BPE_TOKENS = ["<|end|>", *ALPHABET.values(), "ab", "Ġab", "<tag>"]
BPE_TYPES = [3, *[1] * 256, 1, 1, 4]
MERGES = ["a b", "Ġ ab"]


def spm_keys(tokens=SPM_TOKENS, types=SPM_TYPES, scores=None, **more):
    scores = [float(-i) for i in range(len(tokens))] if scores is None else scores
    keys = {"model": kv(T + "model", STRING, "llama"), "tokens": kv_array(T + "tokens", STRING, tokens),
            "scores": kv_array(T + "scores", F32, scores), "token_type": kv_array(T + "token_type", I32, types),
            "bos_token_id": kv(T + "bos_token_id", U32, 1), "eos_token_id": kv(T + "eos_token_id", U32, 2)}
    return {**keys, **more}


def bpe_keys(tokens=BPE_TOKENS, types=BPE_TYPES, merges=MERGES, **more):
    keys = {"model": kv(T + "model", STRING, "gpt2"), "pre": kv(T + "pre", STRING, "gpt-2"),
            "tokens": kv_array(T + "tokens", STRING, tokens), "token_type": kv_array(T + "token_type", I32, types),
            "merges": kv_array(T + "merges", STRING, merges), "eos_token_id": kv(T + "eos_token_id", U32, 0)}
    return {**keys, **more}


@pytest.fixture
def make(tmp_path):
    number = itertools.count()

    def make(keys, build=True):
        path = tmp_path / f"{next(number)}.gguf"
        path.write_bytes(gguf([k for k in keys.values() if k is not None]))
        t = tokenizer.load(GGUF(path))
        if build:
            t.encode("ab")
        return t

    return make


def test_the_good_ones(make):
    t = make(spm_keys())
    assert t.encode("ab b", add_bos=False) == [263, 259, 261] and t.encode("x", add_bos=False) == [259, 3 + ord("x")]
    assert t.encode("a  b<|x|>", special=True) == [1, 259, 260, 265, 261, 264]
    assert (t.unk, t.bos, t.eos, t.end_ids) == (0, 1, 2, {2})
    t = make(bpe_keys())
    assert t.encode("ab ab<tag>") == [257, 258, 259] and t.decode([257, 258, 259]) == "ab ab<tag>"
    assert t.encode("<|end|>") != [0] == t.encode("<|end|>", special=True)


WRONG_ARRAYS = {
    "tokens missing": {"tokens": None},
    "tokens empty": {"tokens": kv_array(T + "tokens", STRING, [])},
    "tokens a string": {"tokens": kv(T + "tokens", STRING, "abc")},
    "tokens numbers": {"tokens": kv_array(T + "tokens", I32, [1, 2, 3])},
    "types too few": {"token_type": kv_array(T + "token_type", I32, [1] * 5)},
    "types too many": {"token_type": kv_array(T + "token_type", I32, [1] * 999)},
    "types floats": {"token_type": kv_array(T + "token_type", F32, [1.0] * 266)},
    "types a number": {"token_type": kv(T + "token_type", I32, 1)},
    "type 7": {"token_type": kv_array(T + "token_type", I32, [7] * 266)},
    "type -1": {"token_type": kv_array(T + "token_type", I32, [-1] * 266)},
    "type 2^31": {"token_type": kv_array(T + "token_type", U32, [2**31] * 266)},
    "bos a string": {"bos_token_id": kv(T + "bos_token_id", STRING, "1")},
    "bos a float": {"bos_token_id": kv(T + "bos_token_id", F32, 1.0)},
    "bos beyond": {"bos_token_id": kv(T + "bos_token_id", U32, 10**6)},
    "bos 2^32-1": {"bos_token_id": kv(T + "bos_token_id", U32, 2**32 - 1)},
    "bos negative": {"bos_token_id": kv(T + "bos_token_id", I32, -1)},
    "eos beyond": {"eos_token_id": kv(T + "eos_token_id", U32, 266)},
    "eot beyond": {"eot": kv(T + "eot_token_id", U32, 266)},
    "unk beyond": {"unk": kv(T + "unknown_token_id", U32, 266)},
    "pad beyond": {"pad": kv(T + "padding_token_id", I8, -2)},
    "add_bos a number": {"add_bos": kv(T + "add_bos_token", U32, 1)},
}


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_wrong_metadata_is_refused_at_load(make, name):  # 59, 60, 61, 67
    assert make(spm_keys()).n_vocab == 266
    with pytest.raises(GGUFError) as e:
        make(spm_keys() | WRONG_ARRAYS[name], build=False)
    assert e.value.key.startswith(T) and e.value.key in str(e.value)


@pytest.mark.parametrize("entry", [
    None, kv_array(T + "scores", F32, [0.0] * 5), kv_array(T + "scores", F32, [0.0] * 999),
    kv_array(T + "scores", U8, [0] * 266), kv_array(T + "scores", I32, [0] * 266), kv_array(T + "scores", F64, [0.0] * 266),
    kv(T + "scores", F32, 0.0), kv_array(T + "scores", STRING, ["0"] * 266),
    kv_array(T + "scores", F32, [0.0] * 265 + [float("nan")]), kv_array(T + "scores", F32, [float("inf")] * 266),
    kv_array(T + "scores", F32, [float("inf"), float("-inf")] * 133)])
def test_wrong_scores(make, entry):  # 60, 61
    with pytest.raises(GGUFError) as e:
        make(spm_keys() | {"scores": entry})
    assert e.value.key == T + "scores"


def test_narrow_types_are_widened(make):  # 61: a typed read, never four bytes of an array of single ones
    t = make(spm_keys(token_type=kv_array(T + "token_type", U8, SPM_TYPES)))
    assert t.kind(1) == "control" and t.kind(265) == "user_defined"


def test_equal_texts(make):  # 62
    with pytest.warns(UserWarning, match="earlier one"):
        t = make(spm_keys(SPM_TOKENS + ["ab", "ab"], SPM_TYPES + [1, 1]))
    assert t.encode("ab", add_bos=False) == [263] and t.encode("bab", add_bos=False)[-1] == 262
    assert t.piece(266) == t.piece(267) == b"ab"
    # a user-defined one with blanks and a normal one with U+2581 are equal to the library
    with pytest.warns(UserWarning, match="earlier one"):
        t = make(spm_keys(SPM_TOKENS + ["▁▁"], SPM_TYPES + [1]))
    assert t.encode("a  b", add_bos=False) == [259, 260, 265, 261]
    with pytest.warns(UserWarning, match="earlier one"):
        t = make(bpe_keys(BPE_TOKENS + ["ab"], BPE_TYPES + [1]))
    assert t.encode("ab") == [257] and t.piece(260) == b"ab"


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"a\x00b", b"\x00", b"z" * 65536, "\ufffd".encode(), b"\xe2\x96"])
@pytest.mark.parametrize("kind", [1, 3, 4, 5])
def test_odd_token_texts_are_bytes(make, text, kind):  # 63
    t = make(spm_keys(SPM_TOKENS + [text], SPM_TYPES + [kind]))
    assert t.piece(266, special=True) == text
    assert t.encode("ab", add_bos=False) == [263]
    assert t.decode(t.encode(text, add_bos=False)) == text.decode("utf-8", "replace")
    if text != b"\x00":
        t = make(bpe_keys(BPE_TOKENS + [text], BPE_TYPES + [kind]))
        assert t.piece(260, special=True) == text
        assert t.encode("ab") == [257]
        assert t.decode(t.encode("\ufffd z")) == "\ufffd z"


@pytest.mark.parametrize("keys", [spm_keys, bpe_keys])
def test_token_longer_than_64_k(make, keys):
    tokens, types = (SPM_TOKENS, SPM_TYPES) if keys is spm_keys else (BPE_TOKENS, BPE_TYPES)
    with pytest.raises(GGUFError, match="found 1048576 bytes for token"):
        make(keys(tokens + ["y" * (1 << 20)], types + [1]), build=False)


@pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0", "", "<0x000>", "<0x4>", "<0x41", "0x41", "<0xé>", "<0X41>",
                                  "<0x4a>"])
def test_byte_tokens_are_read_strictly(make, text):  # 64
    tokens = list(SPM_TOKENS)
    tokens[3 + 0x41] = text
    with pytest.raises(TokenizerError, match="byte token 68"):
        make(spm_keys(tokens))
    t = make(spm_keys(tokens), build=False)
    assert t.piece(68) == text.encode()


@pytest.mark.parametrize("without", [range(256), [0], [255], [10], range(128, 256)])
def test_byte_tokens_are_all_there(make, without):  # 65
    gone = {3 + b for b in without}
    tokens = [t for i, t in enumerate(SPM_TOKENS) if i not in gone]
    types = [t for i, t in enumerate(SPM_TYPES) if i not in gone]
    with pytest.raises(TokenizerError, match=f"{len(gone)} of the 256 byte tokens"):
        make(spm_keys(tokens, types))


def test_bpe_without_some_bytes(make):  # 65
    for gone in (ord("q"), ord(" ")):
        left = [t for t in BPE_TOKENS if t != ALPHABET[gone]]
        with pytest.raises(TokenizerError, match=f"no token for byte 0x{gone:02X}"):
            make(bpe_keys(left, BPE_TYPES[1:], merges=["a b"]))
    left = [t for t in BPE_TOKENS if t != ALPHABET[7]]
    t = make(bpe_keys(left, BPE_TYPES[:1] + BPE_TYPES[2:]))
    assert t.decode(t.encode("ab é")) == "ab é"
    with pytest.raises(TokenizerError, match="no token for byte 0x07"):
        t.encode("ring \a ring")


def test_add_bos_without_bos(make):  # 68
    for key in ("bos", "eos"):
        keys = bpe_keys(**{"add": kv(T + f"add_{key}_token", BOOL, 1), "eos_token_id": None})
        with pytest.raises(GGUFError, match=f"add_{key}_token"):
            make(keys)
    with pytest.raises(TokenizerError, match="add_bos"):
        make(bpe_keys()).encode("x", add_bos=True)


def test_ids_that_old_files_leave_out(make):
    t = make(spm_keys(bos_token_id=None, eos_token_id=None))
    assert (t.unk, t.bos, t.eos, t.add_bos) == (0, 1, 2, True)
    other = ["[UNK]", "[A]", "[B]", *SPM_TOKENS[3:]]
    t = make(spm_keys(other, bos_token_id=None, eos_token_id=None))
    assert (t.unk, t.bos, t.eos, t.add_bos) == (None, None, None, False)
    assert make(bpe_keys(eos_token_id=None)).eos is None


@pytest.mark.parametrize("model", ["hybriddna", "whitespace", "no-such", "", "x" * 1000])
def test_other_kinds_are_named(make, model):
    with pytest.raises(UnsupportedError) as e:
        make(spm_keys(model=kv(T + "model", STRING, model)))
    assert repr(model[:100]) in str(e.value) and "'llama'" in str(e.value) and len(str(e.value)) < 400
    for none in ("none", "no_vocab"):
        with pytest.raises(UnsupportedError, match=f"'{none}': the file has no vocabulary"):
            make({"model": kv(T + "model", STRING, none)})


@pytest.mark.parametrize("entry", [None, kv(T + "model", U32, 1), kv_array(T + "model", STRING, ["llama"])])
def test_model_missing_or_of_another_type(make, entry):
    with pytest.raises(GGUFError, match="tokenizer.ggml.model"):
        make(spm_keys(model=entry))


@pytest.mark.parametrize("merges", [
    None, [""], [" "], ["  "], ["a"], ["ab"], ["a  b"], [" a b"], ["a b "], ["a b c"], ["a b", "zz y"], ["a zz"],
    ["b a"], ["a b", "a b"], ["a b", "ab ab"], [b"\xff a"], ["a\x00 b"]])
def test_wrong_merges(make, merges):  # 70
    entry = None if merges is None else kv_array(T + "merges", STRING, merges)
    with pytest.raises(GGUFError) as e:
        make(bpe_keys() | {"merges": entry})
    assert e.value.key == T + "merges"


def test_merge_into_a_control_token(make):
    """Text must not become a control token, not even by merging."""
    tokens = BPE_TOKENS + ["ba"]
    with pytest.raises(GGUFError, match="merges"):
        make(bpe_keys(tokens, BPE_TYPES + [3], merges=["a b", "b a"]))


@pytest.mark.parametrize("pre", ["zzz", "", "GPT-2", "llama-bpe ", "x" * 5000])
def test_unknown_pre_tokenizer(make, pre):  # 72
    with pytest.raises(TokenizerError, match="unknown pre-tokenizer") as e:
        make(bpe_keys(pre=kv(T + "pre", STRING, pre)), build=False)
    assert "smollm" in str(e.value) and len(str(e.value)) < 3000


def test_pre_tokenizer_absent_or_default(make):  # case 10
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre is missing"):
        t = make(bpe_keys(pre=None))
    assert t.encode("ab ab") == [257, 258]
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre is 'default'"):
        assert make(bpe_keys(pre=kv(T + "pre", STRING, "default"))).encode("ab ab") == [257, 258]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(spm_keys(pre=kv(T + "pre", STRING, "default"))).n_vocab == 266  # as gemma-3 has it
        assert make(spm_keys()).n_vocab == 266  # no such key, no warning: not a thing of sentencepiece


@pytest.mark.parametrize("pre", sorted(set(RULES) - OF_CHARACTERS))
def test_every_pre_tokenizer_keeps_every_byte(make, pre):
    t = make(bpe_keys(pre=kv(T + "pre", STRING, pre)))
    text = "Hello  World\n\n 12345 don't DON'T ſ 'ſ ñandú ΑΒΓ кот 漢字かな 한국어 עברית हिन्दी 🦙 \t\r\n x=1;//  e\u0301 \u2028 \u3000。 "
    assert t.decode(t.encode(text)) == text
    assert t.decode(t.encode("  ")) == "  "


CHARACTERS = {"A": "A", "a": "a", "blank": " ", "newline": "\n", "return": "\r\n", "dot": ".", "digit": "7", "han": "漢",
              "mark": "\u0301", "emoji": "🦙", "apostrophe": "'", "mixed": "aA", "letters and blanks": "a ",
              "blanks and newlines": " \n", "slash": "/", "tab": "\t"}


EACH_RULE = sorted({RULES[name]: name for name in sorted(RULES) if name not in OF_CHARACTERS}.values())


def check_runs(t, n_bytes, tails):
    for c in CHARACTERS.values():
        text = c * (n_bytes // len(c.encode()))
        for tail in tails:
            ids = t.encode(text + tail)
            assert b"".join(map(t.piece, ids)).decode() == text + tail


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pre", EACH_RULE)
def test_long_runs(make, pre):  # 73, 74: a hang ends by the timeout; a quadratic rule needed 20 s for these
    check_runs(make(bpe_keys(pre=kv(T + "pre", STRING, pre))), 40_000, "x")


HOSTILE = {**CHARACTERS, "contractions": "'s", "no-break": "\u00a0", "em spaces": "\u2003 ", "joiner": "\u200d", "vowel sign": "हि", "digit, blank": "1 ",
           "letter, digit": "a1", "511 blanks": " " * 511 + "x", "letter, mark": "a\u0301", "nul": "\0", "private": "\ue000",
           "sentinel": "<sentinel:1", "image": "IMGIMGA", "one of several": "\r\n "}


def check_seconds(t, n):
    """Every hostile text of n bytes takes less than a second a megabyte, of this thread's own time."""
    longest = max((t.piece(i) for i in range(t.n_vocab)), key=len).decode("utf-8", "replace")
    texts = {**HOSTILE, "longest token": longest, "all but its end": longest[:-1]}
    for name, unit in texts.items():
        for end in ("", "x", "\n"):
            text = unit * (n // len(unit.encode())) + end
            start = time.thread_time()
            ids = t.encode(text, add_bos=False)
            seconds = time.thread_time() - start
            assert seconds < n / 1e6, (name, end, seconds)
            if not end:
                assert t.decode(ids) == text


@pytest.fixture(scope="module")
def llama3():
    path = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "vocab" / "ggml-vocab-llama-bpe.gguf"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    t = tokenizer.load(GGUF(path))
    t.encode("a")
    return t


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pre", EACH_RULE)
def test_a_megabyte_takes_less_than_a_second(llama3, pre, monkeypatch):  # 73, 74: every rule over merges of a real vocabulary
    monkeypatch.setattr(llama3._model, "_splitter", splitter(RULES[pre]))
    check_seconds(llama3, 1_000_000)


@pytest.mark.long
@pytest.mark.parametrize("pre", EACH_RULE)
def test_very_long_runs(llama3, pre, monkeypatch):  # 100 KB is what kills recursive engines
    monkeypatch.setattr(llama3._model, "_splitter", splitter(RULES[pre]))
    check_seconds(llama3, 100_000)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", (pytest.param(100_000, marks=pytest.mark.long), pytest.param(1_000_000, marks=pytest.mark.campaign)))
def test_a_megabyte_of_sentencepiece(real_model, n):  # 74
    check_seconds(tokenizer.load(GGUF(real_model("gemma-3-270m"))), n)


@pytest.mark.timeout(120)
def test_long_runs_of_sentencepiece(make, real_model):  # 74
    for t in (make(spm_keys()), tokenizer.load(GGUF(real_model("gemma-3-270m")))):
        for c in (*CHARACTERS.values(), "<", "<|", "<start_of_turn"):
            text = c * (40_000 // len(c))
            assert t.decode(t.encode(text, special=True)) == text


# --- control tokens in text -----------------------------------------------------------------------


def naive_split(texts, text):
    parts, at = [""], 0
    while at < len(text):
        hits = [t for t in texts if text.startswith(t, at)]
        if hits:
            longest = max(hits, key=len)
            parts += texts[longest], ""
            at += len(longest)
        else:
            parts[-1] += text[at]
            at += 1
    return [p for p in parts if p != ""]


WORDS = st.text("<|ab>", min_size=1, max_size=6)


@settings(max_examples=500, deadline=None)
@given(tokens=st.lists(WORDS, max_size=12, unique=True), text=st.text("<|ab>", max_size=60))
def test_control_tokens_leftmost_longest(tokens, text):
    texts = {t: i for i, t in enumerate(tokens)}
    assert ControlTokens(texts).split(text) == naive_split(texts, text)


@settings(max_examples=500, deadline=None)
@given(tokens=st.lists(WORDS, min_size=1, max_size=12, unique=True), text=st.text("<|ab>", max_size=30),
       before=st.text("<|ab>", max_size=8), after=st.text("<|ab>", max_size=8))
def test_no_control_token_begins_in_shielded_text(tokens, text, before, after):
    texts = {t: i for i, t in enumerate(tokens)}
    controls = ControlTokens(texts)
    shielded = controls.shield(text, "#")
    assert shielded.replace("#", "") == text
    at = len(before)
    whole = before + shielded + after
    position = 0
    for part in controls.split(whole, "#"):
        if isinstance(part, int):
            assert not at <= position < at + len(shielded), (tokens, text)
            position += len(tokens[part])
        else:
            position += len(part)


def test_many_control_tokens():
    texts = {f"<unused{i}>": i for i in range(50_000)}
    controls = ControlTokens(texts)
    assert controls.split("x<unused49999><unused7" * 3) == ["x", 49999, "<unused7x", 49999, "<unused7x", 49999, "<unused7"]
    with pytest.raises(TokenizerError, match="control tokens: found one of 4097 bytes, expected at most 4096"):
        ControlTokens({"<" + "a" * 4096: 0}).shield("a", "#")


def hostile_tokens():
    """Of many lengths that almost fit at every place of a run: a dictionary's look-ups of slices took 8 s for 1 MB of one of them."""
    return ["a" * n + "b" for n in range(41, 4000, 40)]


@pytest.mark.parametrize("keys", [
    lambda: spm_keys([*SPM_TOKENS, *hostile_tokens(), "a" * 65535 + "b"], [*SPM_TYPES, *[4] * 100]),
    lambda: bpe_keys([*BPE_TOKENS, *hostile_tokens()], [*BPE_TYPES, *[4] * 99]),
    lambda: bpe_keys([*BPE_TOKENS, *hostile_tokens()], [*BPE_TYPES, *[3] * 99])], ids=["spm", "bpe", "control"])
def test_hostile_added_tokens_do_not_slow_texts_down(make, keys):  # 74
    t = make(keys())
    for text in ("a" * 200_000, "a" * 100_000 + "c" + "a" * 99_998 + "b"):
        start = time.thread_time()
        ids = t.encode(text, special=True, add_bos=False)
        assert time.thread_time() - start < 0.2
        assert b"".join(t.piece(i, special=True) for i in ids).decode().lstrip() == text
    assert ids[-1] == t.n_vocab - 1
    if t._vocabulary.types[-1] == 3:
        start = time.thread_time()
        assert t.controls.shield("a" * 200_000, "#") == "a" * 196_039 + "a#" * 3961
        assert time.thread_time() - start < 0.2


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.text("<é漢 \udc80", min_size=1, max_size=4), max_size=8, unique=True), text=st.text("<é漢 \udc80", max_size=40),
       data=st.data())
def test_control_tokens_of_any_characters(tokens, text, data):
    texts = {t: i for i, t in enumerate(tokens)}
    assert ControlTokens(texts).split(text) == naive_split(texts, text)
    lstrip, rstrip = (frozenset(data.draw(st.sets(st.integers(0, len(tokens))))) for _ in range(2))
    parts, text = ControlTokens(texts, lstrip, rstrip).split(text), text
    for i, part in enumerate(parts):  # all of the text but blanks, in order
        whole = tokens[part] if isinstance(part, int) else part
        skipped = len(text) - len(text.lstrip(" "))
        while not text.startswith(whole):
            assert skipped and text[0] == " "
            text = text[1:]
        text = text[len(whole):]
        if isinstance(part, str) and i + 1 < len(parts) and parts[i + 1] in lstrip:
            assert not part.endswith(" ")
    assert not text.strip(" ")


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=100))
def test_any_bytes(tiny_spm, raw):  # 77: all bytes come back, U+2581 as the blank it stands for
    ids = tiny_spm.encode(raw, add_bos=False)
    front = b" " if raw else b""
    assert b"".join(map(tiny_spm.piece, ids)) == front + raw.replace("▁".encode(), b" ")


@pytest.fixture(scope="module")
def tiny_spm(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "spm.gguf"
    path.write_bytes(gguf(list(spm_keys().values())))
    return tokenizer.load(GGUF(path))


def test_a_rule_with_more_classes_than_a_byte_counts_is_refused():
    """Nine sets cut 300 characters into 300 classes: the 256th was written behind the table of them."""
    from array import array

    from pyengine.native import ffi, lib

    sets, planes = array("I"), [[c for c in range(0xE000, 0xE000 + 300) if c >> bit & 1] for bit in range(9)]
    for plane in planes:
        sets.extend([0, 0, len(plane), 0, *(end for c in plane for end in (c, c))])
    stages, ops = array("I", [0, 0, 2, 0]), array("I", [1, 0, 0, 0, 0, 0, 0, 0])  # one character of the first set

    def code(sets):
        out = ffi.new("pe_splitter **")
        code = lib.pe_splitter_new(ffi.from_buffer("uint32_t[]", sets), len(sets), ffi.from_buffer("uint32_t[]", stages), 1,
                                   ffi.from_buffer("uint32_t[]", ops), 2, out)
        assert (code == lib.PE_OK) == (out[0] != ffi.NULL)
        lib.pe_splitter_free(out[0])
        return code

    assert code(sets) == lib.PE_EINVAL
    assert code(sets[:4 + 2 * len(planes[0])]) == lib.PE_OK
