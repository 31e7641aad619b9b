"""What a server is told once: addresses, limits, timeouts. A frozen value, checked when it is made.

Not the model's settings (llama.py) and not command line options (cli/serve.py). Imported by serve only.
"""
import dataclasses
import math
import re

from ..errors import RequestError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# As they stand in headers; what never could would be an option without effect.
NAMES = {"allowed_hosts": (r"\*|[a-z0-9._-]+|\[?[0-9a-f:]*:[0-9a-f:.]*:[0-9a-f:.]*\]?", "names without port, as llm.example, or *"),
         "cors_origins": (r"\*|null|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?", "origins as https://app.example, or *")}


@dataclasses.dataclass(frozen=True)
class Settings:
    """model                name that /v1/models gives; None: the file's name without .gguf
    host                 the address that is bound: what decides whether Host headers are held to loopback names
    keys                 guard.Keys, or None: nobody is asked for a key
    allowed_hosts        names that a Host header may have beside loopback ones; ("*",): any; None: no others where host is
                         loopback, and any where it is not (there a key is demanded, and a page of another site has none)
    cors_origins         origins that browsers may call from; ("*",): any; (): no CORS headers, foreign origins are refused
    share_prefixes       let keys share cached prompts; by default a key's cached prompts answer that key only, because
                         how soon an answer comes tells what somebody else has asked
    max_body             bytes of a request's body
    body_seconds         a body must have arrived within
    max_queue            requests beyond those that run; more get 429
    max_streams          requests that run at one time, for the queue limit; None: the model's max_seqs
    keepalive_seconds    an event stream that has nothing to say sends a comment; 0: never
    write_seconds        a client that takes nothing for so long is cut and its request ended
    stream_buffer        bytes of events that wait for a client; more, and it is cut
    drain_seconds        after SIGTERM what runs may take so long to finish
    stall_seconds        /health is 503 when work waits and no step has ended for so long; 0: never
    log_prompts          write request bodies into the log
    """
    model: "str | None" = None
    host: str = "127.0.0.1"
    keys: object = None
    allowed_hosts: "tuple | None" = None
    cors_origins: tuple = ()
    share_prefixes: bool = False
    max_body: int = 8 << 20
    body_seconds: float = 30.0
    max_queue: int = 256
    max_streams: "int | None" = None
    keepalive_seconds: float = 15.0
    write_seconds: float = 30.0
    stream_buffer: int = 512 << 10
    drain_seconds: float = 30.0
    stall_seconds: float = 300.0
    log_prompts: bool = False

    def __post_init__(self):
        for name in ("max_body", "stream_buffer"):
            _number(name, getattr(self, name), int, 1)
        _number("max_queue", self.max_queue, int, 0)
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise RequestError(f"model: found {self.model!r}, expected a name", param="model")
        if self.max_streams is not None:
            _number("max_streams", self.max_streams, int, 1)
        for name in ("body_seconds", "write_seconds"):
            _number(name, getattr(self, name), (int, float), 0.001)
        for name in ("keepalive_seconds", "drain_seconds", "stall_seconds"):
            _number(name, getattr(self, name), (int, float), 0)
        for name in ("allowed_hosts", "cors_origins"):
            value = getattr(self, name)
            if value is None and name == "allowed_hosts":
                continue
            pattern, expected = NAMES[name]
            if isinstance(value, str) or not all(isinstance(v, str) for v in value):
                raise RequestError(f"{name}: found {value!r}, expected a tuple of {expected}", param=name)
            value = tuple(v.lower().rstrip("/" if name == "cors_origins" else ".") for v in value)
            if name == "cors_origins":       # browsers leave out the port that is the scheme's
                value = tuple(re.sub(r"(?<=^https)(://.+):443$|(?<=^http)(://.+):80$", r"\1\2", v) for v in value)
            for v in value:
                if not re.fullmatch(pattern, v):
                    raise RequestError(f"{name}: found {v!r}, expected {expected}", param=name)
            object.__setattr__(self, name, tuple(v.strip("[]") for v in value) if name == "allowed_hosts" else value)

    @property
    def hosts(self) -> "tuple | None":
        """Names that a Host header may have; None: any."""
        if self.allowed_hosts is not None:
            return None if "*" in self.allowed_hosts else self.allowed_hosts
        return LOOPBACK if loopback(self.host) else None


def loopback(host: str) -> bool:
    """Whether an address that is bound is reached from this machine only."""
    import ipaddress

    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _number(name, value, kind, least):
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or value < least:
        raise RequestError(f"{name}: found {value!r}, expected a number of at least {least}", param=name)
