"""Vocabularies in tiny random models, so that llama.cpp's server, which refuses vocabulary-only files, loads them; and the
strings that tokenizers are compared over.

Not a test. tests/test_tokenizer_llama.py compares; tests of other kinds of vocabulary may too:

    with oracle(wrap(vocabulary_file, folder)) as ids:      # ids(text, special) as llama.cpp's /tokenize gives them
        assert ids("text", False) == ours

A wrapped model has one layer of 32 columns: its tokenizer.* keys are those of the file, byte for byte.
"""
import contextlib
import http.client
import json
import os
import random
import struct
import sys
import unicodedata
from pathlib import Path

from faults_gguf import F32, STRING, U32, gguf, info, kv

WIDTH = 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of values, by GGUF's type
VOCABULARIES = Path(__file__).resolve().parents[2] / "shared" / "data" / "vocab"


# --- the model ------------------------------------------------------------------------------------------------


def entries(raw):
    """(key, its bytes from the key's length on) of each key of a GGUF's bytes."""
    at = 24
    for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
        start, (n,) = at, struct.unpack_from("<Q", raw, at)
        key = raw[at + 8:at + 8 + n].decode()
        (kind,) = struct.unpack_from("<I", raw, at + 8 + n)
        at = _skip(raw, at + 12 + n, kind)
        yield key, raw[start:at]


def _skip(raw, at, kind):
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", raw, at)[0]
    if kind != 9:
        return at + SIZES[kind]
    kind, n = struct.unpack_from("<IQ", raw, at)
    at += 12
    if kind in SIZES:
        return at + n * SIZES[kind]
    for _ in range(n):
        at = _skip(raw, at, kind)
    return at


