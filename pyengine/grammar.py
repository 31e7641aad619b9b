"""Answers that follow a JSON Schema, a regular expression, a GBNF or a Lark grammar, through llguidance.

Grammars: one per model, compiles and remembers. Constraint: one per request, says which ids may come next.
Not the mask's use (csrc/sample.c) and not the loop (engine.py). Imports errors, native, gbnf and schema; may be
imported by llama and compat. llguidance is the extra [grammar] and is imported on first use.

What cannot be honoured is a GrammarError before the request runs. Every bound counts work (fuel, items, states,
bytes), none looks at a clock, so that an answer does not depend on the machine. On a 2.x GHz core, 49,152
ids: the vocabulary's trie 0.3 s and 38 MB, once per model; a schema of a few fields 2 ms; a mask 6 us (95 of 100: 0.2 ms).
"""
import json
import re
import threading
from collections import OrderedDict

from . import gbnf, schema
from .errors import GrammarError, quoted
from .native import ffi

MAX_BYTES = schema.MAX_BYTES        # of a regular expression or a grammar
MAX_RULES = 3000                    # of a Lark grammar
CACHE_BYTES = 64 << 20              # of compiled grammars, estimated
STACK_BYTES = 64 << 20              # address space of the thread that compiles, whose recursion the bounds above limit

# One blank, or a line end and an indent: what models write, and no room for a run of blanks without end.
WHITESPACE = r"[ ]|\n[ \t]{0,20}"
# \u0061 would be a second way to write "a", and as a name escape the schema of a; \b and \f, see pattern.py.
ESCAPES = '"\\nrt'

_JSON = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES}

# llguidance's own values, except the states (1 to 2 kB each; its 250,000 would be half a GB per request).
_LIMITS = {"max_items_in_row": 5000, "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000,
           "step_max_items": 50_000, "max_lexer_states": 50_000, "max_grammar_size": 500_000, "verbose_errors": False}


class Grammars:
    """The grammars of one model. Usable from several threads."""

    def __init__(self, tokenizer, n_rows: int):
        self._tokenizer, self._n_rows = tokenizer, n_rows
        self._lock = threading.Lock()
        self._ll = None
        self._compiled = OrderedDict()       # (param, text, force): (matcher that nothing was fed, its estimated bytes)
        self._bytes = 0

    def constraint(self, param: str, value, *, may_end=True, force=True) -> "Constraint":
        """param: json_schema, regex, grammar or lark. may_end False: the answer goes on while the grammar lets it.
        force False: what has to come next may be spelled in any tokens, and is not forced."""
        text = schema.text_of(value) if param == "json_schema" else _text(param, value)
        with self._lock:
            matcher = self._matcher(param, text, force).deep_copy()
        return Constraint(param, matcher, self._n_words(), () if may_end else tuple(self._tokenizer.end_ids))

    def _n_words(self) -> int:
        return (self._n_ids() + 31) // 32

    def _n_ids(self) -> int:
        """Rows of the head and ids without one, and an id that no row has: the end, where a model has none."""
        return max(self._n_rows, self._tokenizer.n_vocab) + 1

    def _matcher(self, param: str, text: str, force: bool):
        """The compiled grammar; called with the lock held: one is compiled at a time."""
        key = param, text, force
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            return found[0]
        if self._ll is None:
            self._ll = _lltokenizer(_llguidance(param), self._tokenizer, self._n_ids())
        matcher = _on_a_deep_stack(lambda: _compile(self._ll, param, text, force), param)
        cost = 300_000 + 100 * len(text)     # measured: 0.27 MB for small ones, and less than 100 bytes a character
        self._compiled[key] = matcher, cost
        self._bytes += cost
        while self._bytes > CACHE_BYTES and len(self._compiled) > 1:
            self._bytes -= self._compiled.popitem(last=False)[1][1]
        return matcher


