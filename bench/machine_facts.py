"""What bench/compare.py records about the machine and the build, and how busy others kept it. Linux first; elsewhere less."""

import datetime
import os
import platform
import re
import subprocess
import sysconfig
import time


def _cpuinfo():
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu():
    info = _cpuinfo()
    name = info.get("model name") or info.get("Model") or platform.processor() or platform.machine()
    where = [info[key] for key in ("cpu family", "model") if key in info]
    return f"{name} (family {where[0]}, model {where[1]})" if len(where) == 2 else name


def slug():
    return re.sub(r"[^a-z0-9]+", "-", cpu().lower().replace("(r)", "").replace("(tm)", "").replace("family ", "")).strip("-")


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def facts(root):
    dirty = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiler": (_output(compiler, "--version").splitlines() or [""])[0],
        "commit": (_output("git", "-C", str(root), "rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if dirty else ""),
    }


class Busy:
    """Cores that neither we nor idling used since it was made, on average."""

    def __init__(self, pids):
        self.start, self.machine, self.ended = time.monotonic(), self._machine(), self._ended()
        self.before = {pid: self._process(pid) for pid in pids}

    def others(self, pids):
        """`pids`: processes of ours that live now; the system counts the time of children that have ended."""
        own = self._ended() - self.ended + sum(self._process(pid) - self.before.get(pid, 0.0) for pid in pids)
        return max(0.0, (self._machine() - self.machine - own) / max(time.monotonic() - self.start, 1e-3))

    def _ended(self):
        t = os.times()
        return t.user + t.system + t.children_user + t.children_system

    def _machine(self):
        """Seconds of work of all cores since the system's start, and what other guests took from them."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
        except OSError:
            return 0.0
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    def _process(self, pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
