"""Every exception pyengine raises on purpose. Imports nothing; everything may import it.

    PyengineError(Exception)
    ├── GGUFError(ValueError)            a file is not what it says it is     .key .offset
    ├── UnsupportedError                 an architecture, type, ISA or kernel we do not have
    ├── TokenizerError(ValueError)       a vocabulary or text that cannot be encoded
    ├── TemplateError(ValueError)        a chat template is absent, does not compile or raises
    ├── RequestError(ValueError)         a parameter of a call is wrong       .param
    │   ├── ContextError                 the prompt alone does not fit        .n_prompt .n_ctx
    │   └── GrammarError                 a schema, regex or grammar cannot be honoured
    ├── QueueFullError                   too many requests wait already       .n_waiting .limit
    ├── DeadlineError(TimeoutError)      the deadline passed before the first token
    ├── SessionError(ValueError)         a state file of another model or other settings, or damaged
    ├── MemoryBudgetError(MemoryError)   this machine has not the memory that was asked for
    ├── FileChangedError(OSError)        the model file changed while it was in use
    ├── ClosedError(RuntimeError)        used after close(), or in a forked child
    ├── NonFiniteError(ArithmeticError)  a logit is NaN or infinite
    ├── StoppedError(RuntimeError)       a step was stopped from another thread; nothing was committed
    └── FetchError(OSError)              a model could not be fetched or failed its checksum

Each also derives from the builtin in brackets, so that code which knows nothing
of pyengine catches what it expects. A message names the key, tensor, offset or
parameter, what was found and what was expected.
"""


class PyengineError(Exception):
    pass


class GGUFError(PyengineError, ValueError):
    def __init__(self, message: str, *, key: "str | None" = None, offset: "int | None" = None):
        super().__init__(message)
        self.key = key
        self.offset = offset


class UnsupportedError(PyengineError):
    pass


class TokenizerError(PyengineError, ValueError):
    pass


class TemplateError(PyengineError, ValueError):
    out_of_budget = False      # true: it does too much, and was ended


class RequestError(PyengineError, ValueError):
    def __init__(self, message: str, *, param: "str | None" = None):
        super().__init__(message)
        self.param = param


class ContextError(RequestError):
    def __init__(self, message: str, *, n_prompt: int, n_ctx: int):
        super().__init__(message, param="prompt")
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class GrammarError(RequestError):
    pass


class QueueFullError(PyengineError):
    def __init__(self, message: str, *, n_waiting: int, limit: int):
        super().__init__(message)
        self.n_waiting = n_waiting
        self.limit = limit


class DeadlineError(PyengineError, TimeoutError):
    pass


class SessionError(PyengineError, ValueError):
    pass


class MemoryBudgetError(PyengineError, MemoryError):
    pass


class FileChangedError(PyengineError, OSError):
    pass


class ClosedError(PyengineError, RuntimeError):
    pass


class NonFiniteError(PyengineError, ArithmeticError):
    pass


class StoppedError(PyengineError, RuntimeError):
    pass


class FetchError(PyengineError, OSError):
    pass


def quoted(text: object, limit: int = 200) -> str:
    """Foreign text made safe for a message: escaped, in quotes, cut to `limit` characters."""
    if isinstance(text, (bytes, bytearray, memoryview)):
        cut = len(text) > limit
        text = bytes(text[:limit]).decode("utf-8", "backslashreplace")
    else:
        text = str(text)
        cut = len(text) > limit
    text = escaped(text[:limit])
    cut = cut or len(text) > limit
    return f"'{text[:limit]}...'" if cut else f"'{text}'"


def escaped(text: str) -> str:
    """The text with whatever does not print (line breaks, terminal codes, direction marks) as escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