def model(path, tokenizer, name="vocabulary", rows=None):
    """Writes a one-layer llama model around ready-made tokenizer entries; embedding and head are one tensor, of a row for each
    token or so many rows."""
    tokens = b"tokenizer.ggml.tokens"
    (n_tokens,) = (struct.unpack_from("<Q", e, 16 + len(tokens))[0] for e in tokenizer if e[8:8 + len(tokens)] == tokens)
    n_tokens = n_tokens if rows is None else rows
    a, f16 = "llama.", 1
    keys = [kv("general.architecture", STRING, "llama"), kv("general.name", STRING, name)]
    for key, value in (("context_length", 512), ("embedding_length", WIDTH), ("block_count", 1), ("vocab_size", n_tokens),
                       ("feed_forward_length", WIDTH), ("attention.head_count", 1), ("rope.dimension_count", WIDTH)):
        keys.append(kv(a + key, U32, value))
    keys.append(kv(a + "attention.layer_norm_rms_epsilon", F32, 1e-5))
    square, ones = (WIDTH, WIDTH), (WIDTH,)
    shapes = {"token_embd.weight": (WIDTH, n_tokens), "output_norm.weight": ones, "blk.0.attn_norm.weight": ones,
              "blk.0.ffn_norm.weight": ones}
    shapes |= {f"blk.0.{n}.weight": square for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
                                                    "ffn_down")}
    infos, data = [], b""
    draw = random.Random(1)
    for tensor, shape in shapes.items():
        n = WIDTH * (shape[1] if len(shape) > 1 else 1)
        infos.append(info(tensor, shape, f16 if len(shape) > 1 else 0, len(data)))
        if len(shape) > 1:  # repeats of 4096 random halves below 1: the numbers play no part
            some = struct.pack("<4096e", *(draw.uniform(-0.1, 0.1) for _ in range(4096)))
            data += (some * (n // 4096 + 1))[:2 * n]
        else:
            data += struct.pack("<f", 1.0) * n
        data += bytes(-len(data) % 32)
    Path(path).write_bytes(gguf([*keys, *tokenizer], infos, data))
    return path


def wrap(vocabulary, folder, name=None):
    """The vocabulary of one GGUF in a model that llama.cpp loads; name: general.name, by which it knows phi-3."""
    raw = Path(vocabulary).read_bytes()
    found = dict(entries(raw))
    if name is None and "general.name" in found:
        entry = found["general.name"]
        name = entry[8 + len("general.name") + 12:].decode()
    tokenizer = [entry for key, entry in found.items() if key.startswith("tokenizer.")]
    return model(Path(folder) / Path(vocabulary).name, tokenizer, name or "vocabulary")


# --- the oracle -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def oracle(path):
    """ids(text, special, add_special=False) as llama.cpp's server gives them, over one kept connection."""
    from oracle import Oracle

    with Oracle(path, n_ctx=256, n_threads=1) as server:
        connection = http.client.HTTPConnection(server._url.removeprefix("http://"), timeout=600)

        def ids(text, special=False, add_special=False):
            body = {"content": text, "add_special": add_special, "parse_special": special}
            connection.request("POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"/tokenize: {answer.status} {raw[:500]!r}")
            return json.loads(raw)["tokens"]

        try:
            yield ids
        finally:
            connection.close()


# --- the strings ----------------------------------------------------------------------------------------------

BLANKS = [" ", "  ", "    ", " " * 9, "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n", " \n", "\n ", "\t\n ", "\x0b",
          "\x0c", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2000", "\u2003", "\u2007", "\u2028", "\u2029", "\u202f",
          "\u205f", "\u3000", "\u180e", "\u200b", "\u2060", "\ufeff"]
DIGITS = ["0", "7", "12", "123", "1234", "12345", "1234567", "3.14", "1,000,000", "0x1F", "٣", "२३", "²", "½", "Ⅷ", "①", "３４",
          "〇", "𝟘𝟙", "፩", "৪৫"]
MARKS = ["\u0301", "e\u0301", "\u0308\u0301", "\u20dd", "\u093f", "\u0e34", "\ufe0f", "\u200d", "\u200c", "\U000e0100", "n\u0303o"]
EMOJI = ["🦙", "👨‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "👍🏽", "🇩🇪", "1️⃣", "☺", "™", "©", "→", "∑", "€", "\U0001fae8"]
ODD = ["\ue000", "\uf8ff", "\U000f0000", "\U0010fffd", "\uffff", "\ufffe", "\ufffd", "\u0378", "\U000e0001", "\U0001fffe", "\x00",
       "\x01", "\x07", "\x1b", "\x7f", "\x80", "\x9f", "\xad", "\u061c", "\u2066"]
CODE = ["if (x != y) {\n\treturn a->b[i++];\n}", "def f(self, *args):\n    return {k: v for k, v in x}\n", "<div class=\"a\">&nbsp;</div>",
        "SELECT * FROM t WHERE a='b';", "#include <stdio.h>\r\n", "https://example.org/a_b?c=d&e=%20", "\\n\\t\\\"", "x = 0.5e-10 ** 2",
        "a/b//c/*d*/", "```py\nprint()\n```", "$HOME/.bashrc", "foo_bar.bazQux", "--flag=1", "HTTPServer2XML", "!!!", "...", "?!",
        "====", "/**/", "~~", "^^", "||", "$$", "++", "<=>", "`x`", "(a)", "[b]", "{c}", "a|b", "@", "#1", "%d", "&&"]
WORDS = ["the", "The", "THE", "hello", "World", "camelCase", "ﬁ", "straße", "İstanbul", "ǅ", "naïve", "ÉCOLE", "école", "Москва",
         "МоскваСити", "ΑΒΓ", "λόγος", "שלום", "עִבְרִית", "مرحبا", "العَرَبِيَّة", "हिन्दी", "বাংলা", "ไทยดี", "မြန်မာ", "ខ្មែរ", "漢字", "中文和English",
         "ひらがな", "カタカナ", "ｶﾀｶﾅ", "한국어", "ㄱㄴ", "ㄅㄆ", "ქართული", "Հայերեն", "አማርኛ", "𐐷𐑌", "𝐀𝐛𝐜", "Ʞ", "ª", "ʰ", "々", "\U00020000",
         "I'm", "don't", "DON'T", "we'll", "WE'LL", "'s", "'S", "'re", "'RE", "'vE", "'d", "'ſ", "'ll", "’s", "o'clock", "''", "'"]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "[CLS]", "[SEP]",
           "[MASK]", "[PAD]", "[UNK]", "<0x0A>", "<0xFF>", "<|user|>", "<|end|>", ">>TITLE<<", "<|", "|>", "<s", "<｜begin▁of▁sentence｜>",
           "▁", "▁▁", "Ġ", "Ċ", "##ing", "##"]
GROUPS = (WORDS, WORDS, WORDS, BLANKS, BLANKS, DIGITS, MARKS, EMOJI, ODD, CODE, CODE, SPECIAL)


def edges():
    """Code points that begin or end a run of one Unicode category (Python's version of it), without surrogates."""
    out, last = [], None
    for cp in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(cp))
        if category != last:
            out += [cp - 1, cp] if cp else [cp]
            last = category
    return [chr(cp) for cp in sorted(set(out)) if not 0xD800 <= cp <= 0xDFFF]


def strings(n, seed, pieces=()):
    """n strings of every kind of character; pieces: texts of the vocabulary's own tokens, which are mixed in."""
    draw = random.Random(seed)
    borders = edges()
    pieces = list(pieces)
    for i in range(n):
        parts = []
        for _ in range(draw.choice((1, 2, 3, 5, 8, 13))):
            kind = draw.randrange(20)
            if kind < 12:
                parts.append(draw.choice(GROUPS[draw.randrange(len(GROUPS))]))
            elif kind < 14:
                parts.append(draw.choice(borders) * draw.choice((1, 1, 1, 2, 5)))
            elif kind == 14:  # bytes that happen to be UTF-8
                parts.append(draw.randbytes(draw.randrange(12)).decode("utf-8", "ignore"))
            elif kind == 15:
                parts.append(draw.choice("aA .\n7漢'\u0301🦙/_-") * draw.randrange(1, 40))
            elif kind == 16:
                cp = draw.randrange(0x110000)
                parts.append("?" if 0xD800 <= cp <= 0xDFFF else chr(cp))
            elif pieces:
                parts.append(draw.choice(pieces))
            if draw.random() < 0.4:
                parts.append(" ")
        yield "".join(parts)


def texts_of(tokenizer):
    """Texts of every token of one of ours, for strings()."""
    return [tokenizer.piece(i, special=True).decode("utf-8", "replace") for i in range(tokenizer.n_vocab)]


if __name__ == "__main__":
    for file in sys.argv[2:]:
        print(wrap(file, sys.argv[1]), os.path.getsize(file))
