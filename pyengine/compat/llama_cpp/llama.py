"""class Llama as llama-cpp-python has it: arguments, defaults, methods, attributes and responses.

It holds a pyengine.Llama and translates. What is behind completions is in completion.py and chat.py, behind eval, sample and
generate in low_level.py. docs/compat.md lists what differs on purpose. Imported by users.
"""
import os
import types
from typing import Callable

from ... import llama as native
from ...errors import GGUFError, RequestError, TokenizerError, UnsupportedError
from . import completion, llama_chat_format, options
from .llama_cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache  # noqa: F401  names people import from here
from .llama_grammar import LlamaGrammar
from .llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from .low_level import Context, LlamaState

LLAMA_DEFAULT_SEED = options.DEFAULT_SEED


class LogitsProcessorList(list):
    """Functions (input_ids, scores) -> scores, one after the other."""

    def __call__(self, input_ids, scores):
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list):
    """Functions (input_ids, logits) -> bool; one that is true ends the answer."""

    def __call__(self, input_ids, logits) -> bool:
        return any([stopping_criteria(input_ids, logits) for stopping_criteria in self])


# Names for annotations.
LogitsProcessor = Callable[["numpy.ndarray", "numpy.ndarray"], "numpy.ndarray"]
StoppingCriteria = Callable[["numpy.ndarray", "numpy.ndarray"], bool]


class MinTokensLogitsProcessor:
    """No end token before so many were generated. The first call of a request tells the prompt's length."""

    def __init__(self, min_tokens: int, token_eos: int):
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens = None

    def __call__(self, input_ids, scores):
        if self.prompt_tokens is None or len(input_ids) < self.prompt_tokens:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -float("inf")
        return scores


class _Vocabulary:
    """What vocab_only opens: the file's metadata and tokenizer, no weights."""

    def __init__(self, path, n_ctx):
        from ... import gguf, tokenizer

        self.gguf = gguf.GGUF(path)
        self.tokenizer = tokenizer.load(self.gguf)
        self.n_vocab = self.tokenizer.n_vocab
        self.n_ctx, self.n_threads, self.n_threads_batch = n_ctx, 0, 0

    def close(self):
        self.gguf.close()

    def __getattr__(self, name):
        raise UnsupportedError("this model was opened with vocab_only=True: it tokenizes, and nothing else")


