"""Every architecture string that llama.cpp knows and this package does not run: what it would take, or why not, and the
nearest that runs. A table and its sentences; docs/models.md is written from it (tools/arch_table.py).

Imported by arch/__init__ when a file is turned away, and by the tool. Imports nothing.
"""

# What a family needs that there are no words for yet; what is named first in a line of PLANNED is looked up here.
WORDS = {
    "adapters": "adapters that a token of the text chooses",
    "alibi": "attention biases by distance (ALiBi) in place of rope",
    "blocks": "blocks that differ from layer to layer in their parts",
    "both": "windows that reach in both directions",
    "clamp": "norms without weights, or values held in a range",
    "decay": "linear attention, a state beside the cache",
    "early": "experts that are weighted before they are computed, and windows of whole chunks",
    "experts": "experts that share a smaller one in groups",
    "ff": "another activation (the square of relu, xIELU)",
    "gated": "a gate, a number for each head or row, on what attention or an expert gives",
    "groups": "norms of groups of channels, and values made by experts",
    "headnorm": "norms of q and k with a weight for each head",
    "recurrence": "a recurrence, a state beside the cache",
    "sections": "rope in sections (pictures)",
    "sparse": "attention that chooses its keys",
    "streams": "several residual streams",
    "windows": "windows by its own rule",
    "words": "no new word, only its own file",
}

# name: (what is missing, by WORDS; the nearest that runs)
PLANNED = {
    "afmoe": ("gated", "qwen3moe"), "apertus": ("ff", "qwen3"), "arcee": ("ff", "llama"), "arctic": ("words", "llama"),
    "arwkv7": ("recurrence", "qwen2"), "baichuan": ("alibi", "llama"), "bailingmoe": ("words", "llama"),
    "bailingmoe2": ("words", "qwen3moe"), "bailingmoe3": ("decay", "llama"), "bitnet": ("ff", "llama"), "bloom": ("alibi", "llama"),
    "chameleon": ("headnorm", "llama"), "chatglm": ("words", "phi3"), "codeshell": ("words", "llama"), "cogvlm": ("blocks", "llama"),
    "cohere2moe": ("words", "cohere2"), "dbrx": ("clamp", "llama"), "deci": ("blocks", "llama"), "deepseek": ("words", "deepseek2"),
    "deepseek2-ocr": ("words", "deepseek2"), "deepseek32": ("sparse", "deepseek2"), "deepseek4": ("sparse", "deepseek2"),
    "dots1": ("words", "qwen3moe"), "dots3note": ("sparse", "deepseek2"), "ernie4_5-moe": ("words", "llama"),
    "eurobert": ("words", "llama"), "exaone-moe": ("words", "qwen3moe"), "exaone4": ("words", "qwen3"), "falcon": ("words", "command-r"),
    "falcon-h1": ("recurrence", "llama"), "gemma-embedding": ("both", "gemma3"), "gemma-embedding2": ("both", "gemma3"),
    "gemma3n": ("streams", "gemma3"), "gemma4": ("blocks", "gemma3"), "glm-dsa": ("sparse", "deepseek2"), "glm4": ("words", "phi3"),
    "glm4moe": ("words", "qwen3moe"), "glm5-next": ("decay", "qwen3"), "gpt2": ("words", "llama"), "gptneox": ("words", "command-r"),
    "granite_swa": ("windows", "granite"), "granitehybrid": ("recurrence", "granite"),
    "graniteswitch": ("adapters", "granite"), "grok": ("words", "gemma2"), "grovemoe": ("experts", "qwen3moe"),
    "hrm_text": ("blocks", "llama"), "hunyuan-dense": ("words", "qwen3"), "hunyuan-moe": ("words", "qwen3moe"),
    "hunyuan_vl": ("sections", "qwen3"), "hy_v3": ("words", "qwen3moe"), "hy_v4": ("streams", "deepseek2"), "jais": ("alibi", "llama"),
    "jais2": ("ff", "llama"), "jamba": ("recurrence", "llama"), "jina-bert-v2": ("alibi", "bert"), "jina-bert-v3": ("words", "bert"),
    "k2-horizon": ("groups", "qwen2"), "kimi-k3": ("decay", "llama"), "kimi-linear": ("decay", "llama"), "laguna": ("gated", "qwen3moe"),
    "llama-embed": ("words", "llama"), "llama4": ("early", "llama"), "maincoder": ("words", "qwen3"),
    "mamba": ("recurrence", "llama"), "mamba2": ("recurrence", "llama"), "maple": ("clamp", "qwen3moe"), "mellum": ("words", "qwen3moe"),
    "mimo2": ("words", "qwen3moe"), "minicpm": ("words", "granite"), "minicpm3": ("words", "deepseek2"), "minimax-01": ("decay", "llama"),
    "minimax-m2": ("words", "qwen3moe"), "minimax-m3": ("sparse", "qwen3moe"), "mistral4": ("words", "deepseek2"),
    "modern-bert": ("both", "bert"), "mpt": ("alibi", "llama"), "muse-glimmer": ("windows", "gemma3"), "nanbeige": ("blocks", "llama"),
    "nemotron": ("ff", "llama"), "nemotron_h": ("recurrence", "llama"), "nemotron_h_moe": ("recurrence", "llama"),
    "neo-bert": ("words", "bert"), "nomic-bert-moe": ("words", "bert"), "olmo": ("clamp", "llama"),
    "olmo2": ("words", "qwen3"), "olmoe": ("words", "qwen3moe"), "openelm": ("blocks", "qwen3"), "orion": ("words", "llama"),
    "paddleocr": ("sections", "llama"), "phi2": ("words", "phi3"), "phimoe": ("words", "phi3"), "plamo": ("words", "llama"),
    "plamo2": ("recurrence", "llama"), "plamo3": ("words", "gemma3"), "plm": ("words", "deepseek2"), "qwen": ("words", "qwen2"),
    "qwen2moe": ("gated", "qwen2"), "qwen2vl": ("sections", "qwen2"), "qwen35": ("decay", "qwen3"), "qwen35moe": ("decay", "qwen3"),
    "qwen3next": ("decay", "qwen3"), "qwen3vl": ("sections", "qwen3"), "qwen3vlmoe": ("sections", "qwen3"), "qwen4exp": ("decay", "qwen3"),
    "refact": ("alibi", "llama"), "rwkv6": ("recurrence", "llama"), "rwkv6qwen2": ("recurrence", "qwen2"), "rwkv7": ("recurrence", "llama"),
    "seed_oss": ("words", "qwen2"), "smallthinker": ("words", "qwen3moe"), "spark2_5": ("windows", "gemma2"),
    "stablelm": ("headnorm", "llama"), "starcoder": ("words", "llama"), "starcoder2": ("words", "qwen2"), "step35": ("gated", "qwen3moe"),
    "talkie": ("clamp", "qwen3"),
}

