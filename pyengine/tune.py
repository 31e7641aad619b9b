"""Which kernels and how many threads are fastest on this machine: measured once, remembered, used silently.

Every row of pe_rows() gives the same bits, so a choice changes time and never an answer; the file it is kept in
is therefore believed only as far as plan/lower.py and the checks here find it legal, and is ignored otherwise, with the
reason in `Tuned.reason` and in explain. No policy of steps, no kernels. Imported by llama and cli; imports
plan, native, catalog and machine.
"""
import contextlib
import dataclasses
import math
import os
import re
import time

from . import catalog, machine
from .errors import RequestError

VERSION = 1
MAX_BYTES = 1 << 20          # of the file; 60 shapes are about 20 KB
NEVER = 1 << 20              # a first count that no step reaches

# Token counts to measure, most telling first: when the time runs out the rest is interpolated.
COUNTS = (1, 128, 4, 16, 8, 2, 32, 6, 12, 3)
N_CTX = 128                  # so short that attention is next to nothing
MARGIN = 0.03                # a gain below this is noise: the static order stays
THREAD_MARGIN = 0.10         # fewer threads also look better while a neighbour computes; ask for more
ROUNDS = (3, 15)             # fewest and most of one count


@dataclasses.dataclass(frozen=True)
class Choice:
    """Names of the rows for one, few and many tokens of a matrix, the first counts of the later two, and their times
    relative to the static order's by token count."""

    rows: tuple
    few: int
    many: int
    ratios: dict
    date: str = ""

    @property
    def why(self) -> str:
        gains = ", ".join(f"{1 / r:.2f}x at {n}" for n, r in sorted(self.ratios.items()) if abs(r - 1) >= MARGIN)
        return f"tuned {self.date}: {gains + ' tokens over the static order' if gains else 'as fast as the static order'}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What is remembered of this machine: choices by (type, k, rows), threads by model. Empty with a reason if nothing is."""

    shapes: dict = dataclasses.field(default_factory=dict)
    models: dict = dataclasses.field(default_factory=dict)
    reason: "str | None" = None
    path: object = None

    def choice(self, type_name, k, rows):
        return self.shapes.get((type_name, k, rows))

    def threads(self, gguf):
        """(decode, prompt) threads measured for this model, or None."""
        return self.models.get(model_key(gguf)) if self.models else None


# ---- the file -----------------------------------------------------------------------------

def load(isa=None) -> Tuned:
    """What was measured on this machine with this build. A file that is missing, foreign, outdated or broken
    is no error: the result is empty and says why."""
    switch = os.environ.get("PYENGINE_TUNE", "")
    if switch not in ("", "0", "1"):
        raise RequestError(f"PYENGINE_TUNE is {switch[:80]!r}, expected 0 or 1", param="PYENGINE_TUNE")
    if switch == "0":
        return Tuned(reason="switched off by PYENGINE_TUNE=0")
    untuned = "nothing has been tuned here (pyengine-cli tune MODEL does)"
    try:
        if not folder().is_dir():    # the common case: nothing else is looked at
            return Tuned(reason=untuned)
        me = this_machine(isa)
        path = folder() / file_name(me)
        return dataclasses.replace(parse(_read(path), me), path=path)
    except FileNotFoundError:
        return Tuned(reason=untuned)
    except (OSError, RuntimeError, MemoryError) as e:        # RecursionError of a deeply nested file, no home folder
        return Tuned(reason=f"tune file ignored: {getattr(e, 'strerror', None) or type(e).__name__}")
    except ValueError as e:
        return Tuned(reason=f"tune file ignored: {e}", path=path)


