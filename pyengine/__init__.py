"""pyengine: quantized language models on ordinary CPUs.

The public names and nothing else. They are imported on first use, so that
`import pyengine` costs a millisecond and a command line tool pays only for
what it runs.
"""
__version__ = "0.1.0"

_HOME = {
    "Llama": "llama",
    "AsyncLlama": "aio",
    "quantize": "convert",
    "Completion": "stream",
    "Stream": "stream",
    "Session": "session",
    "perplexity": "evaluate",
    "compare": "evaluate",
    "PyengineError": "errors",
    "GGUFError": "errors",
    "UnsupportedError": "errors",
    "TokenizerError": "errors",
    "TemplateError": "errors",
    "RequestError": "errors",
    "ContextError": "errors",
    "GrammarError": "errors",
    "QueueFullError": "errors",
    "DeadlineError": "errors",
    "SessionError": "errors",
    "MemoryBudgetError": "errors",
    "FileChangedError": "errors",
    "ClosedError": "errors",
    "NonFiniteError": "errors",
    "StoppedError": "errors",
    "FetchError": "errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'pyengine' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pyengine.{home}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
