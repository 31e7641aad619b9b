"""eval, sample, generate, scores and states: the token-level half of class Llama.

A context here is a list of tokens. What was computed of them lies in the engine's prefix cache, so that eval() computes
what is new and nothing is lost by going back; logits are computed when somebody looks at them. One context is
used by one thread at a time, as theirs. Imported by llama of this folder.
"""
import json
from collections import deque

from ...errors import ContextError, RequestError, SessionError
from ...native import ffi
from ...sampling import Params, Sampler, new_seed
from . import options


class LlamaState:
    """What save_state() returns. llama_state holds the tokens and the seed, and which model they belong to: the cache
    is not in it, and loading a state computes its tokens again unless the engine still knows them."""

    def __init__(self, input_ids, scores, n_tokens, llama_state, llama_state_size, seed):
        self.input_ids, self.scores, self.n_tokens = input_ids, scores, n_tokens
        self.llama_state, self.llama_state_size, self.seed = llama_state, llama_state_size, seed


class Scores:
    """logits by position, computed when looked at: scores[i] is the row after token i; slices and arrays of positions too."""

    def __init__(self, context):
        self._context = context

    @property
    def shape(self):
        return len(self._context.ids), self._context.n_rows

    ndim, dtype = 2, "float32"

    def __len__(self):
        return len(self._context.ids)

    def __getitem__(self, key):
        import numpy as np

        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        wanted = np.arange(len(self))[rows]
        found = self._context.rows(np.atleast_1d(wanted).tolist())
        found = found[0] if np.ndim(wanted) == 0 else found
        if not rest:
            return found
        return found[rest] if np.ndim(wanted) == 0 else found[(slice(None), *rest)]

    def __array__(self, dtype=None, copy=None):
        found = self[:]
        return found if dtype is None else found.astype(dtype)


class _Rows:
    """Receives the logits of a prompt and keeps the rows that are wanted."""

    def __init__(self, wanted, out):
        self.places, self.out = {}, out
        for place, position in enumerate(wanted):
            self.places.setdefault(position, []).append(place)

    def __setitem__(self, position, row):
        for place in self.places.get(position, ()):
            self.out[place] = row