# name: why not; the nearest that runs, or "" where nothing is near
NOT = {
    "clef": ("it chooses between options with a head of its own: it does not write", "qwen3"),
    "clip": ("it is a vision projector (mmproj), not a language model", ""),
    "dflash": ("it only guesses for another model, whose layers it reads", "qwen3"),
    "dream": ("it is a diffusion model: it does not write from left to right", "qwen2"),
    "eagle3": ("it only guesses for another model, whose layers it reads", "llama"),
    "gemma4-assistant": ("it only guesses for another model, whose cache it reads", "gemma3"),
    "gptj": ("llama.cpp knows the name and has no graph for it either", ""),
    "llada": ("it is a diffusion model: it does not write from left to right", "llama"),
    "llada-moe": ("it is a diffusion model: it does not write from left to right", "llama"),
    "pockettts": ("speech models are not supported", ""),
    "qwen3tts": ("speech models are not supported", "qwen3"),
    "rnd1": ("it is a diffusion model: it does not write from left to right", "qwen3"),
    "t5": ("encoder-decoder models are not supported", ""),
    "t5encoder": ("T5's encoders are not supported, which know positions by biases", "bert"),
    "wavtokenizer-dec": ("speech models are not supported", ""),
    "whisper": ("speech models are not supported", ""),
}


def why_not(name: str) -> str:
    """What to say of a string that is not run; "" if it is unknown."""
    if name in PLANNED:
        word, nearest = PLANNED[name]
        return f"planned, it needs {WORDS[word]}; the nearest that runs is {nearest}"
    if name in NOT:
        why, nearest = NOT[name]
        return why + (f"; the nearest that runs is {nearest}" if nearest else "")
    return ""
