"""Results of bench/compare.py: the JSON file, what follows from it, the Markdown table and the chart. Measures nothing."""

import json
import pathlib
import statistics

import cells


def read(path):
    if not path.exists():
        return {"runs": [], "cells": []}
    return json.loads(path.read_text())


def save(result, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)


def _key(entry):
    return entry["model"], entry["cell"], entry["group"]


def add(result, entry):
    result["cells"] = [other for other in result["cells"] if _key(other) != _key(entry)] + [entry]
    order = {(model, cell.name, cell.group): i for i, (model, cell) in enumerate(cells.chosen((), ()))}
    result["cells"].sort(key=lambda e: order.get(_key(e), len(order)))


def has(result, model, cell):
    """Whether both sides of this cell have been measured."""
    wanted = (model, cell.name, cell.group)
    return any(_key(e) == wanted and len(e["sides"]) > 1 for e in result["cells"])


# --- what follows from the samples ---------------------------------------------------------------------


def medians(entry):
    """{side: (median, setting)}, the best setting of each side."""
    pick = max if entry["unit"] == "tokens/s" else min
    return {side: pick((statistics.median(values), setting) for setting, values in samples.items()) for side, samples in entry["sides"].items()}


def ratio(entry):
    """(ratio, name of the best peer): above 1 where we are better; None where a side is missing."""
    best = medians(entry)
    ours = best.pop("pyengine", None)
    if ours is None or not best:
        return None
    more = entry["unit"] == "tokens/s"
    peer = (max if more else min)(best, key=lambda side: best[side][0])
    theirs = best[peer]
    name = peer if theirs[1] == "default" else f"{peer} {theirs[1]}"
    return (ours[0] / theirs[0] if more else theirs[0] / ours[0]), name


def read_share(entry):
    """Weight bytes a second over a linear read; the median of the rounds' own shares."""
    if not entry.get("read") or "pyengine" not in entry["sides"]:
        return None
    (rates,) = entry["sides"]["pyengine"].values()
    return statistics.median(rate * entry["weight_bytes"] / 1e9 / gbs for rate, gbs in zip(rates, entry["read"]))


def goals(result):
    """[(number, what, reached or None, at least)]"""
    at = {_key(e): e for e in result["cells"]}
    out = []
    for number, models, name, group, least in cells.GOALS:
        for model in models:
            value = None
            if group == "read":
                entry = at.get((model, name, "native"))
                value = entry and read_share(entry)
            elif group == "batch1":
                rates = [medians(e).get("pyengine") for e in (at.get((model, n, "native")) for n in (name, group)) if e]
                if len(rates) == 2 and all(rates):
                    value = rates[0][0] / rates[1][0]
            else:
                entry = at.get((model, name, group))
                found = entry and ratio(entry)
                value = found and found[0]
            beside = {"read": "of a linear read", "batch1": "over 1 sequence"}.get(group, f"beside {group}")
            out.append((number, f"{model}, {cells.TITLES[name]}, {beside}", value, least))
    return out


# --- what people read ---------------------------------------------------------------------------------------


