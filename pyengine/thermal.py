"""Heat: temperatures, and whether the system or the firmware holds the clocks down for it.

Reads /sys and, on a Raspberry Pi, asks `vcgencmd get_throttled`. Changes nothing and needs no rights; what a system does
not show is left out. `root` as in machine.py. Imported by the command line only. Imports machine.
"""
import glob
import os
import shutil
import subprocess

from . import machine

# Bits of `vcgencmd get_throttled`; the same sixteen bits higher: has happened since the system was started.
FIRMWARE = ((0, "the voltage is too low"), (1, "the clock is capped"), (2, "the clock is throttled"), (3, "the soft temperature limit is reached"))
NEAR = 5.0                   # degrees below a trip point that deserve a word


def report(root="/") -> dict:
    """What `doctor` says; every entry may be empty or None.

    zones      [{"name", "celsius", "limit"}], limit: the lowest passive or hot trip point, where clocks go down
    cooling    [{"name", "state", "most"}] of the devices that lower clocks, those at work
    throttled  how often cores were throttled for heat since the start (x86 counts it)
    clocks     {"now", "most"} in MHz: the fastest of our CPUs now, and what the fastest can do
    capped     MHz that the system's policy allows at most, where that is below what the CPU can
    firmware   {"now": [...], "since start": [...]} of a Raspberry Pi, in words
    """
    return {"zones": zones(root), "cooling": cooling(root), "throttled": throttle_count(root), **clocks(root), "firmware": firmware(root)}


def zones(root="/") -> list:
    out = []
    for folder in _folders(root, "sys/class/thermal/thermal_zone*"):
        celsius = _milli(os.path.join(folder, "temp"))
        if celsius is None or not -50 < celsius < 200:       # a zone that is switched off reads 0 K or an error
            continue
        limits = []
        for path in glob.glob(os.path.join(glob.escape(folder), "trip_point_*_type")):
            if machine.read(path).strip() in ("passive", "hot"):
                limits.append(_milli(path[: -len("type")] + "temp"))
        limits = [x for x in limits if x is not None and 0 < x < 200]
        out.append({"name": machine.read(os.path.join(folder, "type")).strip()[:40] or os.path.basename(folder), "celsius": celsius,
                    "limit": min(limits, default=None)})
    return out


def cooling(root="/") -> list:
    """Cooling devices that slow processors down, where they are at work now."""
    out = []
    for folder in _folders(root, "sys/class/thermal/cooling_device*"):
        name = machine.read(os.path.join(folder, "type")).strip()
        state, most = (machine.number(os.path.join(folder, f"{which}_state")) for which in ("cur", "max"))
        if state and ("cpufreq" in name or name in ("Processor", "intel_powerclamp", "cpuidle")) and state > 0:
            out.append({"name": name[:40], "state": state, "most": most})
    return out


def throttle_count(root="/") -> "int | None":
    counts = [machine.number(os.path.join(folder, "thermal_throttle", f"{of}_throttle_count"))
              for folder in _folders(root, "sys/devices/system/cpu/cpu[0-9]*") for of in ("core", "package")]
    counts = [n for n in counts if n is not None]
    return sum(counts) if counts else None


def clocks(root="/") -> dict:
    now, most, allowed = [], [], []
    for c in machine.allowed_cpus(root):
        base = os.path.join(root, f"sys/devices/system/cpu/cpu{c}/cpufreq")
        for found, name in ((now, "scaling_cur_freq"), (most, "cpuinfo_max_freq"), (allowed, "scaling_max_freq")):
            n = machine.number(os.path.join(base, name))
            if n and n > 0:
                found.append(n // 1000)
    able, held = max(most, default=None), max(allowed, default=None)
    return {"clocks": {"now": max(now), "most": able} if now else None, "capped": held if able and held and held < able else None}


def firmware(root="/") -> "dict | None":
    """A Raspberry Pi's own account, which knows of low voltage and of what happened before."""
    text = machine.read(os.path.join(root, "sys/devices/platform/soc/soc:firmware/get_throttled"))
    if not text and root == "/":
        tool = shutil.which("vcgencmd")
        if tool:
            try:
                text = subprocess.run([tool, "get_throttled"], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL).stdout
            except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
                return None
    try:
        bits = int(text.strip().rpartition("=")[2], 16)
    except ValueError:
        return None
    return {"now": [words for bit, words in FIRMWARE if bits >> bit & 1],
            "since start": [words for bit, words in FIRMWARE if bits >> (16 + bit) & 1]}


def lines(before: dict, after: "dict | None" = None):
    """The report in words, ("heat" or "", text) pairs; `after`: a second one, taken when a model had run."""
    last = after or before
    said = []
    hottest = max(last["zones"], key=lambda z: z["celsius"], default=None)
    if hottest:
        was = next((z["celsius"] for z in before["zones"] if z["name"] == hottest["name"]), None)
        limit = next((z["limit"] for z in (hottest, *last["zones"]) if z["limit"]), None)
        said.append(f"{hottest['celsius']:.0f} C ({hottest['name']}" + (f", {was:.0f} C before the run" if after and was is not None else "")
                    + (f", clocks go down at {limit:.0f} C)" if limit else ")"))
        if limit and hottest["celsius"] >= limit - NEAR:
            said.append("hot: a heat sink or a fan would keep the clocks up")
    if last["capped"]:
        said.append(f"clocks are held to {last['capped']} of {last['clocks']['most'] if last['clocks'] else '?'} MHz")
    for device in last["cooling"]:
        said.append(f"throttled: {device['name']} at step {device['state']}" + (f" of {device['most']}" if device["most"] else ""))
    if last["throttled"]:
        new = last["throttled"] - (before["throttled"] or 0) if after else 0
        said.append(f"cores were throttled for heat {last['throttled']} times since the start" + (f", {new} times during the run" if new > 0 else ""))
    if last["firmware"] is not None:
        for when, found in last["firmware"].items():
            if found:
                said.append(f"firmware, {when}: {', '.join(found)}")
        if not any(last["firmware"].values()):
            said.append("firmware: never throttled")
    for n, text in enumerate(said or ["not shown by this system"]):
        yield "" if n else "heat", text


def _folders(root, pattern: str) -> list:
    """Matching folders, numbers in order."""
    found = glob.glob(os.path.join(glob.escape(str(root)), pattern))
    return sorted(found, key=lambda path: (len(path), path))


def _milli(path) -> "float | None":
    n = machine.number(path)
    return None if n is None else n / 1000
