"""What tiny random files can be: one Spec, the families' tables, and what can be made wrong in each.

Not the files themselves (tiny_gguf.py, through which tests import all of this). Imported by the other tiny_* files only.
"""

import dataclasses

WEIGHT_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # fmt: skip
SMALL_TYPES = ("MXFP4", "NVFP4", "TQ2_0", "Q2_0", "TQ1_0", "Q1_0")  # coarse: weights keep little more than their signs
WRONG = {
    "llama": ("rope", "bias", "norm", "scale"),
    "gemma3": ("rope", "norm", "scale"),
    "qwen2": ("rope", "bias", "norm", "scale"),
    "qwen3": ("rope", "norm", "head norm"),
    "qwen3moe": ("rope", "norm", "head norm"),
    "gpt-oss": ("rope", "norm", "bias", "expert bias", "sinks", "window", "yarn"),
    "gemma2": ("rope", "norm", "scale", "attention cap", "final cap", "window"),
    "phi3": ("rope", "norm", "scale", "factors", "magnitude"),
    "gemma": ("rope", "norm", "scale"),
    "command-r": ("rope", "norm", "scale", "logit scale"),
    "cohere2": ("rope", "norm", "scale", "window"),
    "smollm3": ("rope", "norm", "scale"),
    **dict.fromkeys(("ernie4_5", "exaone", "internlm2", "pangu-embedded", "xverse"), ("rope", "norm", "scale")),
    "granite": ("rope", "norm", "embedding scale", "attention scale", "residual scale", "logit scale"),
    "mistral3": ("rope", "norm", "yarn", "log multiplier", "temperature"),
    "granitemoe": ("rope", "norm", "residual scale", "shared expert"),
    "lfm2": ("rope", "norm", "head norm", "taps", "gates"),
    "lfm2moe": ("rope", "norm", "head norm", "gates"),
    "bert": ("norm", "scale", "bias", "positions", "types", "direction"),
    "nomic-bert": ("rope", "norm", "scale", "types", "direction"),
    "deepseek2": ("rope", "norm", "scale", "latent norm", "latent order", "shared expert", "expert weights"),
}
ENCODERS = ("bert", "nomic-bert")
DECODERS = tuple(arch for arch in WRONG if arch not in ENCODERS)
WRONG_EXPERTS = ("expert order", "experts used")  # as well, where there are experts
EXPERTS = {"qwen3moe": (8, 3), "gpt-oss": (8, 3), **dict.fromkeys(("deepseek2", "granitemoe", "lfm2moe"), (8, 3))}  # experts, and how many a token takes; llama has them where the spec says so
HALVES = ("gpt-oss", "exaone", "pangu-embedded", "gemma", "gemma2", "gemma3", "lfm2", "lfm2moe", "nomic-bert", "phi3", "qwen2", "qwen3", "qwen3moe")  # rope turns pairs half a head apart
GRANITE, LFM = ("granite", "granitemoe"), ("lfm2", "lfm2moe")
DENSE_FIRST = ("deepseek2", "lfm2moe")  # the first n_dense layers have no experts
GEMMA = ("gemma2", "gemma3")  # norms behind the blocks
COHERE = ("command-r", "cohere2")  # layer norms, one a layer
LAYERS = {"cohere2": 4, "gemma2": 4, "gemma3": 6, "lfm2": 4, "lfm2moe": 4, "smollm3": 4}  # else two: gemma3's sixth is global, smollm3's fourth has no rope
BIASES = {"llama": "qkvof", "granite": "qkvof", "mistral3": "qkvof", "qwen2": "qkv", "smollm3": "qkv", "pangu-embedded": "qkvo", "gpt-oss": "qkvoe",
          "bert": "qkvofn", "nomic-bert": "n"}  # o: output, f: feed-forward, e: experts and router, n: norms

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
    n_expert: int = 0  # 0: EXPERTS; llama: none
    n_expert_used: int = 0  # 0: EXPERTS, or two
    n_ff_exp: int = 0  # 0: n_ff; not llama, whose experts are as wide as n_ff
    expert_scale: float = 0.0  # 0: no key
    n_dense: int = 1  # lfm2moe and deepseek2, as all that follows: layers without experts
    n_shared: int = 2  # experts that every token takes; granitemoe as well
    gating: int = 0  # 1: softmax, 2: sigmoid; 0: no key, and softmax is meant
    selection_bias: bool = False  # lfm2moe always
    expert_groups: tuple = ()  # groups and how many of them are used
    normalize: bool = False
    latent: int = 64  # kv_lora_rank
    q_latent: int = 0  # 0: one matrix makes q
    n_rot: int = 32  # columns of a head of q and k that turn, and those before them that do not; head_dim is not looked at
    n_still: int = 32
    v_dim: int = 32
    joined: bool = False  # attn_kv_b in place of attn_k_b and attn_v_b
    n_ctx_train: int = 2048
    eps: float = 1e-5
    tied: bool = False
    biases: bool = False  # where BIASES says; qwen2 always has them
    fused: bool = False  # q, k and v in one tensor; phi3 and nomic-bert always
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
    pooling: int = -1  # pooling_type: 0 none, 1 mean, 2 cls, 3 last, 4 rank; -1: no key
    labels: int = 0  # of a classifier (cls.output.weight), with bert behind a dense layer
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
        if self.arch in ENCODERS:
            object.__setattr__(self, "n_head_kv", (self.n_head,))
        if self.arch in LFM and len(self.n_head_kv) == 1:
            object.__setattr__(self, "n_head_kv", tuple(i % 2 * self.n_head_kv[0] for i in range(self.n_layer)))
        if (self.biases and self.arch not in BIASES) or (self.rope_freqs and self.arch not in ("llama", "granite", "mistral3")):
            raise ValueError(f"{self.arch} has no biases, or no rope_freqs")
        for name, arch, value in (("biases", ("qwen2", "gpt-oss", *ENCODERS), True), ("fused", ("phi3", "nomic-bert"), True), ("selection_bias", ("lfm2moe",), True), ("tied", ("gemma", "gemma2", *COHERE), True)):
            if self.arch in arch:
                object.__setattr__(self, name, value)
        experts, used = EXPERTS.get(self.arch, (0, 2 if self.n_expert else 0))
        object.__setattr__(self, "n_expert", self.n_expert or experts)
        object.__setattr__(self, "n_expert_used", self.n_expert_used or used)
        if not self.head_dim and self.n_embd % self.n_head and self.arch != "deepseek2":
            raise ValueError(f"n_head {self.n_head} does not divide n_embd {self.n_embd}: give head_dim")

    @property
    def d_head(self):
        return self.n_still + self.n_rot if self.arch == "deepseek2" else self.head_dim or self.n_embd // self.n_head

    def kv_heads(self, layer):
        return self.n_head_kv[layer % len(self.n_head_kv)]

    def ff(self, layer):
        return self.n_ff[layer % len(self.n_ff)]


def wrong_of(spec):
    """What write() can make wrong in a file of this spec."""
    more = {"selection bias": spec.selection_bias, "query norm": spec.arch == "deepseek2" and spec.q_latent, "log multiplier": spec.arch == "deepseek2" and
            spec.yarn_log_multiplier, "yarn": spec.arch == "deepseek2" and spec.rope_scaling == "yarn", "groups": spec.expert_groups}  # fmt: skip
    return WRONG[spec.arch] + tuple(w for w, there in more.items() if there) + (WRONG_EXPERTS if spec.n_expert else ())


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
    "groups": {"expert_group_used_count": lambda v: v - 1},
    "expert weights": {"expert_weights_scale": lambda v: 1.25 * v},
    "experts used": {"expert_used_count": lambda v: v + 1},
    "temperature": {"attention.temperature_scale": lambda v: 0.0},
    "direction": {"attention.causal": lambda v: True},
}