class Llama:
    """A model under llama-cpp-python's interface. Threads may share it for completions; eval(), sample(), generate() and
    what they leave in it belong to one thread at a time."""

    def __init__(self, model_path: str, *, n_gpu_layers=0, split_mode=1, main_gpu=0, tensor_split=None, vocab_only=False, use_mmap=True,
                 use_mlock=False, kv_overrides=None, seed=LLAMA_DEFAULT_SEED, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=None,
                 n_threads_batch=None, rope_scaling_type=-1, pooling_type=-1, attention_type=-1, rope_freq_base=0.0, rope_freq_scale=0.0,
                 yarn_ext_factor=-1.0, yarn_attn_factor=1.0, yarn_beta_fast=32.0, yarn_beta_slow=1.0, yarn_orig_ctx=0, logits_all=False,
                 embedding=False, offload_kqv=True, flash_attn=False, op_offload=None, swa_full=None, no_perf=False,
                 last_n_tokens_size=64, lora_base=None, lora_scale=1.0, lora_path=None, numa=False, chat_format=None, chat_handler=None,
                 draft_model=None, tokenizer=None, type_k=None, type_v=None, spm_infill=False, verbose=True, **kwargs):
        self._llm = self._made = None
        arguments = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        options.check(arguments, kwargs)
        if tokenizer is not None and not isinstance(tokenizer, LlamaTokenizer):
            raise UnsupportedError(f"tokenizer: found {type(tokenizer).__name__}; another tokenizer than the model file's cannot be used")
        if draft_model is not None and not isinstance(draft_model, LlamaPromptLookupDecoding):
            options.warn_once("draft_model: only LlamaPromptLookupDecoding is used; the answer is the same without, and this one is not called")
        if embedding:
            options.warn_once("embedding=True: embeddings are not supported yet; embed() and create_embedding() will raise")
        kv_type = options.kv_type(type_k, type_v)
        self._made = {**arguments, **kwargs}
        self.verbose, self.model_path = verbose, os.fspath(model_path)
        self.n_batch, self.numa, self.tensor_split, self.kv_overrides = n_batch, numa, tensor_split, kv_overrides
        self._logits_all, self._embedding = logits_all, embedding
        self.last_n_tokens_size, self.spm_infill = last_n_tokens_size, spm_infill
        self.cache, self.draft_model = None, draft_model
        self.lora_base, self.lora_scale, self.lora_path = lora_base, lora_scale, lora_path
        if not os.path.exists(self.model_path):
            raise ValueError(f"Model path does not exist: {self.model_path}")
        try:
            if vocab_only:
                self._llm = _Vocabulary(self.model_path, n_ctx or 1 << 20)
            else:
                self._llm = native.Llama(os.path.abspath(self.model_path), n_ctx=n_ctx or None, n_batch=min(n_batch, n_ctx or n_batch),
                                         n_threads=n_threads, n_threads_batch=n_threads_batch, kv_type=kv_type, mmap=use_mmap, mlock=use_mlock)
                self._llm.tokenizer          # a vocabulary we cannot read is a model that does not load
        except (GGUFError, TokenizerError, UnsupportedError) as e:
            self.close()
            raise GGUFError(f"Failed to load model from file: {self.model_path}: {e}") from e
        options.overrides(kv_overrides, self._llm.tokenizer)
        self._seed = options.seed(seed)
        self._context = Context(self._llm, self._seed)
        self.n_threads, self.n_threads_batch = self._llm.n_threads, self._llm.n_threads_batch
        self.context_params = types.SimpleNamespace(n_ctx=self._llm.n_ctx, n_batch=self.n_batch, n_ubatch=n_ubatch, n_threads=self.n_threads,
                                                    n_threads_batch=self.n_threads_batch, type_k=type_k, type_v=type_v)
        self.model_params = types.SimpleNamespace(n_gpu_layers=n_gpu_layers, vocab_only=vocab_only, use_mmap=use_mmap, use_mlock=use_mlock)
        self.tokenizer_ = tokenizer or LlamaTokenizer(self)
        self.metadata = _metadata(self._llm.gguf)
        self._choose_format(chat_format, chat_handler)
        if verbose:
            options.log.info("%s: n_ctx %d, %d threads, chat format %s", self.model_path, self._llm.n_ctx, self.n_threads, self.chat_format)

    def _choose_format(self, chat_format, chat_handler) -> None:
        """The handler given, the format given, the file's own template, llama-2; a guess is said when it is used."""
        from ...chat import from_gguf

        named = from_gguf(self._llm.gguf, self._llm.tokenizer)
        self._chat_handlers = {f"chat_template.{name}": llama_chat_format._template_handler(_FileTemplate(template))
                               for name, template in named.items()}
        own = "default" in named
        if own:
            self._chat_handlers["chat_template.default"] = llama_chat_format.own_template_handler(named)
        self._guessed = chat_handler is None and chat_format is None and not own
        self.chat_handler = chat_handler
        self.chat_format = chat_format or (None if chat_handler is not None else "chat_template.default" if own else "llama-2")

    # ---- text and tokens -----------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list:
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(self, tokens, prev_tokens=None, special: bool = False) -> bytes:
        return self.tokenizer_.detokenize(tokens, prev_tokens=prev_tokens, special=special)

    def tokenizer(self) -> LlamaTokenizer:
        return LlamaTokenizer(self)

    def token_bos(self) -> int:
        return -1 if self._llm.tokenizer.bos is None else self._llm.tokenizer.bos

    def token_eos(self) -> int:
        return -1 if self._llm.tokenizer.eos is None else self._llm.tokenizer.eos

    def token_nl(self) -> int:
        return self._llm.tokenizer.encode("\n", add_bos=False, add_eos=False)[-1]

    # ---- low level -------------------------------------------------------------------

    def eval(self, tokens) -> None:
        self._context.eval(list(tokens))

    def sample(self, top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.80, repeat_penalty=1.0, frequency_penalty=0.0,
               presence_penalty=0.0, tfs_z=1.0, mirostat_mode=0, mirostat_eta=0.1, mirostat_tau=5.0, penalize_nl=True,
               logits_processor=None, grammar=None, idx=None) -> int:
        """The token that may follow. Every evaluated token counts for the penalties."""
        params = self._sampling(temp, top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty, tfs_z,
                                mirostat_mode, penalize_nl)
        return self._context.sample(params, logits_processor, grammar, idx)

    def generate(self, tokens, top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.80, repeat_penalty=1.0, reset=True,
                 frequency_penalty=0.0, presence_penalty=0.0, tfs_z=1.0, mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1,
                 penalize_nl=True, logits_processor=None, stopping_criteria=None, grammar=None):
        """Yields ids, end tokens too, until the context is full; send(ids) puts ids behind the last one."""
        params = self._sampling(temp, top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty, tfs_z,
                                mirostat_mode, penalize_nl)
        return self._context.generate(tokens, params, reset, logits_processor, stopping_criteria, grammar)

    def _sampling(self, temp, top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty, tfs_z, mirostat_mode,
                  penalize_nl) -> dict:
        if not penalize_nl:
            options.warn_once("penalize_nl=False does nothing: llama.cpp removed it, and llama-cpp-python ignores it too")
        return options.sampling(temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p, repeat_penalty=repeat_penalty,
                                frequency_penalty=frequency_penalty, presence_penalty=presence_penalty, tfs_z=tfs_z,
                                mirostat_mode=mirostat_mode, last_n=self.last_n_tokens_size)

    def reset(self) -> None:
        self._context.reset()

    def set_seed(self, seed: int) -> None:
        self._seed = options.seed(seed)
        self._context.set_seed(self._seed)

    def set_cache(self, cache) -> None:
        """Kept as `cache`. Nothing is put into it: the engine reuses what it computed of earlier prompts by itself."""
        if isinstance(cache, LlamaDiskCache):
            options.warn_once("LlamaDiskCache: prompts are reused without it while the model is open; nothing of them survives it there")
        self.cache = cache

    def save_state(self) -> LlamaState:
        return self._context.save()

    def load_state(self, state: LlamaState) -> None:
        self._context.load(state)

    @property
    def n_tokens(self) -> int:
        return len(self._context.ids)

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        """Goes back to the first n tokens."""
        if not 0 <= n <= self.n_tokens:
            raise RequestError(f"n_tokens: found {n!r}, expected 0 to {self.n_tokens}", param="n_tokens")
        self._context.set(self._context.ids[:n])

    @property
    def input_ids(self):
        return self._context.input_ids()

    @property
    def _input_ids(self):
        return self.input_ids[:self.n_tokens]

    @property
    def scores(self):
        return self._context.scores

    _scores = scores

    @property
    def eval_tokens(self):
        return self._context.eval_tokens()

    @property
    def eval_logits(self):
        return self._context.eval_logits()

    # ---- completions -----------------------------------------------------------------

    def create_completion(self, prompt, suffix=None, max_tokens=16, temperature=0.8, top_p=0.95, min_p=0.05, typical_p=1.0, logprobs=None,
                          echo=False, stop=[], frequency_penalty=0.0, presence_penalty=0.0, repeat_penalty=1.0, top_k=40, stream=False,
                          seed=None, tfs_z=1.0, mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1, model=None, stopping_criteria=None,
                          logits_processor=None, grammar=None, logit_bias=None):
        """A text_completion, or an iterator of its chunks. A list of texts is answered by so many choices."""
        return completion.create(
            self, prompt, suffix=suffix, max_tokens=max_tokens, temperature=temperature, top_p=top_p, min_p=min_p, typical_p=typical_p,
            logprobs=logprobs, echo=echo, stop=stop, frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
            repeat_penalty=repeat_penalty, top_k=top_k, stream=stream, seed=seed, tfs_z=tfs_z, mirostat_mode=mirostat_mode, model=model,
            stopping_criteria=stopping_criteria, logits_processor=logits_processor, grammar=grammar, logit_bias=logit_bias)

    __call__ = create_completion

    def create_chat_completion(self, messages, functions=None, function_call=None, tools=None, tool_choice=None, temperature=0.2, top_p=0.95,
                               top_k=40, min_p=0.05, typical_p=1.0, stream=False, stop=[], seed=None, response_format=None, max_tokens=None,
                               presence_penalty=0.0, frequency_penalty=0.0, repeat_penalty=1.0, tfs_z=1.0, mirostat_mode=0, mirostat_tau=5.0,
                               mirostat_eta=0.1, model=None, logits_processor=None, grammar=None, logit_bias=None, logprobs=None,
                               top_logprobs=None):
        """A chat.completion, or an iterator of its chunks."""
        arguments = {k: v for k, v in locals().items() if k != "self"}
        handler = (self.chat_handler or self._chat_handlers.get(self.chat_format)
                   or llama_chat_format.get_chat_completion_handler(self.chat_format))
        if self._guessed:
            options.warn_once(f"{os.path.basename(self.model_path)} has no chat template: the llama-2 format is used; chat_format= names another")
        return handler(llama=self, **arguments)

    def create_chat_completion_openai_v1(self, *args, **kwargs):
        """The same as objects of the openai package."""
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError as e:
            raise ImportError("create_chat_completion_openai_v1 needs the openai package: pip install openai") from e
        response = self.create_chat_completion(*args, **kwargs)
        if isinstance(response, dict):
            return ChatCompletion(**response)
        return (ChatCompletionChunk(**chunk) for chunk in response)

    # ---- embeddings ------------------------------------------------------------------

    def embed(self, input, normalize=False, truncate=True, return_count=False):
        if not self._embedding:
            raise RuntimeError("Llama model must be created with embedding=True to call this method")
        raise UnsupportedError("embeddings are not supported yet")

    def create_embedding(self, input, model=None):
        return self.embed(input)

    # ---- facts -----------------------------------------------------------------------

    def n_ctx(self) -> int:
        return self._llm.n_ctx

    def n_embd(self) -> int:
        gguf = self._llm.gguf
        return gguf.get_int(gguf.get_str("general.architecture") + ".embedding_length", lo=1)

    def n_vocab(self) -> int:
        return self._llm.n_vocab

    def pooling_type(self) -> int:
        return 0                             # LLAMA_POOLING_TYPE_NONE: one row per token

    def __getattr__(self, name):
        if name in ("ctx", "model", "_ctx", "_model", "_batch", "_sampler"):
            raise AttributeError(f"Llama.{name}: there is no llama.cpp behind this object, and no handle of it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- life ------------------------------------------------------------------------

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()

    def __del__(self):
        if self.__dict__.get("_llm") is not None:
            self.close()

    def __getstate__(self) -> dict:
        return dict(self._made)

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)

    @staticmethod
    def logits_to_logprobs(logits, axis: int = -1):
        """Log-softmax in float32."""
        import numpy as np

        logits = np.asarray(logits, np.float32)
        best = np.max(logits, axis=axis, keepdims=True)
        best = np.where(np.isfinite(best), best, np.float32(0))
        shifted = logits - best
        with np.errstate(divide="ignore"):
            return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))

    @staticmethod
    def longest_token_prefix(a, b) -> int:
        n = 0
        for x, y in zip(a, b):
            if x != y:
                break
            n += 1
        return n

    @classmethod
    def from_pretrained(cls, repo_id: str, filename, additional_files=None, local_dir=None, local_dir_use_symlinks="auto", cache_dir=None,
                        **kwargs) -> "Llama":
        """A file of a repository on the Hugging Face hub, by its name or a pattern that exactly one matches."""
        import fnmatch

        try:
            import huggingface_hub
        except ImportError as e:
            raise ImportError("Llama.from_pretrained needs the huggingface_hub package: pip install 'pyengine-gguf[hub]'") from e
        names = huggingface_hub.HfApi().list_repo_files(repo_id)

        def one(pattern) -> str:
            found = [n for n in names if pattern is not None and (fnmatch.fnmatch(n, pattern) or fnmatch.fnmatch(os.path.basename(n), pattern))]
            if len(found) != 1:
                said = f"No file found in {repo_id} that match {pattern}" if not found else f"Multiple files found in {repo_id} matching {pattern}"
                raise ValueError(f"{said}\n\nAvailable Files:\n" + "\n".join(names))
            return found[0]

        def fetch(name) -> str:
            places = {k: v for k, v in (("local_dir", local_dir), ("cache_dir", cache_dir)) if v is not None}
            return huggingface_hub.hf_hub_download(repo_id, name, **places)

        wanted = [one(filename), *(one(pattern) for pattern in additional_files or ())]
        paths = [fetch(name) for name in wanted]
        return cls(model_path=paths[0], **kwargs)


class _FileTemplate:
    """A named template of the file, as a formatter."""

    eos_token = ""

    def __init__(self, template):
        self.template = template

    def tokens(self, llama, messages, tools=None, **variables):
        return self.template.encode(llama._llm.tokenizer, messages, True, variables, tools=tools)

    def _criteria(self):
        return None


def _metadata(gguf) -> dict:
    """Scalars of the file as texts, written as llama.cpp writes them."""
    out = {}
    for key in gguf.keys():
        value = gguf.value(key)
        if isinstance(value, bool):
            out[key] = "true" if value else "false"
        elif isinstance(value, float):
            out[key] = f"{value:f}"
        elif isinstance(value, (int, str)):
            out[key] = str(value)
    return out


__all__ = ["Llama", "LlamaState", "LogitsProcessor", "LogitsProcessorList", "MinTokensLogitsProcessor", "StoppingCriteria",
           "StoppingCriteriaList", "LlamaGrammar", "LlamaCache", "LlamaRAMCache", "LlamaDiskCache", "BaseLlamaCache", "LlamaTokenizer",
           "BaseLlamaTokenizer", "LlamaDraftModel"]
