"""A drop-in for llama-cpp-python: `import pyengine.compat.llama_cpp as llama_cpp`, or `from pyengine.compat.llama_cpp import Llama`.

The names of llama_cpp that do not reach into C: class Llama and what goes with it, the constants, the functions that tell what the
build can do. The ctypes layer (llama_decode and the like) is not offered and says so. docs/compat.md has the differences.
"""
from . import llama_chat_format, llama_grammar, llama_types  # noqa: F401
from .llama import (  # noqa: F401
    LLAMA_DEFAULT_SEED, BaseLlamaCache, BaseLlamaTokenizer, Llama, LlamaCache, LlamaDiskCache, LlamaDraftModel, LlamaGrammar, LlamaRAMCache,
    LlamaState, LlamaTokenizer, LogitsProcessor, LogitsProcessorList, MinTokensLogitsProcessor, StoppingCriteria, StoppingCriteriaList)
from .llama_types import *  # noqa: F401,F403

__version__ = "0.3.36"               # the version whose interface this is

LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_ROW, LLAMA_SPLIT_MODE_TENSOR = range(4)
LLAMA_POOLING_TYPE_UNSPECIFIED, LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN = -1, 0, 1
LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_LAST, LLAMA_POOLING_TYPE_RANK = 2, 3, 4
LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED, LLAMA_ROPE_SCALING_TYPE_NONE, LLAMA_ROPE_SCALING_TYPE_LINEAR = -1, 0, 1
LLAMA_ROPE_SCALING_TYPE_YARN, LLAMA_ROPE_SCALING_TYPE_LONGROPE = 2, 3
LLAMA_ATTENTION_TYPE_UNSPECIFIED, LLAMA_ATTENTION_TYPE_CAUSAL, LLAMA_ATTENTION_TYPE_NON_CAUSAL = -1, 0, 1
LLAMA_FLASH_ATTN_TYPE_AUTO, LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED = -1, 0, 1
(GGML_NUMA_STRATEGY_DISABLED, GGML_NUMA_STRATEGY_DISTRIBUTE, GGML_NUMA_STRATEGY_ISOLATE, GGML_NUMA_STRATEGY_NUMACTL,
 GGML_NUMA_STRATEGY_MIRROR, GGML_NUMA_STRATEGY_COUNT) = range(6)
LLAMA_VOCAB_TYPE_NONE, LLAMA_VOCAB_TYPE_SPM, LLAMA_VOCAB_TYPE_BPE, LLAMA_VOCAB_TYPE_WPM, LLAMA_VOCAB_TYPE_UGM, LLAMA_VOCAB_TYPE_RWKV = range(6)
LLAMA_TOKEN_NULL = -1

GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1 = 0, 1, 2, 3
(GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q8_1, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
 GGML_TYPE_Q8_K, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ1_S, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ3_S, GGML_TYPE_IQ2_S,
 GGML_TYPE_IQ4_XS, GGML_TYPE_I8, GGML_TYPE_I16, GGML_TYPE_I32, GGML_TYPE_I64, GGML_TYPE_F64, GGML_TYPE_IQ1_M, GGML_TYPE_BF16) = range(6, 31)
GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4, GGML_TYPE_Q1_0, GGML_TYPE_Q2_0 = 34, 35, 39, 40, 41, 42


def llama_supports_gpu_offload() -> bool:
    return False


def llama_supports_mmap() -> bool:
    return True


def llama_supports_mlock() -> bool:
    return True


def llama_supports_rpc() -> bool:
    return False


def llama_backend_init() -> None:
    """Nothing to do."""


def llama_backend_free() -> None:
    """Nothing to do."""


def llama_numa_init(numa: int) -> None:
    """Nothing to do: threads are bound by what the machine is, see docs/threads.md."""


def llama_max_devices() -> int:
    return 1


def llama_print_system_info() -> bytes:
    from ... import machine

    decode, batch = machine.threads()
    return f"pyengine | threads {decode}, {batch} for batches".encode()


def __getattr__(name: str):
    if name.startswith(("llama_", "ggml_", "mtmd_", "gguf_")) or name.endswith("_p"):
        raise AttributeError(f"{name}: llama.cpp's C functions are not offered, there is no llama.cpp behind this module; use class Llama")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
