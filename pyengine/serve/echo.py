"""Log probabilities of a prompt's own tokens, for /v1/completions with echo and logprobs. Not the answer's. Imported by openai.

The engine gives them as (logprob, likeliest) of each token but the first, which nothing comes before.
"""
from .answers import token_name


async def of_prompts(llm, prompts, texts, top, options) -> list:
    """For each prompt its four lists, as an answer's are (openai.py), and where its text ends."""
    how = {name: options[name] for name in ("priority", "key", "salt", "deadline") if name in options}
    found = [await llm.prompt_logprobs(tokens, top, **how) for tokens in prompts]
    return [lists(llm.llama.tokenizer, *each) for each in zip(prompts, texts, found)]


def lists(tokenizer, tokens, text, entries):
    pieces, raw = _Pieces(tokenizer), text.encode("utf-8", "surrogatepass")
    # Characters that begin before a byte: a token may begin in the middle of one.
    begun = [0]
    for b in raw:
        begun.append(begun[-1] + (b & 0xC0 != 0x80))
    out = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    at = 0
    for token, entry in zip(tokens, [None, *entries]):
        out["tokens"].append(pieces.name(token))
        out["text_offset"].append(begun[at])
        logprob, top = entry or (None, None)
        out["token_logprobs"].append(logprob)
        out["top_logprobs"].append(None if entry is None else {pieces.name(t): x for t, x in top} | {pieces.name(token): logprob})
        piece = pieces.raw(token)
        for own in (piece, piece[1:] if piece[:1] == b" " else b""):       # a blank that encoding puts before a text is not in it
            if own and raw.startswith(own, at):
                at += len(own)
                break
    return out, begun[-1]


class _Pieces:
    def __init__(self, tokenizer):
        self._piece = tokenizer.piece

    def raw(self, token) -> bytes:
        return bytes(self._piece(token, special=True))

    def name(self, token) -> str:
        return token_name({"bytes": self.raw(token)})