class Context:
    def __init__(self, llm, seed):
        self.llm = llm
        self.ids = []
        self.seed = seed             # None: drawn when first needed
        self.scores = Scores(self)
        self._last = None            # the logits after the last token, once computed
        self._grammar = None         # (LlamaGrammar, its constraint) of sample()
        self._grammars = None
        self._drawn = None

    @property
    def n_rows(self) -> int:
        return self.llm.program.n_vocab

    def set(self, ids) -> None:
        self.ids, self._last = list(ids), None

    def reset(self) -> None:
        self.set([])
        self._grammar = None

    def set_seed(self, seed) -> None:
        self.seed, self._drawn = seed, None

    # ---- logits ------------------------------------------------------------------

    def eval(self, tokens) -> None:
        n_ctx = self.llm.n_ctx
        ids = [*self.ids, *tokens]
        if len(ids) > n_ctx:
            raise ContextError(f"Requested tokens ({len(ids)}) exceed context window of {n_ctx}", n_prompt=len(ids), n_ctx=n_ctx)
        before = self.ids
        self.set(ids)
        if not ids:
            return
        try:
            self.last()
        except BaseException:
            self.set(before)
            raise

    def last(self):
        """The logits after the last token. With room for one more they are what a token would be chosen from:
        then only what the engine does not know is computed."""
        if self._last is None:
            if not self.ids:
                raise RequestError("nothing was evaluated yet: call eval() first", param="tokens")
            if len(self.ids) < self.llm.n_ctx:
                kept = []
                self.llm.generate(self.ids, max_tokens=1, temperature=0, ignore_eos=True,
                                  processors=[lambda _, logits: kept.append(logits.copy())])
                self._last = kept[0]
            else:
                self._last = self.rows([len(self.ids) - 1])[0]
        return self._last

    def rows(self, wanted):
        import numpy as np

        out = np.empty((len(wanted), self.n_rows), np.float32)
        if wanted:
            if wanted == [len(self.ids) - 1] and len(self.ids) < self.llm.n_ctx:
                out[0] = self.last()
            else:
                self.llm.logits(self.ids[:max(wanted) + 1], out=_Rows(wanted, out), start=min(wanted))
        return out

    # ---- choosing ----------------------------------------------------------------

    def sample(self, params: dict, logits_processor=None, grammar=None, idx=None, n_prompt=0) -> int:
        """The token after the last one, or after position idx. Penalties on counts see the tokens from n_prompt on."""
        row = self.last() if idx is None else self.scores[idx]
        ids = self.ids if idx is None else self.ids[:range(len(self.ids))[idx] + 1]
        constraint, forced = self._constraint(grammar), None
        if constraint is not None:
            forced = next(iter(constraint.forced()), None)
        if forced is None:
            processors = options.processors(logits_processor, None)
            if constraint is not None:
                processors += (lambda _, logits: self._mask(constraint, logits),)
            tokenizer = self.llm.tokenizer
            checked = Params(**params, processors=processors).validated(tokenizer.n_vocab)
            sampler = Sampler(checked, self.n_rows, self._seed(), min(tokenizer.n_vocab, self.n_rows))
            forced = sampler.sample(int(row.ctypes.data), ids[:n_prompt], ids[n_prompt:], len(ids)).token
        if constraint is not None and forced not in self.llm.tokenizer.end_ids:
            constraint.commit(forced)
        return forced

    def _seed(self) -> int:
        if self.seed is not None:
            return self.seed
        if self._drawn is None:
            self._drawn = new_seed()
        return self._drawn

    def _constraint(self, grammar):
        """The state of a grammar lasts while sample() is called with the same one; reset() begins again."""
        if grammar is None:
            return None
        if self._grammar is None or self._grammar[0] is not grammar:
            from ...grammar import Grammars
            from .completion import constraint

            if self._grammars is None:
                self._grammars = Grammars(self.llm.tokenizer, self.n_rows)
            ((param, value),) = constraint(grammar).items()
            self._grammar = grammar, self._grammars.constraint(param, value)
        return self._grammar[1]

    def _mask(self, constraint, logits):
        import numpy as np

        mask = constraint.mask()
        if mask is not None:
            n = len(logits)
            words = ffi.buffer(ffi.cast("uint8_t *", mask), 4 * (-(-n // 32)))
            may = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little")[:n].astype(bool)
            logits[~may] = -np.inf
        return logits

    def generate(self, tokens, params, reset, logits_processor, stopping_criteria, grammar):
        """Ids one by one, end tokens among them; send() puts tokens behind the last. Ends with the context."""
        tokens = list(tokens)
        if reset:
            self.set([])
        n_prompt = len(self.ids) + len(tokens)
        self._grammar = None
        while len(self.ids) + len(tokens) < self.llm.n_ctx or not self.ids:
            self.eval(tokens)
            if len(self.ids) >= self.llm.n_ctx:
                return
            if stopping_criteria is not None:
                import numpy as np

                if stopping_criteria(np.array(self.ids, np.intc), self.last()):
                    return
            token = self.sample(params, logits_processor, grammar, n_prompt=n_prompt)
            tokens = [token, *((yield token) or ())]

    # ---- views and states ----------------------------------------------------------

    def input_ids(self):
        import numpy as np

        out = np.zeros(self.llm.n_ctx, np.intc)
        out[:len(self.ids)] = self.ids
        return out

    def eval_tokens(self):
        return deque(self.ids, maxlen=self.llm.n_ctx)

    def eval_logits(self):
        return deque([self.last().tolist()] if self.ids else [], maxlen=1)

    def save(self) -> LlamaState:
        import numpy as np

        state = json.dumps({"tokens": self.ids, "seed": self.seed, "model": self._model()}).encode()
        return LlamaState(self.input_ids(), np.empty((0, self.n_rows), np.float32), len(self.ids), state, len(state),
                          options.DEFAULT_SEED if self.seed is None else self.seed)

    def load(self, state: LlamaState) -> None:
        try:
            found = json.loads(bytes(state.llama_state))
            tokens, seed, model = found["tokens"], found["seed"], found["model"]
            ok = all(isinstance(t, int) and 0 <= t < self.llm.n_vocab for t in tokens) and len(tokens) == state.n_tokens
        except (ValueError, KeyError, TypeError) as e:
            raise SessionError(f"llama_state: {type(e).__name__}: not what save_state() wrote") from e
        if model != self._model():
            raise SessionError(f"llama_state: belongs to {model!r}, this model is {self._model()!r}")
        if not ok or len(tokens) > self.llm.n_ctx:
            raise SessionError(f"llama_state: {len(tokens)} tokens, not those of a state for this model's n_ctx of {self.llm.n_ctx}")
        self.set(tokens)
        self.set_seed(seed)

    def _model(self) -> list:
        gguf = self.llm.gguf
        return [gguf.get_str("general.name", default=""), self.llm.program.arch, self.llm.n_vocab, len(gguf.tensors)]
