"""create_completion: a prompt, or several, to response dictionaries, whole or in chunks.

Keys, their order and their types are llama-cpp-python's. Not chat (chat.py). Imported by llama and chat of this folder.
"""
import threading
import time
import uuid
import weakref
from typing import NamedTuple

from ...errors import ContextError, RequestError
from . import options
from .llama_grammar import LlamaGrammar

# Texts of the tokens for filling in the middle, where a file does not name them.
_FIM = {
    "pre": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>", "<|code_prefix|>"),
    "suf": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>"),
    "mid": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>"),
}
_FIM_KEYS = {"pre": ("fim_pre_token_id", "prefix_token_id"), "suf": ("fim_suf_token_id", "suffix_token_id"),
             "mid": ("fim_mid_token_id", "middle_token_id")}


class Prompt(NamedTuple):
    tokens: list
    text: str            # what echo repeats


class Answers:
    """The pieces of several answers as they come: (index, Piece), and (index, None) at an answer's end.

    Their requests end with the iteration, and when nobody holds it any more.
    """

    def __init__(self, llm, prompts, request):
        ready = self._ready = threading.Event()
        self.jobs = llm.start(prompts, notify=lambda _: ready.set(), **request)
        self.usage = [len(tokens) for tokens in prompts]
        weakref.finalize(self, _cancel, self.jobs).atexit = False

    def __iter__(self):
        jobs = dict(enumerate(self.jobs))
        try:
            while jobs:
                self.jobs[0].thread.check_process()
                self._ready.wait()
                self._ready.clear()
                for i, job in list(jobs.items()):
                    ended = job.ended.is_set()      # before taking: what came until then is among the pieces
                    for piece in job.take():
                        yield i, piece
                    if ended:
                        del jobs[i]
                        if job.error is not None and not isinstance(job.error, options.Stopped):
                            raise job.error
                        yield i, None
        finally:
            _cancel(self.jobs)

    def finish_reason(self, i):
        """"length", or "stop", also where a stopping criterion ended it."""
        return self.jobs[i].result.finish_reason or "stop"


def _cancel(jobs) -> None:
    for job in jobs:
        job.cancel()


def create(llama, prompt, *, suffix, max_tokens, logprobs, echo, stop, stream, seed, model, stopping_criteria, logits_processor,
           grammar, logit_bias, **sampling):
    """The response, or an iterator of chunks. Requests are checked and begin before this returns."""
    prompts = _prompts(llama, prompt, suffix)
    for p in prompts:
        if len(p.tokens) >= llama.n_ctx():
            raise ContextError(f"Requested tokens ({len(p.tokens)}) exceed context window of {llama.n_ctx()}",
                               n_prompt=len(p.tokens), n_ctx=llama.n_ctx())
    request = options.sampling(last_n=llama.last_n_tokens_size, **sampling)
    request.update(
        max_tokens=None if max_tokens is None or max_tokens <= 0 else max_tokens, stop=_stops(stop), logprobs=logprobs,
        seed=options.seed(llama._seed if seed is None else seed), logit_bias=logit_bias,
        processors=options.processors(logits_processor, stopping_criteria), **constraint(grammar))
    head = {"id": f"cmpl-{uuid.uuid4()}", "object": "text_completion", "created": int(time.time()),
            "model": llama.model_path if model is None else model}
    before = [_prompt_logprobs(llama, p, logprobs) if echo and logprobs is not None else [] for p in prompts]
    answers = Answers(llama._llm, [p.tokens for p in prompts], request)
    if stream:
        return _chunks(llama, head, answers, prompts, echo, before, logprobs is not None)
    return _whole(llama, head, answers, prompts, echo, before)


def constraint(grammar) -> dict:
    """A LlamaGrammar as an argument of ours."""
    if grammar is None:
        return {}
    if not isinstance(grammar, LlamaGrammar):
        raise RequestError(f"grammar: found {type(grammar).__name__}, expected a LlamaGrammar (LlamaGrammar.from_string)", param="grammar")
    return grammar.arguments


def _stops(stop) -> list:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    return list(dict.fromkeys(s for s in stops if s != ""))


# ---- prompts ---------------------------------------------------------------------


def _prompts(llama, prompt, suffix) -> list:
    several = isinstance(prompt, (list, tuple)) and prompt and all(isinstance(p, (str, list, tuple)) for p in prompt)
    return [_prompt(llama, p, suffix) for p in (prompt if several else [prompt])]


def _prompt(llama, prompt, suffix) -> Prompt:
    tokenizer = llama._llm.tokenizer
    if suffix is not None:
        return _fill_in(llama, prompt, suffix)
    if isinstance(prompt, str):
        tokens, text = tokenizer.encode(prompt, special=True), prompt
    elif isinstance(prompt, (bytes, bytearray)):
        raise RequestError("prompt: found bytes, expected a text or a list of token ids", param="prompt")
    else:
        tokens = list(prompt)
        text = tokenizer.decode(tokens)
    bos = tokenizer.bos
    if not tokens:
        if bos is None:
            raise RequestError("prompt: empty, and this model has no beginning-of-sequence token to start from", param="prompt")
        tokens = [bos]
    if bos is not None and tokens[:2] == [bos, bos]:
        name = tokenizer.piece(bos, special=True).decode("utf-8", "replace")
        options.warn_once(f'Detected duplicate leading "{name}" in prompt: the model was not trained on two of them')
    return Prompt(tokens, text)


