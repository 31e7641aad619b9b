"""Which type each tensor of a quantized model gets: the usual mixes by name, as llama.cpp makes them.

Decides names only: reads no weight, writes no file (convert.py). The rules are those that published files
follow, so that a Q4_K_M made here has the types that a Q4_K_M has everywhere. Imported by convert and the command line.
"""
import re
from typing import NamedTuple

from .errors import RequestError, quoted
from .native import lib
from .quants import BY_NAME


class Mix(NamedTuple):
    file_type: int   # general.file_type
    base: str        # the type of whatever has no rule


MIXES = {
    "F32": Mix(0, "F32"), "F16": Mix(1, "F16"), "BF16": Mix(32, "BF16"),
    "Q4_0": Mix(2, "Q4_0"), "Q4_1": Mix(3, "Q4_1"), "Q5_0": Mix(8, "Q5_0"), "Q5_1": Mix(9, "Q5_1"), "Q8_0": Mix(7, "Q8_0"),
    "Q2_K": Mix(10, "Q2_K"), "Q2_K_S": Mix(21, "Q2_K"),
    "Q3_K_S": Mix(11, "Q3_K"), "Q3_K_M": Mix(12, "Q3_K"), "Q3_K_L": Mix(13, "Q3_K"),
    "Q4_K_S": Mix(14, "Q4_K"), "Q4_K_M": Mix(15, "Q4_K"), "Q5_K_S": Mix(16, "Q5_K"), "Q5_K_M": Mix(17, "Q5_K"),
    "Q6_K": Mix(18, "Q6_K"), "IQ4_NL": Mix(25, "IQ4_NL"), "IQ4_XS": Mix(30, "IQ4_XS"),
    "IQ3_S": Mix(26, "IQ3_S"), "IQ3_M": Mix(27, "IQ3_S"), "IQ3_XS": Mix(22, "IQ3_S"), "IQ3_XXS": Mix(23, "IQ3_XXS"),
    "IQ2_S": Mix(28, "IQ2_XS"), "IQ2_M": Mix(29, "IQ2_S"), "IQ2_XS": Mix(20, "IQ2_XS"), "IQ2_XXS": Mix(19, "IQ2_XXS"),
    "IQ1_S": Mix(24, "IQ1_S"), "IQ1_M": Mix(31, "IQ1_M"),
    "TQ1_0": Mix(36, "TQ1_0"), "TQ2_0": Mix(37, "TQ2_0"),
    "MXFP4": Mix(38, "MXFP4"), "MXFP4_MOE": Mix(38, "MXFP4"), "NVFP4": Mix(39, "NVFP4"),
    "Q1_0": Mix(40, "Q1_0"), "Q2_0": Mix(41, "Q2_0"),
}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Where a row is no multiple of the type's block: the type of 32 that is nearest in quality, and F16 where 32 is too wide too.
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}

# Two-dimensional and named .weight, and yet left as they are: small, or read element by element.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|ssm_conv1d"
    r"|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight|attn_rel_b\.weight|\.position_embd|sam\.pos_embd|sam\.neck\."
    r"|sam\.net_|\.rel_pos|\.patch_embd|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd"
    r"|time_mix_(?:first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|^(?:position_embd|token_types)\.weight$")

_CATEGORIES = [(re.compile(pattern), category) for pattern, category in (
    (r"^output\.weight$", "output"), (r"^(?:per_layer_)?token_embd\.weight$", "embedding"),
    (r"attn_qkv\.weight", "qkv"), (r"attn_kv_b\.weight", "kv_b"), (r"attn_v\.weight", "v"), (r"attn_k\.weight", "k"),
    (r"attn_q\.weight", "q"), (r"attn_output\.weight", "attn_output"), (r"ffn_up", "up"), (r"ffn_gate", "gate"),
    (r"ffn_down", "down"))]
_V = ("v", "qkv", "kv_b")     # what the value vectors come from feels errors most


