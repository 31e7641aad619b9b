"""Pre-tokenizers of byte-level BPE by the names GGUF gives them (tokenizer.ggml.pre).

A rule is a list of regular expressions applied one after the other, each cutting the pieces left by the one
before it into matches and the text between them. The expressions are those of the models' own tokenizers.
Every one runs in linear time; that of tiny_aya, which groups digits from the right by looking ahead, needs two
minutes for 100 KB of digits and is left out. A table, exempt from the length rule. May be imported by pyengine.tokenizer.bpe only.
"""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits, words=r"[^\r\n\p{L}\p{N}]?\p{L}+", marks=""):
    return rf"{_CONTRACTION}|{words}|\p{{N}}{digits}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*{_BLANKS}"


_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _o200k(digits, suffix):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}"
            rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_BLANKS}")


# Letters of the cased scripts as deepseek-llm lists them (no CJK, no Arabic, no Indic), by code point: several
# of them change under Unicode normalization, which editors and web pages apply.
_CASED = "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A "
    "38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F "
    "2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943 ").split())
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = [
    r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
    _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _BLANKS]

_RULES = {
    "gpt-2": [_GPT2],
    "digits": [r"\p{N}", _GPT2],
    "llama3": [_cl100k("{1,3}")],
    "qwen2": [_cl100k("")],
    "qwen35": [_cl100k("", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{M}")],
    "gpt-4o": [_o200k("{1,3}", _CONTRACTION + "?")],
    "tekken": [_o200k("", "")],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+",
                     r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": _DEEPSEEK3,
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _BLANKS],
}

_FAMILIES = {
    "gpt-2": "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais "
             "trillion granite-docling exaone4 jina-v1-en jina-v2-code roberta-bpe",
    "digits": "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "llama3": "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 "
              "chatglm-bpe",
    "qwen2": "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
    "qwen35": "qwen35",
    "gpt-4o": "gpt-4o llama4 kanana2 talkie minimax-m2",
    "tekken": "tekken",
    "falcon": "falcon",
    "default": "default",
    "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder",
    "deepseek-v3": "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    "bloom": "bloom gpt3-finnish poro-chat",
    "viking": "viking",
    "bailingmoe": "bailingmoe bailingmoe2 llada-moe",
    "seed-coder": "seed-coder",
}

RULES = {name: _RULES[family] for family, names in _FAMILIES.items() for name in names.split()}

# A whole word that is a token is that token, whatever the merges would make of it.
WHOLE_WORDS = frozenset("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken".split())
# Files without tokenizer.ggml.add_bos_token still begin with BOS.
ADDS_BOS = frozenset("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken".split())
