"""How likely a text is after a prompt: score() one continuation, choose() among several.

Nothing is sampled: the prompt is computed once, the options in one batch on its pages, and only the rows that an
option's tokens are read from get logits. A token's log probability is the one that `logprobs` would report, so
the same bits alone, in a batch, from a warm or a cold cache.

Where the prompt ends, tokens end: prompt and option are tokenized apart, as an answer's tokens would follow
the prompt. After "The capital is" the option is " Paris", with its blank.

Not the loop (engine.py). Imported by llama.
"""
import math
from typing import NamedTuple

from .errors import RequestError, quoted
from .native import ffi
from .request import ids, is_int
from .sampling import Params, best_vops
from .stream import Job, wait

MAX_OPTIONS = 1024


class Score(NamedTuple):
    logprob: float             # of the whole continuation given the prompt: the sum, rounded once
    tokens: list               # its ids
    logprobs: list             # of each, given the prompt and those before it


class Choice(NamedTuple):
    option: object             # the likeliest; of equals the first
    index: int
    probabilities: list        # of each option, among these options; they add up to 1
    scores: list               # Score of each option

    def __str__(self) -> str:
        return str(self.option)


def choose(llm, prompt, options, **how) -> Choice:
    if isinstance(options, (str, bytes)) or not hasattr(options, "__iter__"):
        raise RequestError(f"options: found {type(options).__name__}, expected a list of texts or of token lists", param="options")
    options = list(options)
    if not 0 < len(options) <= MAX_OPTIONS:
        raise RequestError(f"options: {len(options)} of them, expected 1 to {MAX_OPTIONS}", param="options")
    prompt, tokens = _tokens(llm, prompt, options, "options")
    seen = {}
    for i, t in enumerate(tokens):
        if (j := seen.setdefault(tuple(t), i)) != i:
            raise RequestError(f"options: {j} and {i} are the same tokens", param="options")
    scores = _scores(llm, prompt, tokens, how)
    sums = [s.logprob for s in scores]
    index = sums.index(max(sums))
    return Choice(options[index], index, _shares(sums), scores)


def score(llm, prompt, continuation, **how) -> Score:
    prompt, tokens = _tokens(llm, prompt, [continuation], "continuation")
    return _scores(llm, prompt, tokens, how)[0]


def prompt_logprobs(llm, tokens, top: int, *, notify=None, **how):
    """(a running Job, its list): for each token but the first its log probability and the `top` likeliest, [(id, logprob)];
    whole when the job has ended. tokens: what Llama.prompts() gives."""
    sampler = llm._sampler(Params(temperature=0, logprobs=top, seed=0).validated(llm.n_vocab))
    entries = []

    def row(logits, i, position):
        if position + 1 < len(tokens):
            best = sampler.sample(logits.address(i), (), (), position + 1).top
            entries.append((sampler.logprob(tokens[position + 1]), best))

    job = Job(tokens, on_row=row, wanted_from=0, notify=notify, **how)
    llm._thread.submit([job])
    return job, entries


def _tokens(llm, prompt, texts, param: str):
    """(the prompt's ids, those of each text)"""
    prompts, several = llm.prompts(prompt)
    if several:
        raise RequestError("prompt: one text or one list of ids is expected", param="prompt")
    prompt = prompts[0]
    tokenizer = llm.tokenizer
    continued = any(tokenizer.is_text(t) for t in prompt)
    out = []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            tokens = tokenizer.encode(text, add_bos=False, add_eos=False, continued=continued)
        elif isinstance(text, (list, tuple)) and all(is_int(t) for t in text):
            tokens = ids(text, tokenizer.n_vocab)
        else:
            raise RequestError(f"{param}: entry {i} is {quoted(type(text).__name__)}, expected a text or a list of ids", param=param)
        if not tokens:
            raise RequestError(f"{param}: entry {i} is empty", param=param)
        llm._fit([*prompt, *tokens[:-1]])
        out.append(tokens)
    return prompt, out


def _scores(llm, prompt, options, how) -> list:
    """The prompt's last row says how likely first tokens are, the rows of an option how likely its others."""
    sampler = llm._sampler(Params(temperature=0, logprobs=0, seed=0).validated(llm.n_vocab))
    logprobs = [[] for _ in options]
    n = len(prompt)

    def read(logits, i, position, tokens):
        sampler.sample(logits.address(i), (), (), position + 1)
        return map(sampler.logprob, tokens)

    def firsts(logits, i, position):
        for found, logprob in zip(logprobs, read(logits, i, position, [tokens[0] for tokens in options])):
            found.append(logprob)

    def job(tokens, found, begin):
        def row(logits, i, position):
            found.extend(read(logits, i, position, tokens[position + 1 - n:position + 2 - n]))

        return Job([*prompt, *tokens[:-1]], on_row=row, wanted_from=begin, **how)

    def run(jobs):
        llm._thread.submit(jobs)
        wait(llm._thread, jobs)

    if len(options) == 1:
        run([job(options[0], logprobs[0], n - 1)])
    else:
        run([Job(prompt, on_row=firsts, wanted_from=n - 1, **how)])
        longer = [job(tokens, found, n) for tokens, found in zip(options, logprobs) if len(tokens) > 1]
        if longer:
            run(longer)
    return [Score(math.fsum(found), tokens, found) for tokens, found in zip(options, logprobs)]


def _shares(sums) -> list:
    """Softmax, with the exponential whose bits are equal everywhere."""
    best = max(sums)
    d = ffi.new("float[]", [s - best for s in sums])
    e = ffi.new("float[]", len(sums))
    best_vops().exp(e, d, len(sums))
    total = math.fsum(e)
    return [x / total for x in e]
