"""Heat, from made-up /sys trees and a made-up vcgencmd."""
import os

import pytest

from pyengine import thermal
from test_machine import Tree


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def zone(tree, n, kind, temp, *trips):
    base = f"/sys/class/thermal/thermal_zone{n}"
    tree.write(f"{base}/type", kind).write(f"{base}/temp", str(temp))
    for i, (what, at) in enumerate(trips):
        tree.write(f"{base}/trip_point_{i}_type", what).write(f"{base}/trip_point_{i}_temp", str(at))
    return tree


def said(tree, after=None):
    return [text for _, text in thermal.lines(thermal.report(tree.root), after)]


def test_a_system_that_shows_nothing(tree):
    tree.cpus(2)
    assert thermal.report(tree.root) == {"zones": [], "cooling": [], "throttled": None, "clocks": None, "capped": None, "firmware": None}
    assert said(tree) == ["not shown by this system"]


def test_zones_and_their_limits(tree):
    zone(tree, 0, "cpu-thermal", 61500, ("critical", 110000), ("passive", 80000), ("passive", 85000))
    zone(tree, 10, "gpu", 40000)
    zone(tree, 2, "off", -273000).write("/sys/class/thermal/thermal_zone3/type", "no reading")
    assert thermal.zones(tree.root) == [{"name": "cpu-thermal", "celsius": 61.5, "limit": 80.0}, {"name": "gpu", "celsius": 40.0, "limit": None}]
    assert said(tree) == ["62 C (cpu-thermal, clocks go down at 80 C)"]


def test_a_hot_one_is_noticed(tree):
    zone(tree, 0, "cpu-thermal", 79000, ("passive", 80000))
    assert "hot" in said(tree)[1]
    cool = thermal.report(zone(tree, 0, "cpu-thermal", 45000).root)
    hot = thermal.report(zone(tree, 0, "cpu-thermal", 81000).root)
    text = [t for _, t in thermal.lines(cool, hot)]
    assert text[0] == "81 C (cpu-thermal, 45 C before the run, clocks go down at 80 C)" and "hot" in text[1]


def test_throttling_by_clock_device_and_counter(tree):
    tree.cpus(2)
    for c in range(2):
        base = f"/sys/devices/system/cpu/cpu{c}"
        tree.write(f"{base}/cpufreq/cpuinfo_max_freq", "2400000").write(f"{base}/cpufreq/scaling_max_freq", "1500000")
        tree.write(f"{base}/cpufreq/scaling_cur_freq", "1400000").write(f"{base}/thermal_throttle/core_throttle_count", "3")
    tree.write("/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "4")
    for n, (kind, state) in enumerate((("cpufreq-cpu0", 2), ("pwm-fan", 4), ("thermal-cpufreq-1", 0))):
        base = f"/sys/class/thermal/cooling_device{n}"
        tree.write(f"{base}/type", kind).write(f"{base}/cur_state", str(state)).write(f"{base}/max_state", "5")
    report = thermal.report(tree.root)
    assert report["cooling"] == [{"name": "cpufreq-cpu0", "state": 2, "most": 5}] and report["throttled"] == 10
    assert report["clocks"] == {"now": 1400, "most": 2400} and report["capped"] == 1500
    assert said(tree) == ["clocks are held to 1500 of 2400 MHz", "throttled: cpufreq-cpu0 at step 2 of 5",
                          "cores were throttled for heat 10 times since the start"]
    tree.write("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "8")
    assert said(tree, thermal.report(tree.root))[-1].endswith("15 times since the start")
    assert [t for _, t in thermal.lines(report, thermal.report(tree.root))][-1].endswith("15 times since the start, 5 times during the run")


@pytest.mark.parametrize("text, now, before", [
    ("throttled=0x0", [], []),
    ("throttled=0x50005", ["the voltage is too low", "the clock is throttled"], ["the voltage is too low", "the clock is throttled"]),
    ("e0008", ["the soft temperature limit is reached"], ["the clock is capped", "the clock is throttled", "the soft temperature limit is reached"]),
])
def test_raspberry_pi_firmware(tree, text, now, before):
    tree.write("/sys/devices/platform/soc/soc:firmware/get_throttled", text)
    assert thermal.firmware(tree.root) == {"now": now, "since start": before}
    words = said(tree)
    assert (words == ["firmware: never throttled"]) == (not now and not before)
    assert sum(w.startswith("firmware, ") for w in words) == bool(now) + bool(before)


@pytest.mark.parametrize("script, expected", [
    ("echo throttled=0x20000", {"now": [], "since start": ["the clock is capped"]}),
    ("echo 'VCHI initialization failed' >&2; exit 255", None),
    ("echo error=1 error_msg=x", None),
])
@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for the tool")
def test_vcgencmd(tmp_path, monkeypatch, script, expected):
    tool = tmp_path / "vcgencmd"
    tool.write_text(f'#!/bin/sh\n[ "$1" = get_throttled ] || exit 1\n{script}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert thermal.firmware("/") == expected


def test_this_machine():
    assert list(thermal.lines(thermal.report(), thermal.report()))