class Constraint:
    """Where one answer stands in its grammar. Used by the engine thread."""

    def __init__(self, param: str, matcher, n_words: int, hidden=()):
        self._param, self._matcher, self._hidden = param, matcher, hidden
        self._words = ffi.new("uint32_t[]", n_words)
        self._address = int(ffi.cast("uintptr_t", self._words))

    def mask(self):
        """uint32_t *: bit i%32 of word i/32 is set if id i may come. Valid until the next call."""
        self._matcher.unsafe_compute_mask_ptr(self._address, 4 * len(self._words))
        self._check()
        if self._hidden:
            self._hide()
        return self._words

    def commit(self, token: int) -> None:
        """The answer goes on with this id, which the mask allowed."""
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarError(f"{self._param}: token {token} does not continue the answer", param=self._param)

    def forced(self) -> list:
        """Ids that have to come next, in the tokenizer's own spelling of the only text that may. The mask at such a
        place allows that spelling only."""
        return self._matcher.compute_ff_tokens()

    @property
    def complete(self) -> bool:
        """Whether nothing more may come."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fork(self) -> "Constraint":
        return Constraint(self._param, self._matcher.deep_copy(), len(self._words), self._hidden)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _refused(self._param, self._matcher.get_error())

    def _hide(self) -> None:
        """Clears the ids that are not to end the answer, unless they are all that is left."""
        before = [self._words[i // 32] for i in self._hidden]
        for i in self._hidden:
            self._words[i // 32] &= ~(1 << i % 32) & 0xFFFFFFFF
        if not any(ffi.buffer(self._words)[:].strip(b"\0")):
            for i, word in zip(self._hidden, before):
                self._words[i // 32] |= word


def _llguidance(param: str):
    try:
        import llguidance
    except ImportError as e:
        raise GrammarError(f"{param} needs llguidance ({e}): pip install 'pyengine-gguf[grammar]'", param=param) from e
    return llguidance


def _text(param: str, value) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"{param}: found {type(value).__name__}, expected a text", param=param)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise GrammarError(f"{param}: half of a surrogate pair is no character", param=param) from None
    if size > MAX_BYTES:
        raise GrammarError(f"{param}: {size} bytes, at most {MAX_BYTES}", param=param)
    return value


def _compile(ll, param: str, text: str, force: bool):
    """A matcher at its beginning with the first mask computed, so that copies share what that took."""
    lg = _llguidance(param)
    if param == "json_schema":
        lark = "start: %json " + _with_options(json.loads(text))
    elif param == "regex":       # its \d \w \s are ASCII, as in a schema's patterns: a telephone number has no Bengali digits
        lark = f"start: /{lg.regex_to_lark(text, 'dws')}/"
    else:
        lark = gbnf.to_lark(text) if param == "grammar" else _checked_lark(text)
    if not force and "%llguidance" not in lark:
        lark = '%llguidance {"no_forcing": true}\n' + lark
    source = json.dumps({"grammars": [{"lark_grammar": lark}]})
    matcher = lg.LLMatcher(ll, source, log_level=0, limits=lg.LLParserLimits(**_LIMITS))
    warnings = [] if matcher.is_error() else matcher.get_grammar_warnings()
    if matcher.is_error() or warnings and param == "json_schema":
        raise _refused(param, matcher.get_error() or "; ".join(warnings))
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        raise _refused(param, matcher.get_error())
    if not any(mask.strip(b"\0")) and not matcher.is_accepting():
        raise GrammarError(f"{param}: no text satisfies it", param=param)
    return matcher


def _checked_lark(text: str) -> str:
    """Lark as it is, within the bounds that llguidance's recursion needs. Schemas in it are checked as others are."""
    rules = text.count(":")
    if rules > MAX_RULES:
        raise GrammarError(f"lark: {rules} colons, so perhaps as many rules; at most {MAX_RULES}", param="lark")
    out, at = [], 0
    while (begin := text.find("%json", at)) >= 0:
        begin = _JSON_AT.match(text, begin).end()
        try:
            root, end = json.JSONDecoder().raw_decode(text, begin)
            if schema.depth(text[begin:end]) > schema.MAX_DEPTH:
                raise ValueError(f"brackets are nested more than {schema.MAX_DEPTH} deep")
        except (ValueError, RecursionError) as e:
            raise GrammarError(f"lark: %json is followed by no JSON: {e}", param="lark") from None
        if isinstance(root, dict):
            schema.check(root, "lark")
        out += text[at:begin], _with_options(root)
        at = end
    return "".join([*out, text[at:]])


_JSON_AT = re.compile(r"%json\s*")


def _with_options(root) -> str:
    return json.dumps({**root, "x-guidance": _JSON} if isinstance(root, dict) else root, ensure_ascii=False)


def _refused(param: str, why: str) -> GrammarError:
    if why.startswith("NoExtension"):
        return GrammarError(f"{param}: no text satisfies it", param=param)
    if "oneOf constraints" in why:
        why = "oneOf is supported where types, constants or required properties tell its alternatives apart; say anyOf"
    if param != "lark":                  # the place and the excerpt are of Lark that nobody has written
        why = _PLACE.sub("", why)
    why = " ".join(why.replace("<non-verbose/>", "").split())
    return GrammarError(f"{param} cannot be honoured: {quoted(why, 400)}", param=param)


_PLACE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: |\n *\d+ \| [^\x00]*")


def _lltokenizer(lg, tokenizer, n_ids: int):
    """The vocabulary's trie. Control tokens are no text; ids without a text are never allowed."""
    n = tokenizer.n_vocab
    vocabulary = _Vocabulary(tokenizer, n_ids)
    ends = sorted(tokenizer.end_ids) or [n_ids - 1]
    out = lg.LLTokenizer(vocabulary, eos_token=ends)
    vocabulary.tokens = ()               # it has copied them and goes on asking for the encoding only
    assert out.vocab_size == n_ids > n
    return out


class _Vocabulary:
    """What llguidance asks of a tokenizer, under its names."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer, n_ids: int):
        n = tokenizer.n_vocab
        self._encode = tokenizer.encode
        self.tokens = [tokenizer.piece(i, special=True) for i in range(n)] + [b""] * (n_ids - n)
        self.special_token_ids = [i for i in range(n) if not tokenizer.is_text(i)] + list(range(n, n_ids))
        self.eos_token_id, self.bos_token_id = min(tokenizer.end_ids, default=n_ids - 1), tokenizer.bos

    def __call__(self, text) -> list:
        return self._encode(text, add_bos=False, continued=True)


def _on_a_deep_stack(function, param: str):
    """function() in a thread whose stack does not depend on who calls: 128 kB to 8 MB is what systems give."""
    out = []

    def run():
        try:
            out.append((function(), None))
        except BaseException as e:       # a panic of llguidance's is no Exception
            out.append((None, e))

    thread = threading.Thread(target=run, name="pyengine grammar")
    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    result, error = out[0]
    if error is not None:
        if not isinstance(error, Exception):
            raise GrammarError(f"{param}: llguidance failed: {quoted(error, 200)}", param=param) from error
        raise error
    return result


_stack_size = threading.Lock()