class Facts(NamedTuple):
    """What the rules ask of a model."""

    arch: str
    n_layer: int
    n_gqa: int       # query heads per KV head
    n_expert: int
    imatrix: bool

    @classmethod
    def of(cls, g, imatrix: bool) -> "Facts":
        arch = g.arch if "general.architecture" in g else ""

        def count(key):
            v = g.value(f"{arch}.{key}") if f"{arch}.{key}" in g else 0
            v = v[0] if isinstance(v, (list, tuple)) and v else v
            return v if isinstance(v, int) and v > 0 else 0

        kv = count("attention.head_count_kv") or count("attention.head_count")
        return cls(arch, count("block_count"), count("attention.head_count") // kv if kv else 0, count("expert_count"), imatrix)

    @property
    def shares_v(self) -> bool:
        """The 70B models: attn_v is an eighth of attn_q, so more bits for it cost nothing."""
        return self.n_layer == 80 and self.n_gqa > 1 and self.arch in ("llama", "qwen2", "qwen2vl", "deci")


def known() -> list[str]:
    """The mixes that can be written, in the order of the table."""
    return [name for name, mix in MIXES.items() if lib.pe_can_quantize(BY_NAME[mix.base].id)]


def mix_of(name: str) -> tuple[str, Mix]:
    """The mix of a name in any case; an error that lists the known ones."""
    upper = ALIASES.get(str(name).upper(), str(name).upper())
    if upper not in known():
        raise RequestError(f"type: found {quoted(name)}, expected one of {', '.join(known())}", param="type")
    return upper, MIXES[upper]


def type_of(name: str, param: str) -> str:
    """The tensor type of a name in any case, one that can be written."""
    able = [t.name for t in BY_NAME.values() if lib.pe_can_quantize(t.id)]
    if str(name).upper() not in able:
        raise RequestError(f"{param}: found {quoted(name)}, expected one of {', '.join(able)}", param=param)
    return str(name).upper()


def quantizable(name: str, shape) -> bool:
    """Is this a matrix whose type a mix may choose? Vectors, norms and small tables stay as they are."""
    return name.endswith("weight") and any(n > 1 for n in shape[1:]) and not _KEPT.search(name)


def fitting(name: str, k: int) -> str:
    """The type itself, or what stands in for it where rows of k elements are not whole blocks."""
    if k % BY_NAME[name].block == 0:
        return name
    other = FALLBACK.get(name, "F16")
    return other if k % BY_NAME[other].block == 0 else "F16"


def choose(tensors, mix_name: str, facts: Facts, *, pure=False, output=None, embedding=None, overrides=()) -> dict[str, str]:
    """{tensor name: type name} of those a mix may choose. tensors: objects with name and shape, in any order;
    output, embedding: tensor types; overrides: (compiled expression, tensor type), the first that is found in a name counts."""
    base = MIXES[mix_name].base
    rules = _Rules(mix_name, facts, [t.name for t in tensors])
    out = {}
    for t in sorted(tensors, key=lambda t: (layer_of(t.name), t.name)):   # the running numbers of layers go by this order
        if not quantizable(t.name, t.shape):
            continue
        category = category_of(t.name)
        manual = next((kind for pattern, kind in overrides if pattern.search(t.name)), None)
        said = None                                     # what was asked for by name, and by which parameter
        if embedding and category == "embedding":
            said = embedding, "token_embedding_type"
        elif output and (category == "output" or category == "embedding" and rules.tied):
            said = output, "output_tensor_type"
        elif manual:
            said = manual, "tensor_types"
        if said:
            kind, param = said
            if t.shape[0] % BY_NAME[kind].block:        # a mix has stand-ins, a request has none
                raise RequestError(f"{param}: {kind} for tensor {quoted(t.name)}, whose rows have {t.shape[0]} elements; expected a "
                                   f"multiple of {BY_NAME[kind].block}, or another type ({fitting(kind, t.shape[0])} fits)", param=param)
        elif pure or BY_NAME[base].block == 1:
            kind = base
        else:
            kind = rules.type_for(t, category, base)
        out[t.name] = fitting(kind, t.shape[0])
    return out


def category_of(name: str) -> str:
    return next((category for pattern, category in _CATEGORIES if pattern.search(name)), "other")


def layer_of(name: str) -> int:
    found = re.match(r"blk\.(\d{1,9})\.", name)
    return int(found[1]) if found else -1


def _more_bits(i: int, n: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


class _Rules:
    """One walk over a model's tensors in the order of their layers; counts as it goes."""

    def __init__(self, mix: str, facts: Facts, names: list[str]):
        self.mix, self.facts = mix, facts
        self.tied = "output.weight" not in names
        self.n_v = sum(category_of(n) in _V for n in names)
        self.i_v = self.i_down = self.i_gate = self.i_up = 0

    def type_for(self, t, category: str, base: str) -> str:
        mix, f = self.mix, self.facts
        if category == "output" or (self.tied and category == "embedding"):
            return self._output(t, base)
        if mix in ("MXFP4", "MXFP4_MOE"):
            # gpt-oss and the like keep experts in MXFP4 and the rest in Q8_0; plain MXFP4 is all of it
            experts = len(t.shape) > 2 and t.shape[2] > 1
            return "MXFP4" if experts or mix == "MXFP4" else "Q8_0"
        if category == "embedding":
            return _EMBEDDING.get(mix, base)
        if mix in _SMALLEST:
            return self._smallest(category, base)
        if category in _V:
            kind = self._v(base)
            if f.shares_v and kind in ("Q3_K", "Q4_K"):
                kind = "Q5_K"
            self.i_v += 1
            return "Q8_0" if f.n_expert == 8 else kind
        if category == "k" and f.n_expert == 8:
            return "Q8_0"
        if category in ("k", "q"):
            return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(mix, base)
        if category == "down":
            i, self.i_down = self._layer(t.name, self.i_down), self.i_down + 1
            return self._down(i, f.n_layer, base)
        if category == "attn_output":
            return self._attn_output(base)
        if category in ("gate", "up"):
            running = "i_" + category
            i = self._layer(t.name, getattr(self, running))
            setattr(self, running, getattr(self, running) + 1)
            return "IQ3_XXS" if mix == "IQ3_XS" and f.n_layer // 8 <= i < 7 * f.n_layer // 8 else base
        return base

    def _layer(self, name: str, running: int) -> int:
        """With experts several tensors of a layer share a category, so the name says which layer it is."""
        return layer_of(name) if self.facts.n_expert > 1 else running

    def _output(self, t, base: str) -> str:
        if self.mix in ("MXFP4", "MXFP4_MOE") or self.facts.arch == "falcon" or t.shape[0] % BY_NAME[base].block:
            return "Q8_0"
        if self.mix in _SMALLEST or self.mix == "IQ3_XXS":
            return "Q5_K"
        return base if base == "Q8_0" else "Q6_K"

    def _v(self, base: str) -> str:
        mix, wide = self.mix, self.facts.n_gqa >= 4
        if mix == "Q2_K":
            return "Q4_K" if wide else "Q3_K"
        if wide and mix in ("Q2_K_S", "IQ3_XS", "IQ3_S"):
            return "Q4_K"
        if mix == "IQ3_XXS":
            return "Q4_K" if wide else "IQ3_XXS" if self.facts.imatrix else "IQ3_S"
        if mix == "IQ3_M":
            return "Q4_K"
        if mix == "Q3_K_M":
            return "Q5_K" if self.i_v < 2 else "Q4_K"
        if mix == "Q3_K_L" or wide and mix in ("IQ4_NL", "IQ4_XS"):
            return "Q5_K"
        if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(self.i_v, self.n_v):
            return "Q6_K"
        return "Q5_K" if mix == "Q4_K_S" and self.i_v < 4 else base

    def _down(self, i: int, n: int, base: str) -> str:
        mix, falcon, early = self.mix, self.facts.arch == "falcon", i < n // 8
        if mix == "Q2_K":
            return "Q3_K"
        if mix == "Q2_K_S":
            return "Q4_K" if early else base
        if mix == "IQ3_XXS" and not self.facts.imatrix:
            return "Q4_K" if early else "Q3_K"
        if mix == "Q3_K_M":
            return "Q5_K" if i < n // 16 else "Q4_K" if not falcon or _more_bits(i, n) else "Q3_K"
        if mix == "IQ3_M":
            return "Q4_K" if early or self.facts.n_expert == 8 and _more_bits(i, n) else base
        if mix == "Q3_K_L":
            return "Q4_K" if falcon else "Q5_K"
        if mix == "Q4_K_M":
            if falcon:
                return "Q6_K" if i < n // 16 else "Q5_K" if _more_bits(i, n) else "Q4_K"
            return "Q6_K" if _more_bits(i, n) else base
        if mix in ("IQ4_NL", "IQ4_XS"):
            return "Q5_K" if early and not self.facts.imatrix else base
        if mix == "Q5_K_M":
            return "Q6_K" if _more_bits(i, n) else base
        if mix == "Q4_K_S":
            return "Q5_K" if early and not falcon else base
        if mix in ("Q4_0", "Q5_0") and early and self.facts.imatrix:
            return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[mix]
        return base

    def _attn_output(self, base: str) -> str:
        mix = self.mix
        if self.facts.arch == "falcon":
            return "Q4_K" if mix == "Q3_K_L" else base
        if self.facts.n_expert == 8:
            return "Q5_K" if mix in _EIGHT_EXPERTS else base
        return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(mix, base)

    def _smallest(self, category: str, base: str) -> str:
        """The mixes of about two bits and less."""
        f, better = self.facts, "IQ3_S" if self.mix in ("IQ2_S", "IQ2_M") else "Q2_K"
        if category in _V:
            self.i_v += 1
            return "Q4_K" if f.n_gqa >= 4 or f.n_expert >= 4 else better
        if category == "k" and f.n_expert == 8:
            return "Q4_K"
        if category == "down":
            self.i_down += 1
            return better if self.i_down - 1 < f.n_layer // 8 else base
        if category == "attn_output":
            if f.n_expert == 8:
                return "Q5_K"
            return "IQ2_XXS" if self.mix in ("IQ1_S", "IQ1_M") else "IQ3_S" if self.mix in ("IQ2_S", "IQ2_M") else base
        return base


_SMALLEST = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
_EMBEDDING = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "Q2_K"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "Q4_K"),
}
_EIGHT_EXPERTS = ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS")
