"""Vocabularies of the rarer kinds, made at run time: unigram models trained by sentencepiece, RWKV worlds, PLaMo's, and small
WordPiece ones; as GGUF entries for faults_gguf.gguf() and vocab_models.model(). Not a test.

Unigram and RWKV vocabularies have no file among the published vectors, so the libraries and a reference of ten lines stand
for them.
"""
import functools
import io
import random

from faults_gguf import BOOL, F32, I32, STRING, U8, U32, kv, kv_array
from texts import PASSAGES

T = "tokenizer.ggml."


def fields(message):
    """(number, value) of a protobuf message's fields: int or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or varint()
            at += size
            yield tag >> 3, message[at - size:at]


@functools.cache
def trained(size=600, merge=True, prefix=True, bytes_=False, rule="nmt_nfkc"):
    """(the library's processor, its model's bytes) of a unigram model trained on this project's passages."""
    import sentencepiece

    draw = random.Random(7)
    lines = [line for passage in PASSAGES for line in passage.split("\n")]
    lines += ["".join(draw.choice("éüßñ漢字かな한국어עבריתΑΒΓдом 0123456789.,-'\"()") for _ in range(60)) for _ in range(80)]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, model_type="unigram", vocab_size=size, normalization_rule_name=rule,
        remove_extra_whitespaces=merge, add_dummy_prefix=prefix, byte_fallback=bytes_, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        character_coverage=1.0, hard_vocab_limit=False, num_threads=1, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(out.getvalue())
    return processor, out.getvalue()


def charsmap(model):
    normalizer = next(v for n, v in fields(model) if n == 3)
    return next((v for n, v in fields(normalizer) if n == 2), b"")


def unigram_keys(merge=True, prefix=True, bytes_=False, rule="nmt_nfkc", more=(), size=600):
    """Entries of the trained model, as converters write them; more: (text, score, type) of further tokens."""
    sp, model = trained(size, merge, prefix, bytes_, rule)
    tokens, scores, types = [], [], []
    for i in range(sp.vocab_size()):
        tokens.append(sp.id_to_piece(i))
        scores.append(sp.get_score(i))
        types.append(2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1)
    for text, score, kind in more:
        tokens.append(text)
        scores.append(score)
        types.append(kind)
    keys = {"model": kv(T + "model", STRING, "t5"), "tokens": kv_array(T + "tokens", STRING, tokens),
            "scores": kv_array(T + "scores", F32, scores), "token_type": kv_array(T + "token_type", I32, types),
            "prefix": kv(T + "add_space_prefix", BOOL, prefix), "merge": kv(T + "remove_extra_whitespaces", BOOL, merge)}
    for name, i in (("padding", 0), ("eos", 1), ("unknown", 2)):
        keys[name] = kv(T + name + "_token_id", U32, i)
    if made := charsmap(model):
        keys["charsmap"] = kv_array(T + "precompiled_charsmap", U8, made)
    return keys, len(tokens)


def escaped(raw):
    """A token's text as the converter for RWKV writes it."""
    return repr(raw)[2:-1]


def world_tokens(n=3000, seed=3):
    """The 256 bytes and n longer tokens, as RWKV's list has them: pieces of text, runs of blanks, halves of characters."""
    draw = random.Random(seed)
    text = ("\n".join(PASSAGES) + " 漢字かな한국어עברית🦙é\t\t\r\n\n\n        '\"\\ \\n \\x41 I'm \"so\" '\"mixed\"'").encode()
    tokens = {bytes((b,)): None for b in range(256)}
    while len(tokens) < n + 256:
        at, size = draw.randrange(len(text)), draw.choice((2, 2, 3, 3, 4, 5, 6, 8, 12))
        tokens[text[at:at + size]] = None
    tokens[b"'\"" + b"\\"] = tokens[b" " * 40] = tokens[b"\n\n"] = None
    return list(tokens)


def world_keys(tokens=None, padding=5):
    tokens = world_tokens() if tokens is None else tokens
    texts = ["<s>", *map(escaped, tokens)]
    texts += [f"[PAD{len(texts) + i}]" for i in range(padding)]
    types = [3, *[1] * len(tokens), *[5] * padding]
    keys = {"model": kv(T + "model", STRING, "rwkv"), "tokens": kv_array(T + "tokens", STRING, texts),
            "token_type": kv_array(T + "token_type", I32, types), "bos": kv(T + "bos_token_id", U32, 0),
            "eos": kv(T + "eos_token_id", U32, 0)}
    if b"\n\n" in tokens:
        keys["eot"] = kv(T + "eot_token_id", U32, 1 + tokens.index(b"\n\n"))
    return keys, len(texts)


def plamo_keys(seed=5, n=800):
    draw = random.Random(seed)
    tokens = {"<|plamo:unk|>": 2, "<|plamo:bos|>": 3, "<|plamo:eos|>": 3, "<|plamo:pad|>": 3}
    tokens |= {f"<0x{b:02X}>": 6 for b in range(256)}
    text = "\n".join(PASSAGES) + " 漢字かな漢字 한국어 עברית é\n\n  "
    while len(tokens) < n:
        at, size = draw.randrange(len(text)), draw.choice((1, 1, 2, 2, 3, 4, 6, 9))
        tokens.setdefault(text[at:at + size], 1)
    scores = [0.0 if t != 1 else -draw.choice((1.0, 2.5, 3.25, 7.0, 11.0)) * 10 ** draw.randrange(3) for t in tokens.values()]
    return {"model": kv(T + "model", STRING, "plamo2"), "tokens": kv_array(T + "tokens", STRING, list(tokens)),
            "scores": kv_array(T + "scores", F32, scores), "token_type": kv_array(T + "token_type", I32, list(tokens.values()))}, len(tokens)


WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a", "a", "▁ab", "b", "bc", "▁!", "▁漢", "▁é", "▁e", "▁the", "ing"]


def wordpiece_keys(tokens=WORDPIECE, types=None, **more):
    keys = {"model": kv(T + "model", STRING, "bert"), "tokens": kv_array(T + "tokens", STRING, tokens),
            "token_type": kv_array(T + "token_type", I32, types or [3] * 5 + [1] * (len(tokens) - 5))}
    for name, i in (("padding", 0), ("unknown", 1), ("cls", 2), ("seperator", 3), ("mask", 4)):
        keys[name] = kv(T + name + "_token_id", U32, i)
    return {**keys, **more}
