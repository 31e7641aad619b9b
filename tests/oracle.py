"""A thin driver over xllamacpp (llama.cpp prebuilt, with its server in the process), our oracle.

Not a test and no part of the engine: tests and benches ask it for tokens, log probabilities and timings.
`pytest.importorskip("xllamacpp")` first. Prompts are token ids, so tokenizers never differ.

What its server does that a driver has to know (b11549):
- Log probabilities with post_sampling_probs off are those of the raw logits, whatever the sampler does,
  and n_probs may be the whole vocabulary.
- They go missing when the sampled piece is not whole UTF-8 or ends the turn. So a request for the
  distribution of one position forces a plain piece through logit_bias; the raw logits do not notice.
- Flash attention and batch sizes are its defaults unless asked: this is llama.cpp as people run it. Its flash
  attention adds up V in half precision; flash=False leaves only K and V rounded to half, as ours are.
"""

import json
import math
import time
import urllib.error
import urllib.request

MISSING = -1e30  # llama.cpp writes the lowest float for a probability that underflowed


class Oracle:
    """One model in llama.cpp's server. A context manager; the server's threads end with close()."""

    def __init__(self, path, *, n_ctx=1024, n_threads=2, n_batch=None, flash=None):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = n_ctx, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
        if n_batch:
            params.n_batch = params.n_ubatch = n_batch
        if flash is not None:
            kinds = xllamacpp.llama_flash_attn_type
            params.flash_attn_type = (kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED, kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED)[flash]
        params.warmup = params.cache_prompt = params.fit_params = False
        params.cache_ram_mib = 0
        params.verbosity = -1
        start = time.perf_counter()
        self._server = xllamacpp.Server(params)
        self.load_seconds = time.perf_counter() - start
        self._url = self._server.listening_address
        self._plain = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self._server = None

    def post(self, path, body):
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode(errors='replace')}") from error

    def tokenize(self, text, *, add_special=False, parse_special=False):
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return self.post("/tokenize", body)["tokens"]

    def detokenize(self, ids):
        return self.post("/detokenize", {"tokens": list(ids)})["content"]

    def complete(self, ids, n_predict, **options):
        """The server's own answer to a greedy request: tokens, timings, completion_probabilities, stop_type."""
        body = {"prompt": list(ids), "n_predict": n_predict, "temperature": 0.0, "cache_prompt": False,
                "return_tokens": True, "post_sampling_probs": False, "seed": 1, **options}  # fmt: skip
        return self.post("/completion", body)

    def greedy(self, ids, n_predict):
        """Up to n_predict ids; fewer only where llama.cpp chose an end-of-turn token, which then comes last."""
        return self.complete(ids, n_predict)["tokens"]

    def top_logprobs(self, ids, n=100, **options):
        """[(id, logprob)], best first, of the token after `ids`."""
        if self._plain is None:
            self._plain = self.tokenize("a")[-1]
        answer = self.complete(ids, 1, n_probs=n, logit_bias=[[self._plain, 1e4]], **options)
        (position,) = answer["completion_probabilities"]
        return [(top["id"], top["logprob"]) for top in position["top_logprobs"]]

    def logits(self, ids, n_vocab):
        """Centred logits (mean 0) of the token after `ids`, float64 [n_vocab]. For small vocabularies:
        a probability that underflowed has no logit, and is an error here."""
        import numpy as np

        out = np.full(n_vocab, np.nan)
        for token, logprob in self.top_logprobs(ids, n_vocab):
            out[token] = logprob if logprob > MISSING else math.nan
        if np.isnan(out).any():
            raise ValueError(f"{np.isnan(out).sum()} of {n_vocab} log probabilities are missing")
        return out - out.mean()


def kl_top(reference, other):
    """KL(reference || other) over the reference's best tokens, everything else as one class.

    `reference` is [(id, logprob)], `other` maps an id to its log probability (all ids of the reference)."""
    kl = rest_p = rest_q = 0.0
    for token, logp in reference:
        p = math.exp(logp)
        kl += p * (logp - other[token])
        rest_p += p
        rest_q += math.exp(other[token])
    rest_p, rest_q = max(1.0 - rest_p, 0.0), max(1.0 - rest_q, 1e-12)
    return kl + (rest_p * math.log(rest_p / rest_q) if rest_p > 0 else 0.0)
