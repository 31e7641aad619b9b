"""What llama-cpp-python's arguments come to here: taken over, ignored with a line in the log, warned about, or refused.

Tables and checks only. Imported by llama, completion and low_level of this folder.
"""
import logging
import warnings

from ...errors import RequestError, UnsupportedError

log = logging.getLogger("pyengine.compat.llama_cpp")
DEFAULT_SEED = 0xFFFFFFFF
KV_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}

# Arguments that change speed or placement there and nothing here.
IGNORED = {"n_gpu_layers": 0, "split_mode": 1, "main_gpu": 0, "tensor_split": None, "n_ubatch": 512, "offload_kqv": True,
           "flash_attn": False, "op_offload": None, "swa_full": None, "no_perf": False, "numa": False, "logits_all": False}
# Arguments that would change the model's answers and that we cannot honour yet.
REFUSED = {"rope_scaling_type": (-1,), "rope_freq_base": (0, 0.0), "rope_freq_scale": (0, 0.0), "yarn_ext_factor": (-1.0,),
           "yarn_attn_factor": (1.0, -1.0), "yarn_beta_fast": (32.0, -1.0), "yarn_beta_slow": (1.0, -1.0), "yarn_orig_ctx": (0,),
           "pooling_type": (-1, 0), "attention_type": (-1, 0), "lora_base": (None,), "lora_path": (None,)}

_said = set()


def warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def check(arguments: dict, unknown: dict) -> None:
    """Says what the constructor's arguments do not do, and refuses what would change answers."""
    for name, default in IGNORED.items():
        if arguments[name] != default:
            log.debug("%s=%r is accepted and changes nothing: this engine runs on the CPU and arranges its own buffers",
                      name, arguments[name])
    for name, allowed in REFUSED.items():
        if arguments[name] not in allowed:
            raise UnsupportedError(f"{name}: found {arguments[name]!r}, and only the default {allowed[0]!r} can be honoured so far")
    for name in unknown:
        warn_once(f"Llama({name}=...): an unknown argument, ignored")


def kv_type(type_k, type_v) -> str:
    """The cache type of two GGML type numbers."""
    k, v = (1 if t is None else t for t in (type_k, type_v))
    if k != v:
        raise UnsupportedError(f"type_k {k!r} and type_v {v!r}: the KV cache has one type for both")
    if k not in KV_TYPES:
        raise RequestError(f"type_k: found {k!r}, expected a GGML_TYPE_ number", param="type_k")
    return KV_TYPES[k]


def overrides(given, tokenizer) -> None:
    """kv_overrides: those of the vocabulary's ends can be honoured after loading, others cannot."""
    for key, value in (given or {}).items():
        if isinstance(value, str) and len(value.encode()) > 128:
            raise ValueError(f"Value for {key} is too long: {value}")
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"Unknown value type for {key}: {value}")
        if key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token") and isinstance(value, bool):
            name = key.rpartition(".")[2][:-len("_token")]
            if value and getattr(tokenizer, name[4:]) is None:
                raise RequestError(f"kv_overrides: {key} is true, and the file names no such token", param="kv_overrides")
            setattr(tokenizer, name, value)
        else:
            raise UnsupportedError(f"kv_overrides: {key!r} cannot be overridden; tokenizer.ggml.add_bos_token and "
                                   f"tokenizer.ggml.add_eos_token can")


def seed(value):
    """Theirs or ours: 0xFFFFFFFF, -1 and None are drawn."""
    return None if value in (None, -1, DEFAULT_SEED) else value


def sampling(*, temperature, top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty, tfs_z,
             mirostat_mode, last_n) -> dict:
    """Sampling parameters in our form. Their ranges are wider at the ends, where they mean the same as ours."""
    if mirostat_mode:
        raise UnsupportedError(f"mirostat_mode: found {mirostat_mode!r}, and mirostat is not built yet")
    if tfs_z != 1.0:
        warn_once("tfs_z does nothing: llama.cpp removed tail-free sampling, and llama-cpp-python ignores it too")
    if temperature < 0:              # there: a draw from the plain distribution
        temperature, top_k, top_p, min_p, typical_p = 1.0, 0, 1.0, 0.0, 1.0
    if top_p <= 0:                   # there: the best token is always kept
        top_k, top_p = 1, 1.0
    return dict(temperature=temperature, top_k=max(top_k, 0), top_p=min(top_p, 1.0), min_p=max(min_p, 0.0),
                typical_p=typical_p if 0 < typical_p < 1 else 1.0, repeat_penalty=repeat_penalty, repeat_last_n=last_n,
                frequency_penalty=frequency_penalty, presence_penalty=presence_penalty)


class Stopped(Exception):
    """A stopping criterion was met: raised inside the request, never seen outside."""


def processors(logits_processor, stopping_criteria) -> tuple:
    """Their lists as our functions (ids, logits). The criteria see the ids so far and the raw logits of the next token."""
    out = []
    if stopping_criteria is not None:
        def criteria(ids, logits):
            import numpy

            if stopping_criteria(numpy.array(ids, numpy.intc), logits):
                raise Stopped
        out.append(criteria)
    if logits_processor is not None:
        def processor(ids, logits):
            import numpy

            return logits_processor(numpy.array(ids, numpy.intc), logits)
        out.append(processor)
    return tuple(out)
