"""mistral3: Mistral Small 3.1 and later, Ministral 3 (Mistral AI 2025): llama, with yarn and, where the file has
attention.temperature_scale, queries that grow with the logarithm of their position beyond each original context."""

from ..errors import GGUFError
from . import hyper as keys
from . import layers, rope

MOST_STEPS = 4096      # scales made when a model is opened, 20 us each; Ministral 3 has 16


def hyper(gguf):
    hp = keys.read(gguf, "mistral3")
    return hp.with_(temperature=keys.optional(gguf, "mistral3.attention.temperature_scale", 0.0, most=1e30),   # Ministral 3 has 0.1; scales are float32
                    temperature_length=hp.rope.original_context)


def build(g, hp):
    if hp.temperature and g.n_ctx > MOST_STEPS * hp.temperature_length:
        key = "mistral3.rope.scaling.original_context_length"
        raise GGUFError(f"{g.gguf.path}: key '{key}' is {hp.temperature_length}, expected at least {-(-g.n_ctx // MOST_STEPS)} for "
                        f"an attention.temperature_scale over {g.n_ctx} positions", key=key)
    table = rope.table(g, hp)
    x = layers.embed(g, hp)
    for i in range(hp.n_layer):
        h = layers.norm(g, x, f"blk.{i}.attn_norm", hp)
        x = g.add(x, layers.attention(g, h, i, hp, table, "adjacent"))
        h = layers.norm(g, x, f"blk.{i}.ffn_norm", hp)
        x = g.add(x, layers.glu(g, h, i, hp, "silu"))
    layers.head(g, x, hp)
