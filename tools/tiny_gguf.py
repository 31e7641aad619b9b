#!/usr/bin/env python3
"""Tiny random GGUF files for tests: every option an architecture has, mostly under a megabyte.

    python tools/tiny_gguf.py OUT.gguf --arch gemma3 --weight-type Q8_0 --tied

As a module: `write(path, Spec(...))`; `write(path, spec, wrong="rope")` makes the file with one thing
wrong; `keys=` and `tensors=` patch metadata and tensors for fault tests (None leaves an entry out).
A file is a function of its Spec alone. Weights are drawn once in float32 and packed afterwards, so specs
that differ in weight_type only describe the same model. Heads are scaled so that logits have a standard
deviation of about 3: with the usual 0.02 a wrong file would hide in a flat softmax.

Not for users' models; imported by tests, tools and benches only. Needs numpy and the gguf package.
"""

import dataclasses
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

WEIGHT_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # fmt: skip
SMALL_TYPES = ("MXFP4", "NVFP4", "TQ2_0", "Q2_0", "TQ1_0", "Q1_0")  # coarse: weights keep little more than their signs
WRONG = {
    "llama": ("rope", "bias", "norm", "scale"),
    "gemma3": ("rope", "norm", "scale"),
    "qwen2": ("rope", "bias", "norm", "scale"),
    "qwen3": ("rope", "norm", "head norm"),
    "gemma2": ("rope", "norm", "scale", "attention cap", "final cap", "window"),
    "phi3": ("rope", "norm", "scale", "factors", "magnitude"),
    "gemma": ("rope", "norm", "scale"),
    "command-r": ("rope", "norm", "scale", "logit scale"),
    "cohere2": ("rope", "norm", "scale", "window"),
    "smollm3": ("rope", "norm", "scale"),
    **dict.fromkeys(("ernie4_5", "exaone", "internlm2", "pangu-embedded", "xverse"), ("rope", "norm", "scale")),
    "granite": ("rope", "norm", "embedding scale", "attention scale", "residual scale", "logit scale"),
    "mistral3": ("rope", "norm", "yarn", "log multiplier", "temperature"),
    "lfm2": ("rope", "norm", "head norm", "taps", "gates"),
}
HALVES = ("exaone", "pangu-embedded", "gemma", "gemma2", "gemma3", "lfm2", "phi3", "qwen2", "qwen3")  # rope turns pairs half a head apart
GEMMA = ("gemma2", "gemma3")  # norms behind the blocks
COHERE = ("command-r", "cohere2")  # layer norms, one a layer
LAYERS = {"cohere2": 4, "gemma2": 4, "gemma3": 6, "lfm2": 4, "smollm3": 4}  # else two: gemma3's sixth is global, smollm3's fourth has no rope
BIASES = {"llama": "qkvof", "granite": "qkvof", "mistral3": "qkvof", "qwen2": "qkv", "smollm3": "qkv", "pangu-embedded": "qkvo"}  # o: output, f: feed-forward

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Spec:
    arch: str = "llama"
    seed: int = 0
    weight_type: str = "F32"
    types: tuple = ()  # (("attn_v.weight", "Q6_K"), ...): by end of name, first match wins
    n_vocab: int = 331  # tokens
    extra_rows: int = 0  # rows of the embedding and head beyond the tokens
    n_embd: int = 64
    n_layer: int = 0  # 0: LAYERS
    n_head: int = 4
    n_head_kv: tuple = (2,)  # one number, or one per layer (written as an array)
    head_dim: int = 0  # 0: n_embd / n_head, and no key_length in the file
    n_ff: tuple = (96,)  # like n_head_kv
    n_ctx_train: int = 2048
    eps: float = 1e-5
    tied: bool = False
    biases: bool = False  # where BIASES says; qwen2 always has them
    fused: bool = False  # q, k and v in one tensor; phi3 always
    rope_base: float = 10000.0
    rope_freqs: bool = False  # llama: rope_freqs.weight, one factor per pair
    rope_scaling: str = ""  # "", "none", "linear", "yarn", "old" (rope.scale_linear)
    rope_factor: float = 4.0
    rope_orig_ctx: int = 512
    rope_attn_factor: float = 0.0  # 0: no key
    longrope: bool = False  # rope_factors_short.weight and rope_factors_long.weight
    yarn_log_multiplier: float = 0.0  # 0: no key
    temperature: float = 0.0  # mistral3: 0 leaves the key out
    window: int = 8  # gemma2, gemma3, cohere2: sliding window, smaller than any chunk; 0: no key. phi3: the key is 0 unless phi_window
    phi_window: int = 0
    taps: int = 3  # lfm2, whose layers with no KV heads are short convolutions; if n_head_kv is one number, the first and third
    lfm_window: int = 0  # lfm2: of the layers that attend; 0: no key
    window_pattern: int = 0  # the same: 0 leaves the key out, and two, six or four is meant
    rope_base_swa: float = 0.0  # gemma3: 0 leaves the key out, and 10000 is meant
    attention_softcap: float = 3.0  # gemma2; 0 leaves the key out, and 50 is meant
    final_softcap: float = 6.0  # gemma2; 0 leaves the key out, and 30 is meant
    embedding_scale: float = 0.5  # granite, as the three that follow; 0 leaves a key out
    attention_scale: float = 0.2
    residual_scale: float = 0.7
    logit_scale: float = 4.0  # command-r and cohere2 have a quarter of it
    vocabulary: str = "spm"  # "spm" or "bpe"
    chat_template: str = ""

    def __post_init__(self):
        if self.arch not in WRONG:
            raise ValueError(f"arch: {self.arch!r}, expected one of {sorted(WRONG)}")
        if self.n_layer == 0:
            object.__setattr__(self, "n_layer", LAYERS.get(self.arch, 2))
        for name in ("n_head_kv", "n_ff"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, int) else tuple(value)
            if len(value) not in (1, self.n_layer):
                raise ValueError(f"{name}: {len(value)} values for {self.n_layer} layers")
            object.__setattr__(self, name, value)
        if self.arch == "lfm2" and len(self.n_head_kv) == 1:
            object.__setattr__(self, "n_head_kv", tuple(i % 2 * self.n_head_kv[0] for i in range(self.n_layer)))
        if (self.biases and self.arch not in BIASES) or (self.rope_freqs and self.arch not in ("llama", "granite", "mistral3")):
            raise ValueError(f"{self.arch} has no biases, or no rope_freqs")
        for name, arch, value in (("biases", ("qwen2",), True), ("fused", ("phi3",), True), ("tied", ("gemma", "gemma2", *COHERE), True)):
            if self.arch in arch:
                object.__setattr__(self, name, value)
        if not self.head_dim and self.n_embd % self.n_head:
            raise ValueError(f"n_head {self.n_head} does not divide n_embd {self.n_embd}: give head_dim")

    @property
    def d_head(self):
        return self.head_dim or self.n_embd // self.n_head

    def kv_heads(self, layer):
        return self.n_head_kv[layer % len(self.n_head_kv)]

    def ff(self, layer):
        return self.n_ff[layer % len(self.n_ff)]


