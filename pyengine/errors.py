"""Every exception pyengine raises on purpose. Imports nothing; everything may import it.

    PyengineError(Exception)
    ├── GGUFError(ValueError)            a file is not what it says it is     .key .offset
    ├── UnsupportedError                 an architecture, type, ISA or kernel we do not have
    ├── TokenizerError(ValueError)       a vocabulary or text that cannot be encoded
    ├── TemplateError(ValueError)        a chat template is absent, does not compile or raises
    ├── RequestError(ValueError)         a parameter of a call is wrong       .param
    │   └── ContextError                 the prompt alone does not fit        .n_prompt .n_ctx
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
    pass


class RequestError(PyengineError, ValueError):
    def __init__(self, message: str, *, param: "str | None" = None):
        super().__init__(message)
        self.param = param


class ContextError(RequestError):
    def __init__(self, message: str, *, n_prompt: int, n_ctx: int):
        super().__init__(message, param="prompt")
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


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