def save(tuned: Tuned, isa=None):
    """Writes the choices over those of an earlier run, the file whole or not at all; returns its path."""
    import json
    import tempfile

    me = this_machine(isa)
    path = folder() / file_name(me)
    try:
        old = parse(_read(path), me)
    except (OSError, RuntimeError, MemoryError, ValueError):
        old = Tuned()                # nothing worth keeping
    shapes, models = {**old.shapes, **tuned.shapes}, {**old.models, **tuned.models}
    data = {
        "version": VERSION, "kernels": kernel_table(), "machine": me,
        "shapes": {f"{t} {k} {n}": {"rows": list(c.rows), "few": c.few, "many": c.many, "date": c.date,
                                    "ratios": {str(at): round(r, 4) for at, r in c.ratios.items()}}
                   for (t, k, n), c in shapes.items()},
        "models": {key: {"decode": d, "prompt": p} for key, (d, p) in models.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with open(fd, "w", encoding="ascii") as f:
            json.dump(data, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def folder():
    return catalog.cache_dir() / "tune"


def this_machine(isa=None) -> dict:
    """What a measurement depends on: CPU, tiers in use, cores, affinity and quota."""
    from .native import isa_mask

    return {"cpu": machine.cpu_name(), "isa": isa_mask(isa), "cpus": len(machine.allowed_cpus()),
            "cores": len(machine.physical_cores()), "quota": machine.quota()}


def file_name(me: dict) -> str:
    return _digest(sorted(me.items())) + ".json"


def kernel_table() -> str:
    """Digest of version and kernel rows: another build's figures say nothing about this one."""
    from . import __version__
    from .native import rows

    return _digest((__version__, [r[1:] for r in rows()]))


def model_key(gguf) -> str:
    """The same for files whose tensors have the same types and shapes."""
    shapes = sorted((t.type_name, tuple(t.shape)) for t in gguf.tensors.values())
    return _digest(shapes)


def _digest(value) -> str:
    import hashlib       # 3 ms of a start where nothing has been tuned

    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def parse(text: str, me: dict) -> Tuned:
    """ValueError says what is wrong with the file. Whether a row is legal for its shape is lower.choose's to say."""
    import json

    try:
        data = json.loads(text)
    except ValueError as e:
        raise ValueError(f"not JSON: {str(e)[:80]}") from None
    _need(isinstance(data, dict), "not a JSON object")
    _need(data.get("version") == VERSION, f"version {_shown(data.get('version'))}, expected {VERSION}")
    _need(data.get("machine") == me, "measured on another machine, or under another affinity or quota")
    _need(data.get("kernels") == kernel_table(), "measured with other kernels than this build has")
    shapes, models = data.get("shapes"), data.get("models")
    _need(isinstance(shapes, dict) and isinstance(models, dict), "shapes or models are missing")
    out, threads = {}, {}
    for key, c in shapes.items():
        found = re.fullmatch(r"([A-Z0-9_]{1,16}) ([0-9]{1,12}) ([0-9]{1,12})", key)
        where = f"shape {key[:40]!r}"
        _need(found is not None and isinstance(c, dict), f"{where} is not TYPE K ROWS")
        rows, ratios, date = c.get("rows"), c.get("ratios"), c.get("date")
        _need(isinstance(rows, list) and len(rows) == 3 and all(isinstance(r, str) and re.fullmatch(r"[a-z0-9_]{1,64}", r) for r in rows),
              f"{where}: rows are not three names")
        _need(_whole(c.get("few"), 1, NEVER) and _whole(c.get("many"), c["few"], NEVER), f"{where}: few and many are not counts in order")
        _need(isinstance(ratios, dict) and all(re.fullmatch(r"[0-9]{1,6}", n) and isinstance(r, (int, float)) and 1e-3 < r < 1e3
                                               for n, r in ratios.items()), f"{where}: ratios are not positive numbers")
        _need(isinstance(date, str) and re.fullmatch(r"[0-9-]{0,10}", date) is not None, f"{where}: date")
        out[found[1], int(found[2]), int(found[3])] = Choice(tuple(rows), c["few"], c["many"], {int(n): float(r) for n, r in ratios.items()}, date)
    for key, t in models.items():
        _need(isinstance(t, dict) and _whole(t.get("decode"), 1, me["cpus"]) and _whole(t.get("prompt"), 1, me["cpus"]),
              f"model {key[:40]!r}: threads are not between 1 and {me['cpus']}")
        threads[key] = (t["decode"], t["prompt"])
    return Tuned(out, threads)


def _read(path) -> str:
    # a pipe or a device in the file's place must not hang us
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
        import stat

        _need(stat.S_ISREG(os.fstat(f.fileno()).st_mode), "not a regular file")
        data = f.read(MAX_BYTES + 1)
    _need(len(data) <= MAX_BYTES, f"more than {MAX_BYTES:,} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("not ASCII") from None


def _need(condition, message) -> None:
    if not condition:
        raise ValueError(message)


def _whole(x, lo, hi) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and lo <= x <= hi


def _shown(x) -> str:
    return repr(x)[:40]


# ---- measuring ------------------------------------------------------------------------------

class _Forced:
    """A choice for every shape, as plan.compile takes it."""

    def __init__(self, choices: dict):
        self.choices = choices

    def choice(self, type_name, k, rows):
        return self.choices.get((type_name, k, rows))


class Bench:
    """One compiled program whose steps are timed: the executor, the threads and the mapped weights are the real ones,
    so a row is measured in the place where it will stand. place(program) may put its weights elsewhere before it is opened
    (verdict.py). A context manager."""

    def __init__(self, gguf, layers, isa, n_threads, choices=None, place=None, n_ctx=N_CTX):
        from . import plan

        self.program = plan.compile(gguf, n_ctx=n_ctx, max_seqs=1, max_tokens=n_ctx, isa=isa, layers=layers,
                                    tuned=None if choices is None else _Forced(choices))
        if place is not None:
            place(self.program)
        pages = -(-n_ctx // 64)
        self.tables = (tuple(range(pages)),) * len(self.program.groups)
        try:
            self.program.open([pages] * len(self.program.groups), n_threads, profile=True, cpus=machine.binding(n_threads))
        except BaseException:
            self.program.close()
            raise
        self.shapes = [shape_of(i) for i in self.program.instrs]
        self.experts = {s for s, i in zip(self.shapes, self.program.instrs) if i.count == "pairs"}
        self.before = [0.0] * len(self.shapes)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.program.close()

    def step(self, n):
        """Runs n tokens; (wall seconds, {shape: seconds of its products summed over threads})."""
        from .plan import Seq, Step

        program = self.program
        wanted = range(n) if n <= program.max_wanted else (n - 1,)
        step = Step([i % program.n_ids for i in range(n)], [Seq(0, n, self.tables)], wanted)
        time.sleep(0.0005)           # another program's threads have stopped spinning by then
        begin = time.perf_counter()
        program.run(step)
        wall, out = time.perf_counter() - begin, {}
        for at, (i, shape, (*_, seconds, _)) in enumerate(zip(program.instrs, self.shapes, program.profile)):
            if shape is not None and (i.count not in ("wanted", "logits") or n <= program.max_wanted):
                out[shape] = out.get(shape, 0.0) + seconds - self.before[at]
            self.before[at] = seconds
        return wall, out


def matrices(instr) -> list:
    """Weights that an instruction multiplies with; where there are two, their types and shapes are equal."""
    from .plan.graph import Weight

    return [v for v in instr.args.values() if isinstance(v, Weight) and v.role == "matrix"] if instr.kernels else []


def token_bytes(program, instr) -> int:
    """Bytes of an instruction's weights that a token reads by itself: all of them, or those of its experts."""
    return sum(w.nbytes // w.matrices for w in matrices(instr)) * program.graph.per_token(instr.count)


def shape_of(instr):
    """(type name, k, rows) of an instruction's matrix, or None."""
    return next(((w.tensor.type_name, w.width, w.rows) for w in matrices(instr)), None)


def measure(gguf, *, isa=None, seconds=17.0, n_threads=None, progress=None):
    """Measures rows, switch points and thread counts for a model, within about `seconds`: (Tuned, thread figures).

    Steps of all candidates take turns, and each is compared with the static order's step of the same turn; medians of
    these ratios decide, so a neighbour that comes and goes disturbs all alike. One-token steps pass over every weight of
    the model (of as many layers as exceed the caches twice), as generation does.
    progress(share done, what) is called between steps.
    """
    from .native import isa_mask, rows
    from .plan.lower import covers

    end = time.monotonic() + seconds
    usual = (n_threads, n_threads) if n_threads else machine.threads()
    n_threads = usual[1]
    tell = progress or (lambda share, what: None)

    def say(share, what):
        tell(min(max(share, 0.0), 1.0), what)

    mask = isa_mask(isa)
    layers, static = measured_layers(gguf, isa, 1 << 29)
    say(0.0, "reading the weights")
    candidates = {shape: [r for r in rows() if r.wtype == wtype and r.isa & mask == r.isa and r.act == kernels.act]
                  for shape, (wtype, kernels) in static.items()}
    ratios = {shape: {} for shape in static}                 # shape -> count -> row name -> time over the static order's
    kernel_seconds = 0.75 * seconds
    with Bench(gguf, layers, isa, n_threads) as warm:
        warm.step(1)                                         # brings the pages in, unmeasured
        for done, n in enumerate(COUNTS):
            left = kernel_seconds - (seconds - (end - time.monotonic()))
            if left <= 0:
                break
            _rows_at(gguf, layers, isa, n_threads, n, static, candidates, ratios, time.monotonic() + left / (len(COUNTS) - done),
                     lambda: say(min(0.75, 1 - (end - time.monotonic()) / seconds), f"kernels at {n} tokens"))
    date = time.strftime("%Y-%m-%d")
    chosen = {shape: dataclasses.replace(pick(candidates[shape], static[shape][1], ratios[shape], covers), date=date) for shape in static}
    figures = _thread_figures(gguf, layers, isa, chosen, usual, end, lambda: say(1 - (end - time.monotonic()) / seconds, "threads"))
    threads = tuple(best_threads(figures[n], t) for n, t in zip((1, N_CTX), usual))
    say(1.0, "done")
    return Tuned(chosen, {model_key(gguf): threads}), figures


def measured_layers(gguf, isa, enough: int):
    """How many layers to measure: all shapes of the model must be among them, `enough` bytes and more than the caches hold
    twice; and {shape: (type id, Kernels of the static order)}."""
    from . import plan

    program = plan.compile(gguf, n_ctx=N_CTX, max_seqs=1, max_tokens=N_CTX, isa=isa)
    static, need, bytes_of = {}, 0, {}
    for i in program.instrs:
        shape = shape_of(i)
        if shape is None:
            continue
        weights = matrices(i)
        found = re.match(r"blk\.(\d+)\.", weights[0].name)
        layer = int(found[1]) if found else 0
        bytes_of[layer] = bytes_of.get(layer, 0) + token_bytes(program, i)
        if shape not in static:
            static[shape], need = (weights[0].tensor.type, i.kernels), max(need, layer + 1)
    enough = max(enough, 2 * machine.cache_bytes())
    while need < program.hp.n_layer and sum(bytes_of.get(layer, 0) for layer in range(need)) < enough:
        need += 1
    return need, static


def _rows_at(gguf, layers, isa, n_threads, n, static, candidates, ratios, until, tick):
    """Fills ratios[shape][n]: every row that may take n tokens beside the static order's."""
    usual = {shape: k.names[2 if n >= k.many else 1 if n >= k.few else 0] for shape, (_, k) in static.items()}
    others = {}
    for shape, rows in candidates.items():
        fit = [r for r in rows if r.n_min <= n <= r.n_max]
        fast = [r for r in fit if r.isa] or fit              # scalar is the meaning, not a candidate
        others[shape] = [r.name for r in fast if r.name != usual[shape]]
        ratios[shape][n] = {usual[shape]: 1.0}
    runs = max((len(o) for o in others.values()), default=0)
    if not runs:
        return
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(Bench(gguf, layers, isa, n_threads))
        benches = []
        for run in range(runs):
            # experts have some of a step's tokens each: what row is good for n of them shows at one token alone
            tried = {shape: o[run] for shape, o in others.items() if run < len(o) and (n == 1 or shape not in base.experts)}
            choices = {shape: _only_at(n, name, static[shape][1]) for shape, name in tried.items()}
            benches.append((tried, stack.enter_context(Bench(gguf, layers, isa, n_threads, choices))))
        samples = {}
        for round in range(-1, ROUNDS[1]):                   # the first is not kept: it touches each program's memory
            if round >= ROUNDS[0] and time.monotonic() > until:
                break
            _, reference = base.step(n)
            for tried, bench in benches:
                _, found = bench.step(n)
                for shape, name in tried.items():
                    if round >= 0 and found.get(shape) and reference.get(shape):
                        samples.setdefault((shape, name), []).append(found[shape] / reference[shape])
            tick()
        for (shape, name), s in samples.items():
            ratios[shape][n][name] = _median(s)


def _only_at(n, name, static):
    """The static order, but for n tokens this row."""
    one, few, many = static.names
    if n == 1:
        return Choice((name, few, many), static.few, static.many, {})
    # what the other two slots are is of no matter to a step of n tokens; they must be legal
    return Choice((one if static.few > 1 else few, name, many), n, n + 1, {}) if static.few == n else Choice((few, name, many), n, n + 1, {})


def pick(rows, static, ratios, covers) -> Choice:
    """Three rows and two switch points with the least time over the counts measured, each count weighing alike.
    ratios: count -> row name -> time over the static order's; what is within MARGIN of it counts as equal to it."""
    by_name, counts = {r.name: r for r in rows}, sorted(ratios)
    usual = {n: static.names[2 if n >= static.many else 1 if n >= static.few else 0] for n in counts}

    def cost(n, name):
        r = ratios[n].get(name)
        if r is None:
            return math.inf
        return -1e-6 if name == usual[n] else 0.0 if abs(r - 1) < MARGIN else math.log(r)

    def best(segment, lo, hi):
        """(cost, name) of the best row for the counts of a segment."""
        fit = [name for name in by_name if covers(by_name[name], lo, hi)]
        return min(((sum(cost(n, name) for n in segment), name) for name in fit), default=(math.inf, None))

    firsts = sorted({*counts[1:], *(x for x in (static.few, static.many) if x > 1)})
    found = (math.inf, None)
    for few in [NEVER, *firsts]:
        for many in [NEVER, *(f for f in firsts if f > few)]:
            parts = [best([n for n in counts if lo <= n <= hi], lo, hi)
                     for lo, hi in ((1, few - 1), (few, many - 1), (many, 1 << 30)) if lo < NEVER]
            while len(parts) < 3:    # a slot that no step reaches takes a row that is legal there
                parts.append((0.0, parts[-1][1]))
            total = sum(c for c, _ in parts)
            if total < found[0] - 1e-12:
                found = (total, Choice(tuple(name for _, name in parts), few, many, {}))
    choice = found[1] or Choice(static.names, static.few, static.many, {})
    at = {n: choice.rows[2 if n >= choice.many else 1 if n >= choice.few else 0] for n in counts}
    return dataclasses.replace(choice, ratios={n: ratios[n][at[n]] for n in counts if at[n] in ratios[n]})


def thread_counts(decode: int, prompt: int) -> list:
    """Thread counts to try: the usual ones, fractions of the larger, and every CPU we may use; all within the quota."""
    most = max(1, min(len(machine.allowed_cpus()), machine.cap(machine.quota())))
    return sorted({min(most, max(1, n)) for n in (decode, prompt, prompt // 4, prompt // 2, prompt * 3 // 4, most)})


def _thread_figures(gguf, layers, isa, chosen, usual, end, tick) -> dict:
    """{1: {threads: seconds of a step}, N_CTX: ...}, medians of steps taken in turn."""
    counts = thread_counts(*usual)
    out = {}
    with contextlib.ExitStack() as stack:
        benches = {t: stack.enter_context(Bench(gguf, layers, isa, t, chosen)) for t in counts}
        for n, share in ((1, 0.4), (N_CTX, 1.0)):
            until = time.monotonic() + share * (end - time.monotonic())
            samples = {t: [] for t in counts}
            for round in range(-1, ROUNDS[1]):
                if round >= ROUNDS[0] and time.monotonic() > until:
                    break
                for t, bench in benches.items():
                    wall, _ = bench.step(n)
                    if round >= 0:
                        samples[t].append(wall)
                tick()
            out[n] = {t: _median(s) for t, s in samples.items()}
    return out


def best_threads(figures: dict, usual: int) -> int:
    """The usual count unless another is faster by more than THREAD_MARGIN; then the fewest within MARGIN of the fastest."""
    fastest = min(figures.values())
    if usual in figures and figures[usual] <= fastest * (1 + THREAD_MARGIN):
        return usual
    return next(t for t, s in sorted(figures.items()) if s <= fastest * (1 + MARGIN))


def _median(samples):
    s = sorted(samples)
    return (s[len(s) // 2] + s[(len(s) - 1) // 2]) / 2