# --- vocabulary ------------------------------------------------------------------------------------------

_WORDS = ("the", "and", "ing", "hello", "world", "one", "two", "red", "blue", "cat", "dog", "stone", "river")
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
    for word in _WORDS:
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
    for word in _WORDS:
        for text in (alphabet[0x20] + word, word):
            for end in range(2, len(text) + 1):
                if text[:end] not in known and len(tokens) < n:
                    known.add(text[:end])
                    tokens.append((text[:end], 0.0, NORMAL))
                    merges.append(f"{text[: end - 1]} {text[end - 1]}")
    return _fill(tokens, n, "bpe"), merges


# --- weights ---------------------------------------------------------------------------------------------


def weights(spec):
    """Float32 arrays by tensor name, in file order; shape [rows, row length] as numpy sees it."""
    import numpy as np

    rng = np.random.default_rng([spec.seed, 0x7157])
    out = {}

    def matrix(name, rows, columns, gain=1.0):
        out[name] = (rng.standard_normal((rows, columns)) * (gain / math.sqrt(columns))).astype(np.float32)

    def norm(name, n):
        out[name] = (1.0 + 0.25 * rng.standard_normal(n)).astype(np.float32)

    def bias(name, n, size=0.5, kind="qkv"):
        if spec.biases and kind in BIASES[spec.arch]:
            out[name] = (size * rng.standard_normal(n)).astype(np.float32)

    rows, d, gemma, a = spec.n_vocab + spec.extra_rows, spec.d_head, spec.arch in GEMMA, spec.arch
    matrix("token_embd.weight", rows, spec.n_embd, 3.0)
    norm("token_embd_norm.weight" if a == "lfm2" else "output_norm.weight", spec.n_embd)
    if not spec.tied:
        matrix("output.weight", rows, spec.n_embd, 3.0 * (spec.logit_scale or 1.0 if a == "granite" else 1.0))
    if spec.rope_freqs:
        out["rope_freqs.weight"] = rng.uniform(1.0, 8.0, d // 2).astype(np.float32)
    if spec.longrope:
        out["rope_factors_long.weight"] = rng.uniform(1.0, 8.0, d // 2).astype(np.float32)
        out["rope_factors_short.weight"] = rng.uniform(1.0, 1.5, d // 2).astype(np.float32)
    for i in range(spec.n_layer):
        blk, kv, ff = f"blk.{i}.", spec.kv_heads(i), spec.ff(i)
        norm(blk + "attn_norm.weight", spec.n_embd)
        loud = 6.0 if a == "gemma" else 1.5  # else its scaled embeddings drown the blocks
        if not kv:
            matrix(blk + "shortconv.in_proj.weight", 3 * spec.n_embd, spec.n_embd, 1.5)
            matrix(blk + "shortconv.conv.weight", spec.n_embd, spec.taps)
            matrix(blk + "shortconv.out_proj.weight", spec.n_embd, spec.n_embd, loud)
        else:
            # q is drawn wide enough that attention is far from uniform and a wrong rope shows
            matrix(blk + "attn_q.weight", spec.n_head * d, spec.n_embd, 2.0)
            bias(blk + "attn_q.bias", spec.n_head * d)
            matrix(blk + "attn_k.weight", kv * d, spec.n_embd)
            bias(blk + "attn_k.bias", kv * d)
            matrix(blk + "attn_v.weight", kv * d, spec.n_embd)
            bias(blk + "attn_v.bias", kv * d)
            matrix(blk + "attn_output.weight", spec.n_embd, spec.n_head * d, loud)
            bias(blk + "attn_output.bias", spec.n_embd, 0.2, "o")
        if spec.fused and kv:
            for kind in ("weight", "bias") if spec.biases else ("weight",):
                out[f"{blk}attn_qkv.{kind}"] = np.concatenate([out.pop(f"{blk}attn_{part}.{kind}") for part in "qkv"])
        if a in ("gemma3", "qwen3", "lfm2") and kv:
            norm(blk + "attn_q_norm.weight", d)
            norm(blk + "attn_k_norm.weight", d)
        if gemma:
            norm(blk + "post_attention_norm.weight", spec.n_embd)
        if a not in COHERE:
            norm(blk + "ffn_norm.weight", spec.n_embd)
        if a != "phi3":
            matrix(blk + "ffn_gate.weight", ff, spec.n_embd)
            bias(blk + "ffn_gate.bias", ff, kind="f")
        matrix(blk + "ffn_up.weight", 2 * ff if a == "phi3" else ff, spec.n_embd)
        bias(blk + "ffn_up.bias", ff, kind="f")
        matrix(blk + "ffn_down.weight", spec.n_embd, ff, loud)
        bias(blk + "ffn_down.bias", spec.n_embd, 0.2, "f")
        if gemma:
            norm(blk + "post_ffw_norm.weight", spec.n_embd)
        if a == "gemma2":  # else its scaled embeddings, which are its head as well, drown the blocks
            out[blk + "post_attention_norm.weight"] *= np.float32(4)
            out[blk + "post_ffw_norm.weight"] *= np.float32(4)
    return out


def make_wrong(spec, arrays, what):
    """Changes one thing in `arrays`, the kind of thing a wrong implementation would get wrong."""
    import numpy as np

    if what not in WRONG[spec.arch]:
        raise ValueError(f"wrong: {what!r}, expected one of {WRONG[spec.arch]} for {spec.arch}")
    gemma = spec.arch == "gemma3"
    if what == "rope":
        # the other pairing: rows of each q and k head change places, so that pairs (i, i+1) become (i, i+d/2)
        d = spec.d_head
        order = np.arange(d).reshape(2, d // 2).T.ravel() if spec.arch in HALVES else np.arange(d).reshape(d // 2, 2).T.ravel()
        for name, array in arrays.items():
            if ".attn_q" in name or ".attn_k" in name:
                heads = array.reshape(-1, d, *array.shape[1:]).copy()
                turned = len(heads) - (spec.kv_heads(int(name.split(".")[1])) if ".attn_qkv" in name else 0)  # v stays
                heads[:turned] = heads[:turned, order]
                arrays[name] = np.ascontiguousarray(heads).reshape(array.shape)
    elif what == "head norm":
        name = next(n for n in arrays if n.endswith("attn_k_norm.weight"))
        arrays[name] = np.ones_like(arrays[name])
    elif what == "taps":
        arrays["blk.0.shortconv.conv.weight"] = arrays["blk.0.shortconv.conv.weight"][:, ::-1].copy()
    elif what == "gates":
        name, n = "blk.0.shortconv.in_proj.weight", spec.n_embd
        arrays[name] = np.concatenate([arrays[name][n : 2 * n], arrays[name][:n], arrays[name][2 * n :]])
    elif what == "factors":
        long, short = "rope_factors_long.weight", "rope_factors_short.weight"
        arrays[long], arrays[short] = arrays[short], arrays[long]
    elif what in WRONG_KEYS:
        pass
    elif what == "bias":
        if not spec.biases:
            raise ValueError("wrong: 'bias' needs biases=True")
        del arrays["blk.0.attn_q.bias"]
    elif what == "norm":
        name = f"blk.1.{'post_attention_norm' if spec.arch in GEMMA else 'attn_norm' if spec.arch in COHERE else 'ffn_norm'}.weight"
        arrays[name] = np.ones_like(arrays[name])
    else:
        # llama: attention scaled by 1/sqrt(d) * 1.25; gemma3: an embedding scale off by a quarter
        name = "token_embd.weight" if gemma else "blk.0.attn_qkv.weight" if spec.fused else "blk.0.attn_q.weight"
        if gemma and spec.tied:
            raise ValueError("wrong: 'scale' needs tied=False, else it scales the head as well")
        rows = spec.n_head * spec.d_head if spec.fused else None
        arrays[name] = arrays[name].copy()
        arrays[name][:rows] *= np.float32(1.25)


# What is wrong in metadata: key after the architecture -> what to make of its value.
WRONG_KEYS = {
    "attention cap": {"attn_logit_softcapping": lambda v: 50.0},
    "final cap": {"final_logit_softcapping": lambda v: 30.0},
    "window": {"attention.sliding_window": lambda v: v + 1},
    "magnitude": {"rope.scaling.attn_factor": lambda v: 1.0},
    "embedding scale": {"embedding_scale": lambda v: 1.0},
    "attention scale": {"attention.scale": lambda v: 0.25},
    "residual scale": {"residual_scale": lambda v: 1.0},
    "logit scale": {"logit_scale": lambda v: v / 2},
    "yarn": {"rope.scaling.type": lambda v: "linear"},
    "log multiplier": {"rope.scaling.yarn_log_multiplier": lambda v: 0.0},
    "temperature": {"attention.temperature_scale": lambda v: 0.0},
}


def type_number(name):
    """ggml's number of a type. The package takes one that it does not know as soon as it has its size."""
    import gguf

    import pack_small

    if name not in pack_small.MISSING or name in gguf.GGMLQuantizationType.__members__:
        return gguf.GGMLQuantizationType[name]
    number, *size = pack_small.MISSING[name]
    gguf.GGML_QUANT_SIZES.setdefault(number, tuple(size))
    return number


def pack(array, type_name):
    """Bytes of float rows in a ggml type: uint8 [rows, bytes], or the array itself for F32."""
    import gguf
    import numpy as np

    import pack_iquants
    import pack_kquants
    import pack_small

    if type_name == "F32":
        return array
    kind = type_number(type_name)
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if array.shape[-1] % block:
        raise ValueError(f"{type_name} needs rows of a multiple of {block}, found {array.shape[-1]}")
    if type_name == "F16":
        return array.astype("<f2").view(np.uint8)
    packers = {**pack_kquants.PACKERS, **pack_iquants.PACKERS}
    if type_name in packers:
        return packers[type_name](array.reshape(-1, 256)).reshape(len(array), -1)
    if type_name in pack_small.PACKERS:
        packer, block = pack_small.PACKERS[type_name]
        return packer(array.reshape(-1, block)).reshape(len(array), -1)
    return gguf.quants.quantize(array, kind).view(np.uint8).reshape(len(array), -1)


# --- the file --------------------------------------------------------------------------------------------


def type_of(spec, name):
    if not name.endswith(".weight") or "_norm" in name or ".conv." in name or name.startswith("rope_"):
        return "F32"
    for end, type_name in spec.types:
        if name.endswith(end):
            return type_name
    return spec.weight_type


def metadata(spec):
    """Key -> value; int is uint32, float is float32, list of int is an int32 array, as converters write them."""
    a, kv, ff = spec.arch, spec.n_head_kv, spec.n_ff
    keys = {
        "general.name": "tiny" if a == "phi3" else f"tiny-{a}",  # of "phi3" in a name llama.cpp expects Phi 3's vocabulary
        f"{a}.context_length": spec.n_ctx_train,
        f"{a}.embedding_length": spec.n_embd,
        f"{a}.block_count": spec.n_layer,
        f"{a}.feed_forward_length": list(ff) if len(ff) > 1 else ff[0],
        f"{a}.attention.head_count": spec.n_head,
        f"{a}.attention.head_count_kv": list(kv) if len(kv) > 1 else kv[0],
        f"{a}.attention.layer_norm{'' if a in COHERE else '_rms'}_epsilon": spec.eps,
        f"{a}.rope.freq_base": spec.rope_base,
    }
    if spec.head_dim:
        keys[f"{a}.attention.key_length"] = spec.head_dim
        keys[f"{a}.attention.value_length"] = spec.head_dim
    if a in GEMMA:
        optional = {"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.window_pattern,
                    "rope.freq_base_swa": spec.rope_base_swa}
        if a == "gemma2":
            optional.update({"attn_logit_softcapping": spec.attention_softcap, "final_logit_softcapping": spec.final_softcap})
    elif a in COHERE:
        optional = {"logit_scale": spec.logit_scale and spec.logit_scale / 4}
        if a == "cohere2":
            optional.update({"attention.sliding_window": spec.window, "attention.sliding_window_pattern": spec.window_pattern})
    elif a == "granite":
        optional = {"embedding_scale": spec.embedding_scale, "attention.scale": spec.attention_scale, "residual_scale": spec.residual_scale,
                    "logit_scale": spec.logit_scale}
    elif a == "lfm2":
        optional = {"shortconv.l_cache": spec.taps, "attention.sliding_window": spec.lfm_window, "vocab_size": spec.n_vocab}
    else:
        optional = {"attention.temperature_scale": spec.temperature, "rope.scaling.yarn_log_multiplier": spec.yarn_log_multiplier}
    optional["rope.scaling.attn_factor"] = spec.rope_attn_factor
    keys.update({f"{a}.{name}": value for name, value in optional.items() if value})
    if a == "llama":
        keys["llama.vocab_size"] = spec.n_vocab + spec.extra_rows
    if a in ("llama", "phi3", "granite", "mistral3", "smollm3", *COHERE):
        keys[f"{a}.rope.dimension_count"] = spec.d_head
    if a == "phi3":
        keys["phi3.attention.sliding_window"] = spec.phi_window
        keys["phi3.rope.scaling.original_context_length"] = spec.rope_orig_ctx
    if spec.rope_scaling == "old":
        keys[f"{a}.rope.scale_linear"] = spec.rope_factor
    elif spec.rope_scaling:
        keys[f"{a}.rope.scaling.type"] = spec.rope_scaling
        if spec.rope_scaling in ("linear", "yarn"):
            keys[f"{a}.rope.scaling.factor"] = spec.rope_factor
        if spec.rope_scaling in ("yarn", "longrope"):
            keys[f"{a}.rope.scaling.original_context_length"] = spec.rope_orig_ctx
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
    if spec.chat_template:
        keys["tokenizer.chat_template"] = spec.chat_template
    return keys


@dataclasses.dataclass(frozen=True)
class Typed:
    """A metadata value of a named GGUF type, for patches: Typed("UINT64", 2**40), Typed("ARRAY", [1], "INT8")."""

    type: str
    value: object
    element: str = ""


def _add_key(writer, key, value):
    import gguf

    kinds = gguf.GGUFValueType
    if isinstance(value, Typed):
        element = kinds[value.element] if value.element else None
        writer.add_key_value(key, value.value, kinds[value.type], element)
    elif isinstance(value, list):
        inner = kinds.STRING if isinstance(value[0], str) else kinds.FLOAT32 if isinstance(value[0], float) else kinds.INT32
        writer.add_key_value(key, value, kinds.ARRAY, inner)
    else:
        kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
        writer.add_key_value(key, value, kind)


def write(path, spec, *, wrong=None, keys=None, tensors=None):
    """Writes the file and returns its path. `keys` and `tensors` replace, add, or (None) leave out entries.

    A patched tensor is a float32 array, packed like the one it replaces."""
    import gguf

    arrays = weights(spec)
    if wrong:
        make_wrong(spec, arrays, wrong)
    table = metadata(spec)
    for name, change in WRONG_KEYS.get(wrong, {}).items():
        table[f"{spec.arch}.{name}"] = change(table[f"{spec.arch}.{name}"])
    for patched, patches in ((table, keys or {}), (arrays, tensors or {})):
        for name, value in patches.items():
            if value is None:
                del patched[name]
            else:
                patched[name] = value
    writer = gguf.GGUFWriter(str(path), spec.arch)
    for key, value in table.items():
        _add_key(writer, key, value)
    for name, array in arrays.items():
        type_name = type_of(spec, name)
        raw = None if type_name == "F32" else type_number(type_name)
        writer.add_tensor(name, pack(array, type_name), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main(argv=None):
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--wrong", choices=sorted({w for names in WRONG.values() for w in names}))
    for field in dataclasses.fields(Spec):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action="store_true")
        elif field.name == "types":
            parser.add_argument(flag, nargs="*", metavar="END=TYPE", default=[])
        elif field.type is tuple:
            parser.add_argument(flag, nargs="+", type=int, default=field.default)
        else:
            parser.add_argument(flag, type=field.type, default=field.default)
    options = vars(parser.parse_args(argv))
    out, wrong = options.pop("out"), options.pop("wrong")
    options["types"] = tuple(tuple(pair.split("=", 1)) for pair in options["types"])
    write(out, Spec(**options), wrong=wrong)


if __name__ == "__main__":
    main()
