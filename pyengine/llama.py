"""class Llama: what people import. Arguments in, answers out; checks everything that comes from outside.

Not a file reader, not a sampler, not a scheduler: it puts them together.
Imported by cli, serve and compat, and by users as pyengine.Llama.

Text and control tokens. A text prompt of generate() may contain the file's control
tokens ("<|im_start|>"): they are recognized, as in llama.cpp's completions. Text of
chat() messages is plain: only the template's own control tokens count. tokenize()
takes `special`. A beginning-of-sequence token is added where the file says so,
never twice. Token prompts are used as they are. Nothing unescapes backslashes.
"""
import math
import os
import sys
import threading
import warnings
import weakref

from . import fit, machine, tune as tuning
from .errors import ContextError, RequestError, TemplateError
from .gguf import GGUF
from .request import CONSTRAINTS, ids, is_int, options as checked, takes_options, whole

MAX_PROMPTS = 1024         # prompts of one generate() call


class Llama:
    """A model, ready to answer.

    model_path   a GGUF file (of a split model the first part), or a name of the catalog
    n_ctx        positions per sequence; None or 0: what the model was trained for, cut with a warning to
                 what fits into free memory; "auto": the same without a warning. More than trained warns, more than memory raises.
    max_seqs     sequences that run at one time; more wait their turn
    n_threads    None: what was tuned, else the performance cores within affinity and CPU quota, fewer where fewer
                 saturate memory; the quota is read again while we run (docs/threads.md)
    n_threads_batch  threads for prompts and batches, steps of 8 rows and more (64 where cores differ); None: n_threads, else what was tuned,
                 else all cores within affinity and quota
    n_batch      most tokens of one step
    n_wanted     most rows of logits of one step, each of the vocabulary's size; None: 32. logits() and evaluate.py are faster with more
    kv_type      type of the KV cache, "f16", "q8_0" (17/32 of its bytes) or "q4_0" (9/32, at a price: docs/memory.md)
    cache_tokens positions that the KV cache holds for all sequences together; None: max_seqs whole sequences, or what memory has room for
    prefix_file  a file that the prefix cache is read from now and written to by close(): a long system prompt survives a restart.
                 One that is of another model, other settings, or damaged is left aside with a warning.
    prefix_cache keep what was computed while there is room: a prompt that begins like an earlier one computes only the rest
    max_queue    requests that may wait for their turn; one more is a QueueFullError. None: any number
    speculate    "lookup" guesses tokens from the text itself, where that pays; the path of a small model of the same vocabulary guesses
                 with it; None does not
    mmap         False reads the weights into private memory: they cannot change under us
    mlock        keep the weights from being swapped out; a failure warns once
    verbose      say on stderr what was loaded and chosen
    tune         use what `pyengine-cli tune` remembers of this machine
    fuse, isa, profile  plan without fusions; force a tier ("scalar", "avx2"); time every instruction

    No setting but kv_type changes any answer. Usable from several threads: their
    requests run in the same steps. Close it, or use it in a with block.
    """

    def __init__(self, model_path, *, n_ctx=None, max_seqs=4, n_threads=None, n_threads_batch=None, n_batch=512, n_wanted=None, kv_type="f16",
                 cache_tokens=None, prefix_cache=True, prefix_file=None, max_queue=None, speculate="lookup", mmap=True, mlock=False, verbose=False, fuse=True,
                 isa=None, profile=False, tune=True):
        self._close = None
        auto = isinstance(n_ctx, str) and n_ctx == "auto"
        n_ctx = 0 if auto else whole("n_ctx", n_ctx, 0, fit.MAX_CTX, none=True) or None     # 0: fill memory, and say nothing
        max_seqs = whole("max_seqs", max_seqs, 1, 1024)
        n_batch = whole("n_batch", n_batch, 1, 1 << 16)
        n_wanted = whole("n_wanted", n_wanted, 1, 1 << 16, none=True)
        n_threads = whole("n_threads", n_threads, 1, 1024, none=True)
        n_threads_batch = whole("n_threads_batch", n_threads_batch, 1, 1024, none=True)
        self.cache_tokens = whole("cache_tokens", cache_tokens, 1, fit.MAX_CTX, none=True)
        self.prefix_cache, self.prefix_file = bool(prefix_cache), prefix_file
        if prefix_file is not None and not prefix_cache:
            raise RequestError("prefix_file: prefix_cache is switched off", param="prefix_file")
        max_queue = whole("max_queue", max_queue, 0, 1 << 30, none=True)
        self.speculate = _proposer(speculate)
        self.verbose = bool(verbose)
        self.model_path = find(model_path)
        if not mmap:
            self._free = fit.free()
            fit.room_for_weights(self.model_path, self._free)
        self._gguf, small, guesses = GGUF(self.model_path, mmap=mmap), None, None
        try:
            if mmap:                 # a map takes address space, which `ulimit -v` and 32 bits limit
                self._free = fit.free()
            machine.read_ahead(self._gguf.files)
            self.tuned = tuning.load(isa) if tune else tuning.Tuned(reason="switched off by tune=False")
            threads = self.tuned.threads(self._gguf) or machine.threads()
            self.n_threads, self.n_threads_batch = n_threads or threads[0], n_threads_batch or n_threads or threads[1]
            limit, most = None, (self.n_threads, self.n_threads_batch)
            if n_threads is None and n_threads_batch is None:        # what somebody asked for is not ours to change
                limit = machine.CpuLimit()
                most = machine.room_to_grow(most)
            if self.speculate not in (None, "lookup"):
                from . import draft

                small = draft.plan(find(self.speculate), self._gguf, n_ctx=n_ctx or fit.trained(self._gguf), free=self._free, n_threads=max(most),
                                   max_seqs=max_seqs, max_tokens=n_batch, max_wanted=max_seqs, isa=isa, fuse=fuse, tuned=self.tuned)
                if self._free is not None:
                    self._free = max(0, self._free - small.own - small.weights)
            self.memory = self._plan(n_ctx, not mmap, max(most), dict(
                max_seqs=max_seqs, max_tokens=n_batch, max_wanted=max(n_wanted or 32, max_seqs), kv_type=kv_type,
                isa=isa, fuse=fuse, tuned=self.tuned))
            self._program = self.memory.program
            from . import tokenizer
            from .engine import Engine
            from .speculate import Lookups
            from .stream import EngineThread

            self.tokenizer = tokenizer.load(self._gguf)      # its kind is checked; what encodes is built on first use
            if mlock:
                self._lock_weights()
            if small is not None:
                guesses = draft.Draft(small, n_threads=most[0], cpus=machine.binding(max(most)))
            elif self.speculate is not None and not self._program.both:
                guesses = Lookups()
            engine = Engine(self._program, n_pages=self.memory.pages, n_threads=most[0], n_threads_batch=most[1], limit=limit,
                            cpus=machine.binding(max(most)), profile=profile, reuse=self.prefix_cache, guesses=guesses)
            fit.promise(self.memory)
        except BaseException:
            if guesses is not None:
                guesses.close()
            elif small is not None:
                small.program.gguf.close()
            self._gguf.close()
            raise
        self._thread = EngineThread(engine, max_queue=max_queue)
        self._close = weakref.finalize(self, self._thread.close, self._gguf.close)
        self._lock = threading.RLock()
        self._templates = self._scratch = self._grammars = None
        if prefix_file is not None and os.path.exists(prefix_file):
            from .session import read_prefix

            read_prefix(self, prefix_file)
        self._say(f"{self._program.arch}, {len(self._gguf.tensors)} tensors, "
                  f"{sum(f.size for f in self._gguf.files) / 1e6:.0f} MB; n_ctx {self.n_ctx} "
                  f"(trained {self.n_ctx_train}), {self.n_threads} threads ({self.n_threads_batch} for batches), "
                  f"{fit.size(self.memory.own)} of its own, cache {fit.size(self.memory.cache)}, arena {fit.size(self.memory.arena)}"
                  + (f"; draft model: {fit.size(small.own)} of its own" if small is not None else ""))

    # ---- answers -----------------------------------------------------------------

    @takes_options
    def generate(self, prompt=None, *, stream=False, **options):
        """Continues a prompt: a text, token ids, or None for the beginning-of-sequence token alone.

        A list of texts, or of lists of ids, is answered by a list in the same order; all run
        together, each as if it were alone. n > 1: a list, so many answers to each prompt, prompt by
        prompt, the first of them the one that n=1 gives. stream: an iterator of str pieces (a list of them for
        several answers) with close() and, at its end, result.

        max_tokens None or -1: to the end of the turn or of the context; 0: the prompt is computed
        and the text is empty. stop: a string or up to 16. json_schema, regex, grammar (GBNF), lark:
        what the answer has to follow. priority: 0, or 1 for what may wait for others. key: whose
        request it is; keys take turns. salt: prompts share what is cached only under an equal salt.
        deadline: seconds; a request that has no token by then is a DeadlineError, another ends
        with what there is and finish_reason "deadline".
        """
        return self._answers(*self.prompts(prompt), stream, options)

    @takes_options
    def chat(self, messages, *, stream=False, tools=None, documents=None, chat_template=None, continue_final_message=False,
             template_variables=None, **options):
        """Answers a conversation [{"role": ..., "content": ...}, ...] in the file's own chat template.
        tools: JSON schemas of functions, documents: objects, both for the template to write out; calls in the answer stand in its text as the
        model writes them. chat_template: one of chat_templates by name; None is "tool_use" where there are tools and the file has it, else
        "default". continue_final_message: the answer goes on with the last message's text. template_variables: more for the template to read.
        The rest as in generate(); docs/templates.md has the details.
        """
        prompt = self.chat_tokens(messages, template_variables, tools=tools, documents=documents, chat_template=chat_template,
                                  continue_final_message=continue_final_message)
        return self._answers([prompt], False, stream, options)

    @takes_options
    def start(self, prompts, *, notify=None, **options) -> list:
        """Starts the answers to prompts, lists of ids: a Job for each, n for each prompt, prompt by prompt.

        A Job is taken from (take()) and waited for (ended) by whoever likes; notify(job) is called, on
        the engine's thread, when there is something new to take or the end. The rest as in generate().
        """
        from .stream import Job

        self._check_writes()
        o, tokenizer = checked(options), self.tokenizer
        if not isinstance(prompts, (list, tuple)) or not prompts or len(prompts) * o.n > MAX_PROMPTS:
            raise RequestError(f"prompt: {len(prompts) if isinstance(prompts, (list, tuple)) else type(prompts).__name__} prompts with n={o.n}, "
                               f"1 to {MAX_PROMPTS} answers are expected of one call", param="prompt")
        prompts, params = [self._prompt(list(p)) for p in prompts], o.params(tokenizer)
        constraint = self._constraint(o, params)
        jobs = []
        for tokens in prompts:
            sampler = self._sampler(params)
            parent = None
            for sequence in range(o.n):
                job = Job(tokens, tokenizer=tokenizer, stops=o.stop, logprobs=o.logprobs is not None, notify=notify,
                          sampler=sampler, max_tokens=o.max_tokens, end_ids=frozenset() if o.ignore_eos and constraint is None else tokenizer.end_ids,
                          sequence=sequence, parent=parent, priority=o.priority, key=o.key, salt=o.salt, deadline=o.deadline,
                          constraint=constraint and constraint.fork())
                parent = parent or job.request
                jobs.append(job)
        self._thread.submit(jobs)
        return jobs

    def session(self, prompt=None, *, key="", salt=""):
        """A Session that begins with a text or token ids, or with nothing; see there."""
        from .session import Session

        self._check_writes()
        session = Session(self, key=key, salt=salt)
        return session if prompt is None else session.append(prompt)

    def load_session(self, path):
        """A session that Session.save() wrote. SessionError: of another model or other settings, or damaged."""
        from .session import load

        self._thread.check_open()
        return load(self, path)

    def prompts(self, prompt) -> tuple:
        """(lists of ids, whether there are several) of what generate() takes as its prompt."""
        self._check_writes()
        several = isinstance(prompt, (list, tuple)) and not all(is_int(t) for t in prompt)
        return [self._prompt(p) for p in (prompt if several else [prompt])], several

    def chat_tokens(self, messages, template_variables=None, add_generation_prompt=True, *, chat_template=None, **given) -> list:
        """The prompt that chat() would compute for these messages; it takes tools, documents and continue_final_message too."""
        template = self.template(chat_template, template_variables, **given)
        return template.encode(self.tokenizer, messages, add_generation_prompt, template_variables, check=self.could_fit, **given)

    def chat_text(self, messages, template_variables=None, add_generation_prompt=True, *, chat_template=None, **given) -> str:
        """The same as text, in which what users wrote may look like the template's own words."""
        return self.template(chat_template, template_variables, **given).render(messages, add_generation_prompt, template_variables, **given)

    def template(self, name=None, variables=None, *, tools=None, documents=None, continue_final_message=False):
        """The chat.Template for these."""
        self._check_writes()
        templates = self._chat_templates()
        if not templates:
            raise TemplateError(f"{os.path.basename(self.model_path)} has no chat template (tokenizer.chat_template): it is a base model; use generate()")
        from .chat import choose

        return choose(templates, name, tools, documents, variables)

    def tokenize(self, text, *, special=False, add_bos=None) -> list:
        """Ids of a text (str, or bytes that need not be UTF-8). special: recognize control tokens in it.
        add_bos: None does as the file says."""
        self._thread.check_open()
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, tokens, *, special=False) -> str:
        """Text of ids; control tokens are empty unless `special`."""
        self._thread.check_open()
        return self.tokenizer.decode(ids(tokens, self.tokenizer.n_vocab), special=special)

    def logits(self, tokens, *, out=None, start=0):
        """numpy float32 [len(tokens), n_vocab]: row i is the distribution after tokens[:i+1]. start: the first row that is
        wanted, and so row 0 of the array. out: receives the rows instead, each by out[i] = row, a view that is good for the
        moment; what keeps less than all needs no more memory."""
        import numpy

        from .stream import Job, wait

        self._check_writes()
        tokens = self._fit(ids(tokens, self.tokenizer.n_vocab))
        if not tokens:
            raise RequestError("tokens: empty, expected at least one id", param="tokens")
        start = whole("start", start, 0, len(tokens) - 1)
        rows = numpy.empty((len(tokens) - start, self._program.n_vocab), dtype=numpy.float32) if out is None else out

        def copy(logits, i, position):
            rows[position if rows is out else position - start] = logits.numpy(i)

        job = Job(tokens, on_row=copy, wanted_from=start)
        self._thread.submit([job])
        wait(self._thread, [job])
        return rows

    def embed(self, texts, *, normalize=True, dimensions=None, pooling=None, priority=0, key="", salt=""):
        """Vectors of texts (or token ids): numpy float32 [d] of one, [n, d] of a list. docs/embeddings.md has the details.
        normalize: each as long as 1; dimensions: the first so many, for models trained for that; pooling: "none" (a vector for
        each token; of a list, a list), "mean", "cls", "last", or None for what the file says."""
        from .embed import embed
        self._thread.check_open()
        return embed(self, texts, normalize=normalize, dimensions=dimensions, pooling=pooling, priority=priority, key=key, salt=salt)

    def rerank(self, query, documents, *, top_n=None, priority=0, key="", salt="") -> list:
        """How well documents answer a query, by a reranker's own score: [(index, score), ...], best first, the top_n of them."""
        from .embed import rerank
        self._thread.check_open()
        return rerank(self, query, documents, top_n=top_n, priority=priority, key=key, salt=salt)

    def score(self, prompt, continuation, *, priority=0, key="", salt=""):
        """How likely a text (or ids) is after a prompt: a Score with logprob, tokens and logprobs (choose.py)."""
        from .choose import score

        return score(self, prompt, continuation, **_checked(priority=priority, key=key, salt=salt))

    def choose(self, prompt, options, *, priority=0, key="", salt=""):
        """The likeliest of several texts (or lists of ids) after a prompt: a Choice with option, index, probabilities
        and scores. The prompt is computed once, the options in one batch. Of equals the first wins."""
        from .choose import choose

        return choose(self, prompt, options, **_checked(priority=priority, key=key, salt=salt))

    def start_prompt_logprobs(self, tokens, top=0, *, notify=None, priority=0, key="", salt="", deadline=None) -> tuple:
        """(a Job, a list): for each of a prompt's own tokens but the first its log probability and the `top` likeliest as
        (id, logprob); the list is whole when the Job has ended."""
        from .choose import prompt_logprobs

        how = _checked(priority=priority, key=key, salt=salt, deadline=deadline)
        return prompt_logprobs(self, self._prompt(list(tokens)), top, notify=notify, **how)

    # ---- facts -------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        return self._program.n_ctx

    @property
    def n_ctx_train(self) -> int:
        return self._program.hp.n_ctx_train

    @property
    def n_vocab(self) -> int:
        return self.tokenizer.n_vocab

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat_templates())

    @property
    def chat_template(self) -> "str | None":
        """The source of the file's chat template, of several the default one."""
        return self.chat_templates.get("default")

    @property
    def chat_templates(self) -> dict:
        """{name: source} of the file's chat templates; the one without a name is "default"."""
        return {name: template.source for name, template in self._chat_templates().items()}

    def stats(self) -> dict:
        """What runs and waits, the cache's pages, and counters since the model was opened."""
        return self._thread.stats()

    def running(self) -> list:
        """The Jobs that have not ended."""
        return self._thread.running()

    def call(self, function):
        """function() run on the engine's thread between two steps: for what has to see nothing move, such as sessions."""
        return self._thread.call(function)

    @property
    def healthy(self) -> bool:
        """False once it cannot answer any more: closed, its file changed, or its thread ended."""
        return self._thread.healthy

    @property
    def gguf(self):
        """The open file: metadata and tensors."""
        return self._gguf

    @property
    def program(self):
        """The compiled program: explain() and, with profile=True, profile."""
        return self._program

    @property
    def engine_thread(self):
        """Who runs the steps: stats, and calls between them."""
        return self._thread

    def close(self) -> None:
        """Ends what runs, gives back threads and memory. Idempotent; using the model afterwards is a ClosedError."""
        if self._close is not None:
            if self.prefix_file is not None and self._close.alive and self._thread.pid == os.getpid():
                from .session import write_prefix

                write_prefix(self, self.prefix_file)
            self._close()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    # ---- how ---------------------------------------------------------------------

    def _check_writes(self) -> None:
        from .embed import check_writes

        self._thread.check_open()
        check_writes(self._program)

    def _plan(self, n_ctx, private, n_threads, settings):
        """The program, sized before anything is allocated; what will be slow or short is said."""
        found = fit.decide(self._gguf, n_ctx=n_ctx or None, n_threads=n_threads, private=private, free=self._free,
                           cache_tokens=self.cache_tokens, **settings)
        trained = found.program.hp.n_ctx_train
        if n_ctx and n_ctx > trained:
            warnings.warn(f"n_ctx {n_ctx} is more than the {trained} positions the model was trained for", stacklevel=3)
        if n_ctx is None and found.program.n_ctx < min(trained, fit.MAX_CTX):
            warnings.warn(f"n_ctx cut from the model's own {trained} to {found.program.n_ctx}: that is what fits into "
                          f"{fit.size(self._free)} beside the weights", stacklevel=3)
        if not found.resident:
            warnings.warn(f"the weights ({fit.size(found.weights)}) do not fit into memory beside {fit.size(found.least)} of cache and buffers: "
                          f"of {fit.size(self._free)} available, the system will read parts of the file again for every token "
                          f"(pyengine-cli fit says what would fit)", stacklevel=3)
        return found

    def _lock_weights(self) -> None:
        if not self.memory.resident:           # locked pages are never given up: asking would take from all others
            warnings.warn(f"mlock left out: weights of {fit.size(self.memory.weights)} do not fit into {fit.size(self._free)}", stacklevel=3)
            return
        for f in self._gguf.files:
            reason = machine.lock_memory(f.address, f.size)
            if reason is not None:
                warnings.warn(f"mlock failed, going on without: {reason}", stacklevel=3)
                return

    def _say(self, text: str) -> None:
        if self.verbose and sys.stderr is not None:
            print(f"pyengine: {text}", file=sys.stderr)

    def _chat_templates(self):
        if self._templates is None:
            with self._lock:
                if self._templates is None:
                    from . import chat

                    self._templates = chat.from_gguf(self._gguf, self.tokenizer)
        return self._templates

    def _prompt(self, prompt) -> list:
        """Ids of one prompt, checked against the vocabulary and the context."""
        self._check_writes()
        tokenizer = self.tokenizer
        if prompt is None:
            tokens = []
        elif isinstance(prompt, str):
            self.could_fit(prompt)
            tokens = tokenizer.encode(prompt, special=True)
        elif isinstance(prompt, (list, tuple)):
            tokens = ids(prompt, tokenizer.n_vocab, "prompt")
            if not tokens:
                raise RequestError("prompt: an empty list is neither tokens nor prompts", param="prompt")
        else:
            raise RequestError(f"prompt: found {type(prompt).__name__}, expected a text, token ids, a list of either, or None", param="prompt")
        if not tokens:
            if tokenizer.bos is None:
                raise RequestError("prompt: empty, and this model has no beginning-of-sequence token to start from", param="prompt")
            tokens = [tokenizer.bos]
        return self._fit(tokens)

    def could_fit(self, text) -> None:
        """ContextError for a text far too long, at once: making its tokens, to count them, takes seconds a megabyte."""
        if (least := self.tokenizer.at_least(text)) > self.n_ctx:
            raise ContextError(f"the prompt has at least {least} tokens and n_ctx is {self.n_ctx}", n_prompt=least, n_ctx=self.n_ctx)

    def _fit(self, tokens) -> list:
        if len(tokens) > self.n_ctx:
            raise ContextError(f"the prompt has {len(tokens)} tokens and n_ctx is {self.n_ctx}", n_prompt=len(tokens), n_ctx=self.n_ctx)
        return tokens

    def _sampler(self, params):
        """One per prompt: its answers differ by their sequence alone."""
        from .sampling import Sampler, new_scratch, new_seed

        n_rows = self._program.n_vocab
        if self._scratch is None:
            self._scratch = new_scratch(n_rows)      # one for all samplers: only the engine thread samples
        seed = new_seed() if params.seed is None else params.seed
        return Sampler(params, n_rows, seed, min(self.tokenizer.n_sampled, n_rows), scratch=self._scratch)

    def _constraint(self, options, params):
        """What the answer has to follow, or None."""
        name = next((name for name in CONSTRAINTS if getattr(options, name) is not None), None)
        if name is None:
            return None
        with self._lock:
            if self._grammars is None:
                from .grammar import Grammars

                self._grammars = Grammars(self.tokenizer, self._program.n_vocab)
        # Where tokens are banned or processed, what must come may have to be spelled in others.
        free = bool(params.processors) or any(bias == -math.inf for _, bias in params.logit_bias)
        return self._grammars.constraint(name, getattr(options, name), may_end=not options.ignore_eos, force=not free)

    def _answers(self, prompts, several, stream, options):
        """One answer, or a list of them if there may be several."""
        from .stream import Stream, wait

        jobs = self.start(prompts, **options)
        out = [Stream(self._thread, job) for job in jobs] if stream else wait(self._thread, jobs)
        return out if several or len(jobs) > 1 else out[0]


def _checked(**values) -> dict:
    """These of the options, in their checked form."""
    o = checked(values)
    return {name: getattr(o, name) for name in values}


def find(model_path) -> str:
    """A path as it is, or the file behind a catalog name. What looks like a path never reaches the catalog."""
    if not isinstance(model_path, (str, os.PathLike)):
        raise RequestError(f"model_path: found {type(model_path).__name__}, expected a path or a catalog name",
                           param="model_path")
    path = os.fspath(model_path)
    if isinstance(model_path, os.PathLike) or os.sep in path or path.endswith(".gguf"):
        return path
    from . import catalog

    return os.fspath(catalog.resolve(path))


def _proposer(speculate):
    if speculate is not None and not isinstance(speculate, (str, os.PathLike)):
        raise RequestError(f"speculate: found {speculate!r}, expected 'lookup', the path of a model, or None", param="speculate")
    return speculate
