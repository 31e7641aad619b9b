"""Every architecture string that llama.cpp knows and this package does not run: what it would take, or why not, and the
nearest that runs. A table and its sentences; docs/models.md is written from it (tools/arch_table.py).

Imported by arch/__init__ when a file is turned away, and by the tool. Imports nothing.
"""

# What a family needs that there are no words for yet; what is named first in a line of MISSING is looked up here.
WORDS = {
    "alibi": "attention biases by distance (ALiBi) in place of rope",
    "blocks": "blocks that differ from layer to layer in their parts",
    "both": "windows that reach in both directions",
    "decay": "linear attention, a state beside the cache",
    "experts": "a file of its own for how it chooses and shares its experts",
    "ff": "another feed-forward",
    "latent": "latent attention",
    "layernorm": "another feed-forward, and layer norms with biases",
    "norms": "norms in other places",
    "recurrence": "a recurrence, a state beside the cache",
    "sections": "rope in sections (pictures)",
    "sparse": "attention that chooses its keys",
    "streams": "several residual streams",
    "windows": "windows by its own rule",
    "words": "no new word, only its own file",
}

# name: (what is missing, by WORDS; the nearest that runs)
PLANNED = {
    "afmoe": ("experts", "llama"), "apertus": ("ff", "qwen3"), "arcee": ("ff", "llama"), "arctic": ("experts", "llama"),
    "baichuan": ("alibi", "llama"), "bailingmoe": ("experts", "llama"), "bailingmoe2": ("experts", "qwen3"),
    "bailingmoe3": ("decay", "llama"), "bitnet": ("norms", "llama"), "bloom": ("alibi", "llama"),
    "chameleon": ("norms", "llama"), "chatglm": ("words", "phi3"), "codeshell": ("layernorm", "llama"), "cogvlm": ("blocks", "llama"),
    "cohere2moe": ("experts", "cohere2"), "dbrx": ("experts", "llama"),
    "deci": ("blocks", "llama"), "deepseek": ("experts", "llama"), "deepseek2-ocr": ("experts", "llama"),
    "deepseek32": ("sparse", "llama"), "deepseek4": ("sparse", "llama"), "dots1": ("experts", "qwen3"), "dots3note": ("experts", "llama"),
    "ernie4_5-moe": ("experts", "llama"), "eurobert": ("words", "llama"),
    "exaone-moe": ("experts", "qwen3"), "exaone4": ("norms", "qwen3"), "falcon": ("layernorm", "command-r"), "falcon-h1": ("recurrence", "llama"),
    "gemma-embedding": ("both", "gemma3"), "gemma3n": ("streams", "gemma3"), "gemma4": ("blocks", "gemma3"),
    "glm-dsa": ("sparse", "llama"), "glm4": ("norms", "phi3"), "glm4moe": ("experts", "qwen3"), "glm5-next": ("decay", "qwen3"),
    "gpt2": ("words", "llama"), "gptneox": ("layernorm", "command-r"), "granite_swa": ("windows", "granite"),
    "granitehybrid": ("recurrence", "granite"), "granitemoe": ("experts", "granite"), "graniteswitch": ("experts", "granite"),
    "grok": ("experts", "gemma2"), "grovemoe": ("experts", "qwen3"), "hrm_text": ("blocks", "llama"), "hunyuan-dense": ("norms", "qwen3"),
    "hunyuan-moe": ("experts", "qwen3"), "hunyuan_vl": ("sections", "qwen3"), "hy_v3": ("experts", "qwen3"), "hy_v4": ("experts", "qwen3"),
    "jais": ("alibi", "llama"), "jais2": ("layernorm", "llama"), "jamba": ("recurrence", "llama"),
    "jina-bert-v2": ("alibi", "bert"), "jina-bert-v3": ("words", "bert"), "kimi-k3": ("decay", "llama"), "kimi-linear": ("decay", "llama"),
    "laguna": ("experts", "qwen3"), "lfm2moe": ("experts", "lfm2"), "llama-embed": ("words", "llama"),
    "llama4": ("experts", "llama"), "maincoder": ("words", "qwen3"), "mamba": ("recurrence", "llama"), "mamba2": ("recurrence", "llama"),
    "maple": ("experts", "qwen3"), "mellum": ("experts", "qwen3"), "mimo2": ("experts", "qwen3"), "minicpm": ("words", "granite"),
    "minicpm3": ("latent", "granite"), "minimax-01": ("decay", "llama"), "minimax-m2": ("experts", "qwen3"), "minimax-m3": ("experts", "qwen3"),
    "mistral4": ("latent", "mistral3"), "modern-bert": ("both", "bert"), "mpt": ("alibi", "llama"), "muse-glimmer": ("windows", "gemma3"),
    "nanbeige": ("blocks", "llama"), "nemotron": ("layernorm", "llama"), "nemotron_h": ("recurrence", "llama"),
    "nemotron_h_moe": ("recurrence", "llama"), "neo-bert": ("words", "bert"), "nomic-bert": ("words", "bert"), "nomic-bert-moe": ("experts", "bert"),
    "olmo": ("words", "llama"), "olmo2": ("norms", "qwen3"), "olmoe": ("experts", "qwen3"), "openelm": ("blocks", "qwen3"),
    "orion": ("layernorm", "llama"), "paddleocr": ("sections", "llama"), "phi2": ("layernorm", "phi3"),
    "phimoe": ("experts", "phi3"), "plamo": ("words", "llama"), "plamo2": ("recurrence", "llama"), "plamo3": ("norms", "gemma3"),
    "plm": ("latent", "llama"), "qwen": ("words", "qwen2"), "qwen2moe": ("experts", "qwen2"), "qwen2vl": ("sections", "qwen2"),
    "qwen35": ("decay", "qwen3"), "qwen35moe": ("decay", "qwen3"), "qwen3next": ("decay", "qwen3"),
    "qwen3vl": ("sections", "qwen3"), "qwen3vlmoe": ("sections", "qwen3"), "qwen4exp": ("decay", "qwen3"), "refact": ("alibi", "llama"),
    "rwkv6": ("recurrence", "llama"), "rwkv6qwen2": ("recurrence", "qwen2"), "rwkv7": ("recurrence", "llama"), "arwkv7": ("recurrence", "qwen2"),
    "seed_oss": ("words", "qwen2"), "smallthinker": ("experts", "qwen3"), "spark2_5": ("windows", "gemma2"), "stablelm": ("layernorm", "llama"),
    "starcoder": ("words", "llama"), "starcoder2": ("layernorm", "qwen2"), "step35": ("experts", "qwen3"), "talkie": ("norms", "qwen3"),
}

# name: why not; the nearest that runs, or "" where nothing is near
NOT = {
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
