"""Sessions: a growing list of tokens with answers in between, that can fork, go back, and be kept in a file.

A session is its tokens; their pages are the prefix cache's, which keeps them while there is
room and computes them again where there is not, so a session holds no memory of the model and
needs no end. Also the prefix cache as a whole in a file, by the same format (statefile.py).

Not the cache (cache.py) and not the API (llama.py, which makes sessions). Imported by llama.
"""
import contextlib
import threading
import warnings
import weakref

from . import statefile
from .errors import PyengineError, RequestError
from .request import MAX_CHOICES, MAX_NAME, ids, whole

SESSION, PREFIX = "session", "prefix cache"


class Session:
    """Tokens of one conversation; each call goes on from where the last one ended.

    append()    text or ids behind the tokens so far; a text is encoded by itself, with control tokens, and with
                the beginning-of-sequence token only where it is the first
    generate()  answers as Llama.generate() does, and appends what was generated. The token that ended the turn is
                not part of an answer: a chat template's own end of turn is appended like any text.
    fork(n)     n sessions that go on from here, each for itself
    rewind(n)   keeps the first n tokens
    save()      into a file that Llama.load_session() opens again, also in another process

    Usable from several threads, one call at a time.
    """

    def __init__(self, llm, tokens=(), *, key="", salt=""):
        for name, value in (("key", key), ("salt", salt)):
            if not isinstance(value, str) or len(value) > MAX_NAME:
                raise RequestError(f"{name}: found {type(value).__name__}, expected a text of at most {MAX_NAME} characters", param=name)
        self._llm, self.key, self.salt = llm, key, salt
        self._tokens = list(tokens)
        self._lock = threading.RLock()
        self._answer = None          # a weak reference to the stream that goes on

    @property
    def tokens(self) -> list:
        return list(self._tokens)

    @property
    def text(self) -> str:
        return self._llm.detokenize(self._tokens, special=True)

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"Session({len(self._tokens)} tokens)"

    def append(self, what) -> "Session":
        with self._idle("append"):
            if isinstance(what, str):
                more = self._llm.tokenize(what, special=True, add_bos=False if self._tokens else None)
            elif isinstance(what, (list, tuple)):
                more = ids(what, self._llm.n_vocab)
            else:
                raise RequestError(f"append: found {type(what).__name__}, expected a text or token ids", param="append")
            self._tokens += more
        return self

    def generate(self, *, stream=False, **options):
        """As Llama.generate(), which see for the options; n is 1 (fork() for more)."""
        if options.get("n", 1) != 1:
            raise RequestError(f"n: found {options['n']!r}, a session goes on in one way: fork() it", param="n")
        with self._idle("generate"):
            options = {"key": self.key, "salt": self.salt, **options}
            if options["salt"] != self.salt:
                raise RequestError("salt: belongs to the session", param="salt")
            out = self._llm.generate(self._tokens or None, stream=stream, **options)
            if stream:
                out = Answer(self, out)
                self._answer = weakref.ref(out)
            else:
                self._ended(out)
        return out

    def fork(self, n: int = 1) -> list:
        n = whole("fork", n, 1, MAX_CHOICES)
        with self._idle("fork"):
            return [Session(self._llm, self._tokens, key=self.key, salt=self.salt) for _ in range(n)]

    def rewind(self, n: int) -> "Session":
        with self._idle("rewind"):
            del self._tokens[whole("rewind", n, 0, len(self._tokens)):]
        return self

    def save(self, path) -> int:
        """Writes tokens and pages, all of them or none; positions that are not in the cache are computed first
        where it is switched on. Returns the size of the file."""
        with self._idle("save"):
            llm, tokens = self._llm, list(self._tokens)
            if llm.prefix_cache and len(tokens) > 1:
                llm.generate(tokens, max_tokens=0, key=self.key, salt=self.salt)
            return _write(llm, path, SESSION, {"tokens": tokens, "salt": self.salt, "key": self.key}, self.salt, tokens)

    @contextlib.contextmanager
    def _idle(self, what: str):
        with self._lock:             # who waited for another call may find that it began an answer
            answer = self._answer and self._answer()
            if answer is not None and not answer.ended:
                raise RequestError(f"{what}: the session's answer has not ended; iterate or close() it", param=what)
            yield

    def _ended(self, completion) -> None:
        if not self._tokens:         # the answer to None begins behind the token that was put there
            bos = self._llm.tokenizer.bos
            self._tokens = [bos] if bos is not None else []
        self._tokens += completion.tokens


class Answer:
    """The stream of a session's answer: appended to the session when it ends or is closed; one that is
    dropped before is not."""

    def __init__(self, session: Session, stream):
        self._session, self._stream = session, stream
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self) -> str:
        try:
            return next(self._stream)
        except Exception:            # its end too; after Ctrl-C it goes on
            self._end()
            raise

    @property
    def result(self):
        return self._stream.result

    def close(self) -> None:
        self._stream.close()
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _end(self) -> None:
        with self._session._lock:
            if not self.ended:
                self.ended = True
                if self._stream.result is not None:
                    self._session._ended(self._stream.result)


# ---- files ---------------------------------------------------------------------------


def load(llm, path) -> Session:
    """The session that was saved, its pages in the cache as far as there is room. SessionError: of another model
    or other settings, or not what was written; then nothing has changed."""
    with statefile.State(path, SESSION, _identity(llm), llm.n_vocab) as state:
        header = state.header
        tokens, salt, key = header.get("tokens"), header.get("salt"), header.get("key")
        try:
            session = Session(llm, ids(tokens, llm.n_vocab), key=key, salt=salt)
        except (RequestError, TypeError) as e:
            raise state.error(str(e)) from None
        if any(record[1] != salt for record in state.records):
            raise state.error("has pages of other salts than its own")
        _adopt(llm, state)
    return session


def write_prefix(llm, path) -> None:
    """Everything the prefix cache holds. What goes wrong is worth a warning and no more."""
    try:
        _write(llm, path, PREFIX, {})
    except (OSError, PyengineError) as e:
        warnings.warn(f"prefix_file could not be written, going on without: {e}", stacklevel=4)


def read_prefix(llm, path) -> None:
    try:
        with statefile.State(path, PREFIX, _identity(llm), llm.n_vocab) as state:
            _adopt(llm, state)
    except (OSError, PyengineError) as e:
        warnings.warn(f"prefix_file could not be read, going on without: {e}", stacklevel=4)


def _identity(llm) -> dict:
    return statefile.identity(llm.gguf, llm.program)


def _write(llm, path, kind: str, extra: dict, key=None, tokens=None) -> int:
    thread = llm.engine_thread
    cache, program = thread.engine.cache, thread.engine.program
    return statefile.write(path, kind, _identity(llm), extra, lambda: cache.entries(key, tokens), program, thread.call)


def _adopt(llm, state) -> int:
    thread = llm.engine_thread
    cache, program = thread.engine.cache, thread.engine.program
    if not cache.reuse or not state.records:
        return 0

    def fill(number, group, page):
        with program.page(group, page) as views:
            state.fill(number, group, views)

    return thread.call(lambda: cache.adopt(state.records, fill))
