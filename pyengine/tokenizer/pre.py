"""Pre-tokenizers of byte-level BPE by the names GGUF gives them (tokenizer.ggml.pre): every name that llama.cpp knows.

A rule is a list of expressions (rules.py) applied one after the other, each cutting the pieces left by the one before it
into matches and the text between them. They give the ids that llama.cpp gives (tests/test_tokenizer_llama.py, every
name), which now and then are not those of the model's own tokenizer; docs/models.md tells where. In one thing the model's
own is followed: combining marks are part of a word in the rules of gpt-4o, tekken and kimi-k2, which llama.cpp leaves out
there (and has in later rules of the same kind), so that every vowel sign of Hindi, Arabic or Thai began a new word.
A table, exempt from the length rule. May be imported by pyengine.tokenizer.bpe and .__init__ only.
"""
from .rules import Threes

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_NEWLINES = r"|\s*[\r\n]+"
_BLANKS = r"|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"


def _cl100k(digits, contraction=_CONTRACTION + "|", words=_LETTERS, signs=_SIGNS, blanks=_NEWLINES + _BLANKS):
    return rf"{contraction}{words}|\p{{N}}{digits}{signs}{blanks}"


# A word in the style of o200k: capitals, then the rest of a word, by the cases of ASCII letters only, as llama.cpp has it.
# No vocabulary trained with all of Unicode's cases has a token across the end of such a word, so ids are the same.
_UPPER, _LOWER = r"[\p{L}\p{M}&&[^a-z]]", r"[\p{L}\p{M}&&[^A-Z]]"


def _o200k(digits, suffix=_CONTRACTION + "?", cases=True):
    words = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{suffix}"
    if cases:
        words = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}")
    return _cl100k(digits, "", words, r"| ?[^\s\p{L}\p{N}]+[\r\n/]*")


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
_WORDS3 = _ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_CJK3 = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_LINES = r"[^\n]+|[\n]+"
_SENTENCE = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = ("\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
        "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\U0002f800-\U0002fa1f")
# Scripts without blanks between words, as afmoe lists them: from U+8C48 on, where U+F900 was meant, which normalizes to it.
_UNSPACED = ("[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
             "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
_HALVES = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s"

_RULES = {
    "gpt-2": [_GPT2],
    "digits": [r"\p{N}", _GPT2],
    "llama3": [_cl100k("{1,3}")],
    "minicpm5": [r"\p{N}{1,3}", _cl100k("+")],
    "jais-2": [_cl100k("{1,3}", blanks=_NEWLINES + _HALVES)],
    "k2-horizon": [_cl100k("{1,3}", contraction=_CONTRACTION.replace("'[sS]", "'[sSſ]") + "|",
                           words="[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}\u200c\u200d]+")],
    "qwen2": [_cl100k("")],
    "laguna": [_LINES, _cl100k("")],
    "ufakzeka": [_cl100k("", contraction="")],
    "qwen35": [_cl100k("", words=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", signs=r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")],
    "bailingmoe": [_cl100k("", blanks=r"|\s*[\r\n]" + _BLANKS)],
    "seed-coder": [_cl100k("", signs=r"| ?[^\s\p{L}\p{N}\r\n]+")],
    # A word of exaone-moe goes on over single blanks before letters.
    "exaone-moe": [_cl100k("", words=r"[^\r\n\p{L}\p{N}]?\p{L}(?:[\p{L}\p{M}]++| \p{L})*+",
                           signs=r"| ?[^\s\p{L}\p{N}]+[\r\n/]?", blanks=r"|\s*[\r\n]" + _BLANKS)],
    "gpt-4o": [_o200k("{1,3}")],
    "tekken": [_o200k("", "")],
    "tiny_aya": [Threes(r"\p{N}", behind=True, before=False), _o200k("{1,3}", cases=False)],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK3, _o200k("", cases=False)],
    "kimi-k2": [f"[{_HAN}]+|" + _cl100k("{1,3}", "", rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}&&[^{_HAN}]]+{_CONTRACTION}?")],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    # Without the blanks in the ranges from U+0800 and from U+3000 on: they are blanks to llama.cpp first.
    "deepseek-llm": [r"[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～\u2018-\u201f\u3001\u3002]+", r"\s+$",
                     "[一-龥\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+", r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", _CJK3, _WORDS3 + r"[\r\n]*" + _NEWLINES + _BLANKS],
    "spark2_5": [r"\p{N}{1,3}", _CJK3, _WORDS3 + r"|[\r\n]" + _BLANKS, r"\p{N}"],
    "afmoe": [Threes(r"\p{N}", behind=True, before=False), _UNSPACED, _WORDS3 + r"[\r\n]*" + _NEWLINES + _BLANKS],
    "superbpe": [r"\p{N}+", Threes(r"[0-9]", behind=False, before=True)],
    "bloom": [_SENTENCE],
    "viking": [_SENTENCE, r"\p{N}"],
    "chameleon": [r"<sentinel:[0-9]+>", r"IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2],
    "lines": [_LINES],
    "mmbert": ["▁[^▁\\n]*|[^▁\\n]+|[\\n]+"],
}

_FAMILIES = {
    "gpt-2": "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais "
             "trillion granite-docling exaone4 jina-v1-en jina-v2-code roberta-bpe",
    "digits": "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "llama3": "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 glm5 "
              "chatglm-bpe",
    "qwen2": "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
    "gpt-4o": "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
    "tiny_aya": "tiny_aya cohere2moe",
    "deepseek-v3": "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    "bloom": "bloom gpt3-finnish poro-chat",
    "bailingmoe": "bailingmoe bailingmoe2 llada-moe",
    "lines": "gemma4 granite-embed-multi-311m sarvam-moe",
}
for _one in "minicpm5 jais-2 k2-horizon laguna ufakzeka qwen35 seed-coder exaone-moe tekken youtu kimi-k2 falcon default " \
            "deepseek-llm deepseek-coder spark2_5 afmoe superbpe viking chameleon mmbert".split():
    _FAMILIES[_one] = _one

RULES = {name: tuple(_RULES[family]) for family, names in _FAMILIES.items() for name in names.split()}

_LLAMA3 = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split()
# A whole word that is a token is that token, whatever the merges would make of it.
WHOLE_WORDS = frozenset([*_LLAMA3, "tekken", "minicpm5", "youtu", "glm4", "glm5", "granite-embed-multi-97m"])
# A word of newlines only, too.
WHOLE_NEWLINES = frozenset(["gemma4", "granite-embed-multi-311m", "mmbert"])
# Merges are of characters, with U+2581 for blanks as in sentencepiece, and bytes that no token holds are <0x00> to <0xFF>.
OF_CHARACTERS = frozenset(["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"])
# Files without tokenizer.ggml.add_bos_token still begin with BOS.
ADDS_BOS = frozenset([*_LLAMA3, "tekken", "chameleon", "gemma4", "granite-embed-multi-311m"])