def _fill_in(llama, prompt, suffix) -> Prompt:
    """Prefix, suffix, middle, by the vocabulary's own tokens; suffix first with spm_infill."""
    tokenizer = llama._llm.tokenizer
    pre, suf, mid = (fim_token(llama._llm, part) for part in ("pre", "suf", "mid"))
    if None in (pre, suf, mid):
        raise RequestError("suffix: this model's vocabulary has no tokens for filling in the middle", param="suffix")

    def after(token, text):
        """Ids of a text that follows a control token: no blank is put before it."""
        name = tokenizer.piece(token, special=True).decode("utf-8", "surrogateescape")
        ids = tokenizer.encode(name + text, special=True, add_bos=False)
        return ids if ids[:1] == [token] else [token, *tokenizer.encode(text, special=True, add_bos=False)]

    if isinstance(prompt, str):
        first, text = after(pre, prompt), prompt
    else:
        first, text = [pre, *prompt], tokenizer.decode(list(prompt))
    last = after(suf, suffix)
    tokens = [*last, *first, mid] if llama.spm_infill else [*first, *last, mid]
    if tokenizer.add_bos and tokenizer.bos is not None:
        tokens.insert(0, tokenizer.bos)
    return Prompt(tokens, text)


def fim_token(llm, part: str):
    """The id of the vocabulary's token before the prefix ("pre"), the suffix ("suf") or the middle ("mid"), or None."""
    for key in _FIM_KEYS[part]:
        token = llm.gguf.get_int(f"tokenizer.ggml.{key}", default=None, lo=0, hi=llm.tokenizer.n_vocab - 1)
        if token is not None:
            return token
    for text in _FIM[part]:
        ids = llm.tokenizer.encode(text, special=True, add_bos=False)
        if len(ids) == 1 and llm.tokenizer.kind(ids[0]) in ("control", "user_defined"):
            return ids[0]
    return None


# ---- log-probabilities -----------------------------------------------------------


class _Collector:
    """Takes the logits of a prompt row by row and keeps of each the next token's logprob and the best."""

    def __init__(self, llm, tokens, n_top):
        self.llm, self.tokens, self.n_top = llm, tokens, n_top
        self.entries = [{"id": tokens[0], "token": self._text(tokens[0]), "logprob": None, "top_logprobs": None}]

    def _text(self, token):
        return bytes(self.llm.tokenizer.piece(token, special=True)).decode("utf-8", "replace")

    def __setitem__(self, position, row):
        import numpy as np

        if position + 1 >= len(self.tokens):
            return
        row = np.asarray(row, np.float64)
        best = row.max()
        logprobs = row - (best + np.log(np.exp(row - best).sum()))
        n = min(self.n_top, len(row))
        top = np.argpartition(-row, n - 1)[:n] if n else []
        top = sorted(map(int, top), key=lambda i: (-row[i], i))
        token = self.tokens[position + 1]
        self.entries.append({"id": token, "token": self._text(token), "logprob": float(logprobs[token]),
                             "top_logprobs": [{"token": self._text(i), "logprob": float(logprobs[i])} for i in top]})


def _prompt_logprobs(llama, prompt, n_top) -> list:
    collector = _Collector(llama._llm, prompt.tokens, n_top)
    llama._llm.logits(prompt.tokens, out=collector)
    tokenizer = llama._llm.tokenizer
    skip = tokenizer.add_bos and prompt.tokens[0] == tokenizer.bos
    return collector.entries[skip:]


class _Logprobs:
    """Entries in the columns of the response; offsets go on from call to call."""

    def __init__(self, offset: int):
        self.offset = offset

    def columns(self, entries) -> dict:
        out = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for e in entries:
            top = None
            if e["top_logprobs"] is not None:
                top = {t["token"]: t["logprob"] for t in e["top_logprobs"]}
                top.setdefault(e["token"], e["logprob"])
            out["tokens"].append(e["token"])
            out["text_offset"].append(self.offset)
            out["token_logprobs"].append(e["logprob"])
            out["top_logprobs"].append(top)
            self.offset += len(e["token"])
        return out


# ---- responses -------------------------------------------------------------------


def _whole(llama, head, answers, prompts, echo, before) -> dict:
    for _ in answers:
        pass
    choices = []
    n_answer = 0
    for i, (p, job) in enumerate(zip(prompts, answers.jobs)):
        result = job.result
        n_answer += len(result.tokens)
        logprobs = None
        if result.logprobs is not None:
            logprobs = _Logprobs(0 if echo else len(p.text)).columns([*before[i], *result.logprobs])
        choices.append({"text": (p.text if echo else "") + result.text, "index": i, "logprobs": logprobs,
                        "finish_reason": answers.finish_reason(i)})
    llama._context.set(prompts[-1].tokens + answers.jobs[-1].result.tokens)
    n_prompt = sum(answers.usage)
    return {**head, "choices": choices,
            "usage": {"prompt_tokens": n_prompt, "completion_tokens": n_answer, "total_tokens": n_prompt + n_answer}}


def _chunks(llama, head, answers, prompts, echo, before, wants_logprobs):
    columns = [_Logprobs(0 if echo else len(p.text)) for p in prompts]

    def chunk(i, text, logprobs, finish_reason):
        return {**head, "choices": [{"text": text, "index": i, "logprobs": logprobs, "finish_reason": finish_reason}]}

    if echo:
        for i, p in enumerate(prompts):
            yield chunk(i, p.text, columns[i].columns(before[i]) if wants_logprobs else None, None)
    for i, piece in answers:
        if piece is None:
            if i == len(prompts) - 1:
                llama._context.set(prompts[i].tokens + answers.jobs[i].result.tokens)
            yield chunk(i, "", None, answers.finish_reason(i))
        elif piece.text or piece.logprobs:
            yield chunk(i, piece.text, columns[i].columns(piece.logprobs) if wants_logprobs else None, None)
