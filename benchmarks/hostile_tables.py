"""The tables of docs/reliability.md."""

from __future__ import annotations

from typing import Any


def hostile(results: dict[str, Any]) -> list[list[str]]:
    found = results["fuzz"]
    rows = [["format", "cases", "read correctly", "refused in one line", "faults", "longest"]]
    keys = ("cases", "answered", "refused")
    sums = [0, 0, 0, 0]
    for name, r in found["formats"].items():
        numbers = [*(r[key] for key in keys), len(r["faults"])]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        rows.append([name, *(f"{n:,}" for n in numbers), f"{r['longest_seconds']:.1f} s"])
    rows.append(["all", *(f"{n:,}" for n in sums), f"peak memory {found['peak_mb']} MB"])
    return rows


def hostile_kills(results: dict[str, Any]) -> list[list[str]]:
    rows = [["command", "writes", "kills", "different results after the kill"]]
    for name, r in results.get("kills", {}).items():
        rows.append([name, str(r["writes"]), str(r["kills"]), str(len(r["faults"]))])
    kills = sum(r["kills"] for r in results.get("kills", {}).values())
    faults = sum(len(r["faults"]) for r in results.get("kills", {}).values())
    return [*rows, ["all", "", str(kills), str(faults)]]


def hostile_rest(results: dict[str, Any]) -> list[list[str]]:
    rows = [["test", "cases", "wrong", "details"]]
    for r in results.get("threads", []):
        rows.append([f"{r['threads']} threads", f"{r['answers']:,} answers", str(r["wrong"]), ""])
    if "clients" in results:
        c = results["clients"]
        statuses = ", ".join(f"{n:,} × {s}" for s, n in sorted(c["statuses"].items()))
        times = f"median {c['median_seconds']:.2f} s, 99 % {c['p99_seconds']:.2f} s"
        held = f"{c['closed']} of {c['held']} idle or unfinished connections closed"
        who = f"{c['clients']} clients, {c['seconds']:.0f} s, a third of requests bad"
        more = f"{statuses}; {times}; {held}; {c['log_lines']} lines of log"
        rows.append([who, f"{c['requests']:,} requests", str(c["wrong"]), more])
    if "full" in results:
        f = results["full"]
        cases = f"{f['cases']} cases"
        rows.append(["disk full, folder or home read-only", cases, str(len(f["faults"])), ""])
    return rows


MAKERS = (hostile, hostile_kills, hostile_rest)
