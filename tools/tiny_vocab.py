"""Vocabularies of tiny random files: a few words, every byte, and the control tokens of a chat.

Not a tokenizer. Imported by tiny_gguf.py only.
"""

from tiny_spec import ENCODERS

WORDS = ("the", "and", "ing", "hello", "world", "one", "two", "red", "blue", "cat", "dog", "stone", "river")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def _fill(tokens, n, kind):
    """Pads a vocabulary to n entries with unused tokens; the control tokens of a chat come first."""
    if len(tokens) > n:
        raise ValueError(f"n_vocab: {n}, but the smallest {kind} vocabulary has {len(tokens)} tokens")
    return tokens + [(f"[unused{i}]", -1000.0, UNUSED) for i in range(n - len(tokens))]


def spm_vocabulary(n):
    """Byte tokens, letters and a few words that merge: (text, score, type) per id."""
    tokens = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    tokens += [("<|im_start|>", 0.0, CONTROL), ("<|im_end|>", 0.0, CONTROL), ("<tool>", 0.0, USER_DEFINED)]
    pieces = []
    for word in WORDS:
        for end in range(2, len(word) + 2):
            piece = ("\u2581" + word)[:end]
            if piece not in pieces:
                pieces.append(piece)
    letters = ["\u2581"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
    room = n - len(tokens) - len(letters)
    pieces = pieces[: max(room, 0)]
    tokens += [(piece, -1.0 - rank, NORMAL) for rank, piece in enumerate(pieces)]
    tokens += [(letter, -500.0, NORMAL) for letter in letters]
    return _fill(tokens, n, "spm")


def wordpiece_keys(n):
    """WordPiece: letters at the begin of a word and behind it, and a few words; marks as BERT numbers them."""
    letters = [chr(c) for c in (*range(ord("a"), ord("z") + 1), *range(ord("0"), ord("9") + 1))]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += ["\u2581" + c for c in (*letters, *".,;:!?'\"()-")] + letters
    tokens += ["\u2581" + word for word in WORDS if len(word) > 1]
    if len(tokens) > n:
        raise ValueError(f"n_vocab: {n}, but the smallest WordPiece vocabulary has {len(tokens)} tokens")
    tokens += [f"[unused{i}]" for i in range(n - len(tokens))]
    kinds = [UNKNOWN if t == "[UNK]" else CONTROL if t[0] == "[" and t[1:7] != "unused" else UNUSED if t[0] == "[" else NORMAL for t in tokens]
    t = "tokenizer.ggml."
    return {t + "model": "bert", t + "pre": "bert-bge", t + "tokens": tokens, t + "token_type": kinds, t + "token_type_count": 2,
            t + "unknown_token_id": 1, t + "bos_token_id": 2, t + "eos_token_id": 3, t + "seperator_token_id": 3, t + "padding_token_id": 0,
            t + "mask_token_id": 4, t + "cls_token_id": 2}


def _byte_alphabet():
    """GPT-2's printable stand-in for each byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {**{b: chr(b) for b in visible}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def bpe_vocabulary(n):
    """Three control tokens, the byte alphabet and a few merged words; returns tokens and merges."""
    tokens = [("<|endoftext|>", 0.0, CONTROL), ("<|im_start|>", 0.0, CONTROL), ("<|im_end|>", 0.0, CONTROL)]
    alphabet = _byte_alphabet()
    tokens += [(alphabet[byte], 0.0, NORMAL) for byte in range(256)]
    tokens += [("<tool>", 0.0, USER_DEFINED)]
    merges, known = [], {text for text, _, _ in tokens}
    for word in WORDS:
        for text in (alphabet[0x20] + word, word):
            for end in range(2, len(text) + 1):
                if text[:end] not in known and len(tokens) < n:
                    known.add(text[:end])
                    tokens.append((text[:end], 0.0, NORMAL))
                    merges.append(f"{text[: end - 1]} {text[end - 1]}")
    return _fill(tokens, n, "bpe"), merges


def vocabulary_keys(spec):
    """The keys of a tokenizer."""
    if spec.arch in ENCODERS and spec.vocabulary == "spm":
        return wordpiece_keys(spec.n_vocab)
    keys = {}
    if spec.vocabulary == "spm":
        tokens = spm_vocabulary(spec.n_vocab)
        keys["tokenizer.ggml.model"] = "llama"
        keys["tokenizer.ggml.scores"] = [score for _, score, _ in tokens]
        ids = {"bos": 1, "eos": 2, "unknown": 0}
    elif spec.vocabulary == "bpe":
        tokens, merges = bpe_vocabulary(spec.n_vocab)
        keys["tokenizer.ggml.model"] = "gpt2"
        keys["tokenizer.ggml.pre"] = "smollm"
        keys["tokenizer.ggml.merges"] = merges
        ids = {"bos": 0, "eos": 2 if spec.chat_template else 0}
    else:
        raise ValueError(f"vocabulary: {spec.vocabulary!r}, expected 'spm' or 'bpe'")
    keys["tokenizer.ggml.tokens"] = [text for text, _, _ in tokens]
    keys["tokenizer.ggml.token_type"] = [kind for _, _, kind in tokens]
    for name, token in ids.items():
        keys[f"tokenizer.ggml.{name}_token_id"] = token
    keys["tokenizer.ggml.add_bos_token"] = spec.vocabulary == "spm"
    return keys