def figure(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def line(entry):
    """A cell on one line, as it is measured."""
    best, found, share = medians(entry), ratio(entry), read_share(entry)
    text = f"{entry['model']} {entry['cell']} {entry['group']}: "
    text += ", ".join(f"{side} {figure(value)}{'' if setting in ('plain', 'default') and side == 'pyengine' else ' ' + setting}"
                      for side, (value, setting) in best.items())  # fmt: skip
    text += f" {entry['unit']}" + (f": {found[0]:.2f}x" if found else "") + (f", {share:.2f} of read" if share else "")
    text += f" ({entry['seconds']:.0f} s" + (f", busy {entry['busy']:.1f})" if entry["busy"] > 0.2 else ")")
    return text + "".join(f"\n  {side}: {error}" for side, error in entry["errors"].items())


def text(result):
    """The goals and how far they are met."""
    rows = [f"  {number}  {value:5.2f} of {least:.2f}  {'  ' if value >= least else '--'}  {what}" for number, what, value, least in goals(result) if value]
    return "\n".join(["goals ('--': missed)", *rows])


def markdown(result):
    out = ["# pyengine beside llama.cpp", ""]
    for group, title in cells.GROUPS.items():
        entries = [e for e in result["cells"] if e["group"] == group]
        if not entries:
            continue
        peers = list(dict.fromkeys(side for e in entries for side in e["sides"] if side != "pyengine"))
        extra = ["of read"] if group == "native" else []
        out += [f"## {title}", "", "| " + " | ".join(["model", "figure", "pyengine", *peers, "ratio", *extra, "busy"]) + " |",
                "|---|---" + "|---:" * (len(peers) + len(extra) + 3) + "|"]  # fmt: skip
        for e in entries:
            best, found, share = medians(e), ratio(e), read_share(e)
            row = [e["model"], cells.TITLES[e["cell"]], f"{figure(best['pyengine'][0])} {e['unit']}" if "pyengine" in best else "failed"]
            for peer in peers:
                value = best.get(peer)
                row.append(f"{figure(value[0])}{'' if value[1] == 'default' else ' ' + value[1]}" if value else "failed")
            row.append(f"**{found[0]:.2f}**" if found else "")
            row += [f"{share:.2f}" if share else ""] if extra else []
            out.append("| " + " | ".join([*row, f"{e['busy']:.1f}"]) + " |")
        out.append("")
    used = sorted({e["run"] for e in result["cells"]})
    for run in (result["runs"][i] for i in used):
        sides = "; ".join(f"{side} {facts.get('version', '')} [{_system(facts)}]" for side, facts in sorted(run["sides"].items()))
        out.append(f"{run['date']}: {run['cpu']}, {run['cores']} cores, {run['system']}, Python {run['python']}, {run['compiler']}; "
                   f"pyengine at {run['commit']}; load at the start {run['load']:.1f}. {sides}.")  # fmt: skip
        out.append("")
    out.append("Medians, interleaved; ratios above 1 where pyengine is better, beside the best of the peers' settings. bench/compare.py says how.")
    return "\n".join(out) + "\n"


def _system(facts):
    if "isa" in facts:
        return ", ".join(facts["isa"])
    words = [w.split("=")[0].strip() for w in facts.get("system", "").replace("CPU :", "").split("|") if w.strip().endswith("= 1")]
    return ", ".join(words)


COLOURS = {"native": "#2f6fab", "avx2": "#7a9a3b", "default": "#b5713a"}


def chart(result, path):
    """Bars of ratios with a line at 1x, grouped by peer; the goal of a cell is a tick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = []  # (label, ratio, group, goal) or (title, None, group, None)
    for group, title in cells.GROUPS.items():
        rows = [(e, ratio(e)) for e in result["cells"] if e["group"] == group]
        rows = [(e, found) for e, found in rows if found]
        if rows:
            bars.append((title, None, group, None))
        for e, found in rows:
            goal = cells.goals(e["model"], e["cell"]).get(group)
            bars.append((f"{e['model']}  {cells.TITLES[e['cell']]}", found[0], group, goal and goal[1]))
    if not bars:
        return
    fig, ax = plt.subplots(figsize=(9, 0.24 * len(bars) + 1.2))
    widest = max(value for _, value, _, _ in bars if value)
    for i, (label, value, group, goal) in enumerate(bars):
        y = -i
        if value is None:
            ax.text(0, y, label, va="center", ha="left", weight="bold", fontsize=8.5)
            continue
        ax.barh(y, value, height=0.72, color=COLOURS[group])
        ax.text(value + widest * 0.008, y, f"{value:.2f}", va="center", fontsize=7.5)
        ax.text(-widest * 0.01, y, label, va="center", ha="right", fontsize=7.5)
        if goal:
            ax.plot([goal, goal], [y - 0.42, y + 0.42], color="black", linewidth=1.3)
    ax.axvline(1, color="#b03030", linewidth=1)
    ax.set_xlim(0, widest * 1.08)
    ax.set_ylim(-len(bars) + 0.4, 0.8)
    ax.set_yticks([])
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.set_xlabel("times the best peer (more is better for pyengine; red: equal, black: the goal)", fontsize=8)
    run = result["runs"][-1]
    ax.set_title(f"pyengine beside llama.cpp: {run['cpu']}, {run['date'][:10]}, commit {run['commit']}", fontsize=9, loc="left")
    fig.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(fig)


def write(result, path):
    """Everything: JSON, .md, and .png where matplotlib is installed."""
    import importlib.util

    path = pathlib.Path(path)
    used = sorted({e["run"] for e in result["cells"]})
    result["runs"] = [result["runs"][i] for i in used]  # runs whose cells have all been replaced say nothing
    for e in result["cells"]:
        e["run"] = used.index(e["run"])
    save(result, path)
    path.with_suffix(".md").write_text(markdown(result))
    if importlib.util.find_spec("matplotlib"):
        chart(result, path.with_suffix(".png"))
    else:
        print("no chart: pip install 'pyengine-gguf[bench]' brings matplotlib")
