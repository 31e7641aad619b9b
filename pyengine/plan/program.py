"""The compiled program: memory layout, binding, steps, and what explain prints.

compile() decides everything that does not depend on memory at hand; Program.open()
allocates the arena, the pages and the thread pool once, and binds; Program.run() makes one
C call per step. No policy here: who runs when is schedule.py's.

Imported by engine and plan/__init__. Imports native, arch, plan/.
"""

import contextlib
import dataclasses
import mmap
from collections.abc import Sequence

from ..arch import module_for
from ..errors import ClosedError, MemoryBudgetError, PyengineError, RequestError, StoppedError
from ..native import demoted, ffi, isa_mask, lib, rows
from . import fuse as fusion
from .graph import Graph, Weight
from .lower import FORMS, Lowering
from .ops import COUNTS, KV_TYPES, OPS, PAGE, Const, Pages, State, up

ARENA, CONSTS, LOGITS, HIDDEN, FILES = range(5)       # regions; then one per file, one per cache group, one for state
SNAPSHOTS = 64               # slots of state beside those that running sequences need: what is kept for others to go on from, and guesses
# mmap's default, shared with children, is a kind of file to the system: no huge pages, and no part of `ulimit -d`.
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
WHOLE_SEQS = 32              # of a step of texts that are never split: 512 rows are so many sentences
STEP_FIELDS = ("counts", "tokens", "start", "count", "tables", "wanted", "copies", "slots", "saves")


@dataclasses.dataclass(frozen=True)
class Seq:
    """One sequence's part of a step: `count` rows from position `start`; tables[g][p] is the page of
    group g that holds positions 64p..64p+63. slot: where the state behind position start-1 is; saves: (n, slot), n ascending
    in start+1 .. start+count: the slot gets the state behind the first n positions."""

    start: int
    count: int
    tables: tuple
    slot: int = -1
    saves: tuple = ()


@dataclasses.dataclass(frozen=True)
class Step:
    tokens: Sequence            # ids, the sequences' rows one after another
    seqs: Sequence              # of Seq
    wanted: Sequence            # rows that are wanted, ascending
    copies: Sequence = ()       # (group, source page, target page), made first
    n_hidden: int = 0           # the last so many of the wanted end before the head: no logits, only hidden rows
    n_threads: int = 0          # of the program's threads; 0: all


class Logits:
    """The wanted rows of the last step, valid until the next run. n of them have logits; hidden() has all."""

    __slots__ = ("_base", "_stride", "n_vocab", "n", "_hidden", "_hidden_stride", "_n_embd", "_n_wanted")

    def __init__(self, base, stride, n_vocab, n, hidden, hidden_stride, n_embd, n_wanted):
        self._base, self._stride, self.n_vocab, self.n = base, stride, n_vocab, n
        self._hidden, self._hidden_stride, self._n_embd, self._n_wanted = hidden, hidden_stride, n_embd, n_wanted

    def address(self, i: int) -> int:
        """Where row i begins: n_vocab float32."""
        assert 0 <= i < self.n
        return self._base + i * self._stride

    def numpy(self, i: int):
        """A copy of row i."""
        import numpy

        return numpy.frombuffer(ffi.buffer(ffi.cast("char *", self.address(i)), 4 * self.n_vocab), numpy.float32).copy()

    def hidden(self, i: int):
        """A copy of row i before the head, what embeddings are made of: n_embd float32."""
        import numpy

        assert 0 <= i < self._n_wanted
        at = ffi.cast("char *", self._hidden + i * self._hidden_stride)
        return numpy.frombuffer(ffi.buffer(at, 4 * self._n_embd), numpy.float32).copy()


def compile(gguf, *, n_ctx, max_seqs=4, max_tokens=512, max_wanted=32, kv_type="f16", isa=None, fuse=True,
            tuned=None, layers=None) -> "Program":
    """Plans `gguf` for at most n_ctx positions a sequence and max_tokens rows a step. GGUFError: the
    file is not what its architecture needs; UnsupportedError: something we do not have.

    tuned: what tune.py remembers of this machine. layers: only the first so many, for measuring."""
    if kv_type not in KV_TYPES:
        raise RequestError(f"kv_type is {kv_type!r}, expected {' or '.join(map(repr, KV_TYPES))}", param="kv_type")
    module = module_for(gguf.arch)
    hp = module.hyper(gguf)
    graph = Graph(gguf, whole=layers is None, n_ctx=n_ctx)
    module.build(graph, hp if layers is None else dataclasses.replace(hp, n_layer=min(layers, hp.n_layer)))
    return Program(gguf, hp, graph, n_ctx, max_seqs, max_tokens, max_wanted, kv_type, isa_mask(isa), fuse, tuned, demoted(isa))


class Program:
    def __init__(self, gguf, hp, graph, n_ctx, max_seqs, max_tokens, max_wanted, kv_type, isa, fuse, tuned=None, behind=0):
        self.gguf, self.arch, self.hp, self.graph, self.isa = gguf, gguf.arch, hp, graph, isa
        self.both = graph.both                  # sequences are never split over steps
        if self.both:                           # so a step has room for a whole one, and for many short ones
            max_tokens = max_wanted = max(max_tokens, n_ctx)
            max_seqs = max(max_seqs, WHOLE_SEQS)
        self.n_ids, self.n_ctx = hp.n_vocab, n_ctx
        self.n_vocab = hp.n_vocab if graph.output is None else graph.output.width      # of a row of logits
        self.max_seqs, self.max_tokens, self.max_wanted = max_seqs, max_tokens, max_wanted
        self.kv_type = kv_type
        lowering = Lowering(graph, rows(), isa, n_ctx, kv_type, tuned, behind, max_tokens)
        self.instrs, groups, self.states = lowering.run()
        self.output = None if graph.output is None else lowering.of(graph.output)      # None: there is no head
        self.hidden = lowering.of(graph.hidden)
        if fuse:
            self.instrs = fusion.fuse(self.instrs)
        self.groups = tuple(groups)
        self._consts = self._lay_constants()
        self.arena_bytes = self._lay_arena()
        self.logits_bytes = max_wanted * ((self.output.row_bytes if self.output else 0) + self.hidden.row_bytes)
        self.n_pages, self._first_group = (1,) * len(groups), FILES + len(gguf.files)
        # A running sequence reads a slot and writes another; what else there is serves those to come.
        self.n_slots = 2 * max_seqs + SNAPSHOTS if self.states else 0
        self.slot_bytes = sum(s.nbytes for s in self.states)
        self._prog = self._pool = None
        self._profile = self._thread_bytes = None
        self._memory = []
        self.steps = 0

    # ---- memory planning ----------------------------------------------------------------

    def _lay_constants(self):
        seen, data = {}, bytearray()
        for i in self.instrs:
            for v in i.args.values():
                if isinstance(v, Const) and id(v) not in seen:
                    seen[id(v)] = v
                    data += bytes(-len(data) % 64)
                    v.offset = len(data)
                    data += v.data
        return bytes(data or b"\0")

    def size_of(self, value):
        """Bytes of all rows of a value."""
        n = {"wanted": self.max_wanted, "logits": self.max_wanted, "once": 1}.get(value.rows) or self.max_tokens * self.graph.per_token(value.rows)
        return up(value.row_bytes, 64) * n

    def _lay_arena(self):
        """Places each value at the lowest offset that is free from its first to its last phase."""
        first, last, values, phase = {}, {}, {}, 0
        for i in self.instrs:
            for v in i.touched("rwu"):
                if not isinstance(v, (Const, Pages, State, Weight)) and v is not self.output and v is not self.hidden:
                    values[id(v)] = v
                    first.setdefault(id(v), phase)
                    last[id(v)] = phase
            phase += i.barrier
        live, end = [], 0
        for key in sorted(values, key=lambda k: (first[k], -self.size_of(values[k]))):
            v, size, offset = values[key], self.size_of(values[key]), 0
            live = sorted(((o, s, l) for o, s, l in live if l >= first[key]))
            for o, s, _ in live:
                if offset + size <= o:
                    break
                offset = max(offset, o + s)
            v.offset = offset
            live.append((offset, size, last[key]))
            end = max(end, offset + size)
        return max(end, 64)

    # ---- binding --------------------------------------------------------------------------

    def open(self, pages, n_threads, profile=False, cpus=None) -> None:
        """Allocates arena, logits and pages[g] pages per group, makes n_threads threads, binds.
        cpus: a list of CPUs for each thread to run on (machine.binding); the first thread is whoever calls run()."""
        assert self._prog is None and len(pages) == len(self.groups)
        self.n_pages = tuple(pages)
        consts = self._allocate(len(self._consts))
        consts[: len(self._consts)] = self._consts
        hidden = self.max_wanted * self.hidden.row_bytes
        memory = [self._allocate(self.arena_bytes), consts, self._allocate(self.logits_bytes - hidden), self._allocate(hidden)]
        regions = [(_address(m), len(m), True) for m in memory]
        regions += [(f.address, f.size, False) for f in self.gguf.files]
        memory += [self._allocate(n * g.page_bytes) for n, g in zip(pages, self.groups)]
        memory += [self._allocate(self.n_slots * self.slot_bytes)] if self.states else []
        regions += [(_address(m), len(m), True) for m in memory[FILES:]]
        self._memory = memory
        self._logits, self._hidden = regions[LOGITS][0], regions[HIDDEN][0]
        table = ffi.new("pe_region[]", len(regions))
        for r, (base, size, writable) in zip(table, regions):
            r.base, r.size, r.writable = ffi.cast("uint8_t *", base), size, writable
        insns = self._encoded()
        prog, pool, bad = ffi.new("pe_prog **"), ffi.new("pe_pool **"), ffi.new("int32_t[2]")
        rc = lib.pe_prog_new(prog, insns, len(self.instrs), table, len(regions), self._limits(pages), self.isa, n_threads, bad)
        if rc == lib.PE_ENOMEM:
            raise MemoryBudgetError("out of memory while binding the program")
        if rc:
            what = self.instrs[bad[0]] if bad[0] >= 0 else None
            raise PyengineError(f"internal error: instruction {bad[0]} ({what.op + ' ' + what.label if what else 'limits'}) "
                                f"does not bind: operand {bad[1]}, code {rc}")
        self._prog = prog[0]
        rc = lib.pe_pool_new(pool, n_threads)
        if rc:
            lib.pe_prog_free(self._prog)
            self._prog = None
            raise MemoryBudgetError(f"cannot start {n_threads} threads")
        self._pool = pool[0]
        self.n_threads = n_threads
        for thread, allowed in enumerate(cpus or ()):
            if thread:               # refused (a container's seccomp, a CPU gone offline): the system's choice is right, if slower
                lib.pe_pool_bind(self._pool, thread, ffi.new("int32_t[]", allowed), len(allowed))
        if profile:
            self._profile = ffi.new("int64_t[]", len(self.instrs))
            lib.pe_prog_profile(self._prog, self._profile)
        self._new_step_buffers()

    def _allocate(self, n):
        try:
            return mmap.mmap(-1, max(n, 1), **PRIVATE)
        except (OSError, ValueError, OverflowError) as e:
            raise MemoryBudgetError(f"cannot allocate {n:,} bytes: {e}") from None

    def _limits(self, pages):
        l = ffi.new("pe_limits *")
        l.max_tokens, l.max_seqs, l.max_wanted = self.max_tokens, self.max_seqs, self.max_wanted
        l.kv_type = KV_TYPES[self.kv_type][0]
        l.n_ctx, l.n_ids, l.n_groups, l.max_pages = self.n_ctx, self.n_ids, len(self.groups), -(-self.n_ctx // PAGE)
        l.n_slots = self.n_slots
        for i, (n, g) in enumerate(zip(pages, self.groups)):
            l.n_pages[i], l.page_region[i] = n, self._first_group + i
            l.page_bytes[i], l.n_layers[i] = g.layer_page_bytes, len(g.layers)
        return l

    def thread_bytes(self) -> int:
        """Scratch that each thread gets when the program is opened; of the shapes alone, and so computed once (2 ms)."""
        if self._thread_bytes is None:
            self._thread_bytes = lib.pe_thread_bytes(self._encoded(), len(self.instrs), self._limits(self.n_pages))
        return self._thread_bytes

    def _encoded(self):
        insns = ffi.new("pe_insn[]", len(self.instrs))
        for c, i in zip(insns, self.instrs):
            self._encode(c, i)
        return insns

    def _place(self, v):
        """(region, offset) of an operand."""
        if isinstance(v, Weight):
            return FILES + v.tensor.file, v.offset
        if isinstance(v, Const):
            return CONSTS, v.offset
        if isinstance(v, Pages):
            return self._first_group + v.group, v.index * self.n_pages[v.group] * self.groups[v.group].layer_page_bytes
        if isinstance(v, State):
            return self._first_group + len(self.groups), v.before * self.n_slots
        return (LOGITS, 0) if v is self.output else (HIDDEN, 0) if v is self.hidden else (ARENA, v.offset)

    def _encode(self, c, i):
        op = OPS[i.op]
        c.op, c.count, c.barrier, c.tail, c.per_token = op.code, COUNTS[i.count], i.barrier, i.tail, self.graph.heads if i.count == "heads" else self.graph.n_used
        for slot, name in enumerate(op.operands):
            region, offset = self._place(i.args[name]) if name in i.args else (-1, 0)
            c.a[slot].region, c.a[slot].offset = region, offset
        for slot in range(len(op.operands), 8):
            c.a[slot].region = -1
        for slot, name in enumerate(op.shape):
            c.n[slot] = i.n[name]
        for slot, name in enumerate(op.scalars):
            c.f[slot] = i.f.get(name, 0.0)
        if i.kernels:
            c.few, c.many = i.kernels.few, i.kernels.many
            for slot, row in enumerate(i.kernels.rows):
                c.fn[slot] = row

    # ---- steps --------------------------------------------------------------------------------

    def _new_step_buffers(self):
        self._max_pages = -(-self.n_ctx // PAGE)
        self._tokens = ffi.new("int32_t[]", self.max_tokens)
        self._start = ffi.new("int32_t[]", self.max_seqs)
        self._count = ffi.new("int32_t[]", self.max_seqs)
        self._tables = ffi.new("int32_t[]", max(1, len(self.groups)) * self.max_seqs * self._max_pages)
        self._wanted = ffi.new("int32_t[]", self.max_wanted)
        self._slots = ffi.new("int32_t[]", self.max_seqs)
        self._step, self._bad = ffi.new("pe_step *"), ffi.new("int32_t[2]")
        s = self._step
        s.tokens, s.start, s.count, s.tables, s.wanted = self._tokens, self._start, self._count, self._tables, self._wanted
        s.slots = self._slots

    def run(self, step: Step) -> Logits:
        """Runs one step. FileChangedError, StoppedError (nothing was committed), RequestError (the step
        breaks a bound, named)."""
        if self._prog is None:
            raise ClosedError("the program is closed")
        self.gguf.check_unchanged()
        s, n, n_seqs, n_wanted = self._step, len(step.tokens), len(step.seqs), len(step.wanted)
        for what, have, most in (("tokens", n, self.max_tokens), ("seqs", n_seqs, self.max_seqs), ("wanted", n_wanted, self.max_wanted)):
            if have > most:
                raise RequestError(f"a step has {have} {what}, expected at most {most}", param=what)
        try:
            self._tokens[0:n] = step.tokens
        except OverflowError:
            raise RequestError("a token id does not fit 32 bits", param="tokens") from None
        self._wanted[0:n_wanted] = step.wanted
        assert all(len(c) == 3 for c in step.copies), step.copies
        copies = ffi.new("int32_t[]", [x for c in step.copies for x in c] or [0])
        s.n_tokens, s.n_seqs, s.n_wanted, s.n_copies, s.copies = n, n_seqs, n_wanted, len(step.copies), copies
        s.n_threads, s.n_hidden = step.n_threads, step.n_hidden
        saves, row = [], 0
        for i, seq in enumerate(step.seqs):
            self._start[i], self._count[i], self._slots[i] = seq.start, seq.count, seq.slot
            for at, slot in seq.saves:
                saves += row + at - seq.start - 1, slot
            row += seq.count
            for g, table in enumerate(seq.tables):
                at = (g * n_seqs + i) * self._max_pages
                need = min(-(-(seq.start + seq.count) // PAGE), self._max_pages)
                if len(table) < need:
                    raise RequestError(f"sequence {i} has {len(table)} pages in group {g}, expected at least {need}", param="tables")
                self._tables[at : at + need] = table[:need] if len(table) != need else table
        saves = ffi.new("int32_t[]", saves or [0, 0]) if self.states else ffi.NULL
        s.saves, s.n_saves = saves, sum(len(seq.saves) for seq in step.seqs)
        rc = lib.pe_prog_run(self._prog, self._pool, s, self._bad)
        if rc == lib.PE_ESTOPPED:
            raise StoppedError("the step was stopped; nothing was committed")
        if rc:
            raise RequestError(f"step refused: {STEP_FIELDS[self._bad[0]]}, index {self._bad[1]}", param=STEP_FIELDS[self._bad[0]])
        self.steps += 1
        return Logits(self._logits, self.output.row_bytes if self.output else 0, self.n_vocab, n_wanted - step.n_hidden if self.output else 0,
                      self._hidden, self.hidden.row_bytes, self.hidden.k, n_wanted)

    @contextlib.contextmanager
    def page(self, group: int, page: int):
        """A page's bytes, between steps: a writable view for each layer of its group, or of a slot, where group is len(groups).
        They end with the block: one that an exception's traceback kept would keep the memory from being given back."""
        if self._prog is None:
            raise ClosedError("the program is closed")
        memory = memoryview(self._memory[FILES + group])
        if group == len(self.groups):
            views = [memory[at:at + s.nbytes] for s in self.states for at in [s.before * self.n_slots + page * s.nbytes]]
        else:
            g = self.groups[group]
            n, layer = g.layer_page_bytes, self.n_pages[group] * g.layer_page_bytes
            views = [memory[at:at + n] for at in range(page * n, layer * len(g.layers), layer)]
        try:
            yield views
        finally:
            for view in (*views, memory):
                view.release()

    def blank(self, group: int, layer, n: int) -> None:
        """Makes positions from `n` on zero in a copy of a layer's page: what lies there is what another sequence left. A slot has none."""
        if group == len(self.groups):
            return
        g, kv_type = self.groups[group], KV_TYPES[self.kv_type][0]
        k, v = lib.pe_kv_bytes(kv_type, g.dk), lib.pe_kv_bytes(kv_type, g.dv)
        store = lib.pe_vops_all(ffi.new("int32_t *"))[0].kv_store[kv_type]
        zero = ffi.new("float[]", max(g.dk, g.dv))
        with ffi.from_buffer("uint8_t[]", layer, require_writable=True) as page:
            for head in range(0, g.n_kv * (k + v), k + v):
                for slot in range(n, PAGE):
                    store(page + head, page + head + k, slot, zero, zero, g.dk, g.dv)

    def stop(self, on=True) -> None:
        """A running step ends early with StoppedError; stop(False) lets steps run again."""
        if self._prog is not None:
            lib.pe_prog_stop(self._prog, on)

    def close(self) -> None:
        prog, pool, self._prog, self._pool = self._prog, self._pool, None, None
        if pool is not None:
            lib.pe_pool_free(pool)
        if prog is not None:
            lib.pe_prog_free(prog)
        memory, self._memory = self._memory, []
        for m in memory:
            m.close()

    @property
    def is_open(self) -> bool:
        return self._prog is not None

    @property
    def state_bytes(self) -> int:
        return self.n_slots * self.slot_bytes

    @property
    def const_bytes(self) -> int:
        return len(self._consts)

    # ---- what people read ------------------------------------------------------------------------

    @property
    def phases(self) -> int:
        """Barriers of the last step: few rows take fewer than the instructions suggest (exec.c, make_phases)."""
        return lib.pe_prog_phases(self._prog)

    @property
    def profile(self):
        """[(instruction number, op, label, seconds summed over threads, weight bytes)] so far."""
        if self._profile is None:
            return []
        return [(n, i.op, i.label, self._profile[n] / 1e9, _weight_bytes(i)) for n, i in enumerate(self.instrs)]

    def explain(self):
        """The program, a line each: number, phase, op, operands with type, shape and place, kernel, weight
        bytes. "+": in a step of few rows it is the tail of the phase before (csrc/exec.c, make_phases)."""
        few, many = self.count_phases()
        yield (f"{self.arch}: {len(self.instrs)} instructions in {few} phases for few rows, {many} for many; at most "
               f"{self.max_tokens} tokens, {self.max_wanted} wanted rows, {self.max_seqs} sequences of {self.n_ctx} positions")
        phase = 0
        for n, i in enumerate(self.instrs):
            operands = "  ".join(f"{name}={self._describe(i.args[name])}" for name in OPS[i.op].operands if name in i.args)
            kernel = f"  [{' | '.join(dict.fromkeys(i.kernels.names))}; few from {i.kernels.few}, many from {i.kernels.many}]" if i.kernels else ""
            size = _weight_bytes(i)
            yield f"{n:4d} {phase:4d}{'+' if i.tail else ' '} {i.op:<10} {i.count:<6} {operands}{kernel}" + (f"  {size:,} B" if size else "")
            phase += i.barrier
        for n, g in enumerate(self.groups):
            yield (f"cache group {n}: {len(g.layers)} layers, window {g.window or 'none'}, {g.n_kv} KV heads of {g.dk}/{g.dv} in {g.kv_type}, "
                   f"{g.page_bytes:,} B a page of {PAGE} positions")
        if self.states:
            yield f"state: {len(self.states)} layers, {self.slot_bytes:,} B a slot, {self.n_slots} slots"
        for what, chosen in self.graph.choices.items():
            yield f"{what}: {chosen}, chosen by n_ctx"
        cache = sum(g.page_bytes for g in self.groups) * -(-self.n_ctx // PAGE)
        weights = sum(t.nbytes for t in self.gguf.tensors.values())
        yield f"arena {self.arena_bytes:,} B, logits {self.logits_bytes:,} B, constants {len(self._consts):,} B"
        yield (f"peak memory: {weights:,} B of weights (mapped, shared) + {cache:,} B of cache for a sequence of {self.n_ctx} positions "
               f"+ {self.state_bytes + self.arena_bytes + self.logits_bytes + len(self._consts):,} B; all of it touched only as it is used")

    def count_phases(self):
        """Phases if every tail is small, and if none is."""
        groups, tails = [], []
        for n, i in enumerate(self.instrs):
            if not n or self.instrs[n - 1].barrier:
                groups.append(True)
                tails.append(n > 0)
            tails[-1] &= i.tail
        return len(groups) - sum(tails), len(groups)

    def _describe(self, v):
        if isinstance(v, Weight):
            shape = ([v.width, v.rows] if v.role == "matrix" else [v.width]) + ([v.matrices] if v.matrices > 1 else [])
            part = f"[{v.first}:]" if v.first else ""
            return f"{v.name}{part} {v.tensor.type_name}{shape}"
        if isinstance(v, Const):
            return f"{v.name} const@{v.offset}"
        if isinstance(v, State):
            return f"state@{v.before}"
        if isinstance(v, Pages):
            return f"pages[{v.group}.{v.index}]"
        return f"{v.name} {v.kind}[{v.rows},{v.k}]" + (" logits" if v is self.output else " embeddings" if v is self.hidden else f"@{v.offset}")


def _weight_bytes(instr):
    return sum(v.nbytes for v in instr.args.values() if isinstance(v, Weight) and v.role == "matrix") if instr.kernels else 0


def _address(m):
    return int(ffi.cast("uintptr_t", ffi.from_buffer("char[]", m)))


assert FORMS == ("f32", "q32", "q256")
