"""The tables of docs/defaults.md: our defaults and their peers on every dataset."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median
from typing import Any

from benchmarks.measure import percent
from benchmarks.suite import OURS
from difformer.statistics import Difference, paired_difference, spread
from difformer.systems.registry import get_system

Results = Mapping[str, Any]
KINDS = {"table": "tables", "graph": "graphs"}
BEHIND = 2.0  # points
EMPTY = "—"


def suite_tables(results: Results) -> list[list[str]]:
    return _scores(results, "table")


def suite_graphs(results: Results) -> list[list[str]]:
    return _scores(results, "graph")


def suite_shown(results: Results) -> list[list[str]]:
    """A summary of our defaults, one row per question."""
    kinds = [kind for kind in KINDS if _sets(results, kind)]
    rows = [["`DIFFormerClassifier()`", *(KINDS[kind] for kind in kinds)]]
    questions = {
        "mean rank; best peer": _ranked,
        "mean difference to the peer with the best mean, points": _against_best,
        "datasets on which the best peer is more than two points ahead": _far_behind,
        "mean log loss; lowest peer": _lowest_log_loss,
        "datasets on which the log loss is at most that of the best peer": _log_loss_won,
        "mean expected calibration error": _calibration,
    }
    for question, answer in questions.items():
        rows.append([question, *(answer(results, kind) for kind in kinds)])
    return rows


def suite_paired(results: Results) -> list[list[str]]:
    """Ours minus each peer, in points: the mean, and intervals over datasets and over splits."""
    kinds = [kind for kind in KINDS if _sets(results, kind)]
    heads = [
        head
        for kind in kinds
        for head in (
            f"{KINDS[kind]}: difference [interval over datasets]",
            "[interval over splits]",
            "datasets ahead",
        )
    ]
    rows = [["compared with", *heads]]
    for name in _systems(results):
        if name != OURS:
            cells = [cell for kind in kinds for cell in _paired_cells(results, kind, name)]
            rows.append([_title(name), *cells])
    return rows


def suite_behind(results: Results) -> list[list[str]]:
    """The datasets on which the best peer, chosen by its test figures, is far ahead."""
    header = ["dataset", "difformer", "best peer", "its figure"]
    rows = [[*header, "difference [interval over splits]"]]
    for name in _sets(results):
        best, gap = _best_on(results, name)
        if best is None or gap is None or 100 * gap.mean >= -BEHIND:
            continue
        figures = [percent(_mean(results, name, system)) for system in (OURS, best)]
        rows.append([name, figures[0], _title(best), figures[1], gap.shown(100)])
    return rows if len(rows) > 1 else [*rows, ["none", EMPTY, EMPTY, EMPTY, EMPTY]]


def suite_costs(results: Results) -> list[list[str]]:
    """Means over datasets of log loss and calibration error, and median seconds."""
    kinds = [kind for kind in KINDS if _sets(results, kind)]
    heads = [
        f"{KINDS[kind]}: {what}"
        for kind in kinds
        for what in ("log loss", "calibration error", "median seconds")
    ]
    rows = [["", *heads]]
    for system in _systems(results):
        cells: list[str] = []
        for kind in kinds:
            names = [name for name in _sets(results, kind) if _values(results, name, system)]
            if not names:
                cells += [EMPTY] * 3
                continue
            for metric in ("log_loss", "ece"):
                cells.append(f"{mean(_mean(results, n, system, metric) for n in names):.3f}")
            seconds = [s for n in names for s in _values(results, n, system, "seconds").values()]
            cells.append(f"{median(seconds):.2f}")
        rows.append([_title(system), *cells])
    return rows


# --- figures -----------------------------------------------------------------------------------


def ranks(results: Results, kind: str) -> dict[str, float]:
    """The mean rank of each system over the sets of a kind, 1 the best; ties share theirs.

    Only systems that were measured on all of these sets are ranked.
    """
    from scipy.stats import rankdata

    names = _sets(results, kind)
    whole = [s for s in _systems(results) if all(_values(results, name, s) for name in names)]
    if not names or not whole:
        return {}
    # Figures are kept with five digits: less than a hundredth of a point is a tie.
    each = [rankdata([-round(_mean(results, n, s), 4) for s in whole]) for n in names]
    return {system: float(mean(r[i] for r in each)) for i, system in enumerate(whole)}


def over_sets(results: Results, kind: str, peer: str) -> Difference | None:
    """Ours minus a peer: each set's mean over its splits is one pair."""
    gaps = [gap.mean for gap in _gaps(results, kind, peer)]
    return paired_difference(gaps, [0.0] * len(gaps)) if gaps else None


def over_splits(results: Results, kind: str, peer: str) -> Difference | None:
    """Ours minus a peer: each split's mean over the sets is one pair."""
    names = [name for name in _sets(results, kind) if _both(results, name, peer)]
    if not names:
        return None
    common = set[str].intersection(*(set(_both(results, name, peer)) for name in names))
    pairs = [
        [mean(_values(results, name, s)[split] for name in names) for split in sorted(common)]
        for s in (OURS, peer)
    ]
    return paired_difference(*pairs) if common else None


def _gaps(results: Results, kind: str, peer: str) -> list[Difference]:
    found = [_gap(results, name, peer) for name in _sets(results, kind)]
    return [gap for gap in found if gap is not None]


def _gap(results: Results, name: str, peer: str) -> Difference | None:
    """Ours minus a peer on one set, over the splits that both have."""
    both = _both(results, name, peer)
    if not both:
        return None
    ours, theirs = _values(results, name, OURS), _values(results, name, peer)
    return paired_difference([ours[s] for s in both], [theirs[s] for s in both])


def _both(results: Results, name: str, peer: str) -> list[str]:
    theirs = _values(results, name, peer)
    return [split for split in _values(results, name, OURS) if split in theirs]


def _best_on(results: Results, name: str) -> tuple[str | None, Difference | None]:
    """The best peer of one set by its test figures."""
    peers = [s for s in _systems(results) if s != OURS and _values(results, name, s)]
    if not peers or not _values(results, name, OURS):
        return None, None
    best = max(peers, key=lambda system: _mean(results, name, system))
    return best, _gap(results, name, best)


def _values(
    results: Results, name: str, system: str, metric: str | None = None
) -> dict[str, float]:
    """One figure of a system on a set, by split: that of the set's own metric by default."""
    found = results[name]
    key = found["metric"] if metric is None else metric
    records = found["systems"].get(system, {})
    return {split: record[key] for split, record in records.items() if key in record}


def _mean(results: Results, name: str, system: str, metric: str | None = None) -> float:
    return mean(_values(results, name, system, metric).values())


def _sets(results: Results, kind: str | None = None) -> list[str]:
    return [name for name, found in results.items() if kind in (None, found["kind"])]


def _systems(results: Results) -> list[str]:
    """Every system that was measured somewhere, ours first."""
    named = [system for found in results.values() for system in found["systems"]]
    return list(dict.fromkeys([OURS, *named]))


# --- cells -------------------------------------------------------------------------------------


def _scores(results: Results, kind: str) -> list[list[str]]:
    """Mean ± deviation over the splits of each dataset, in percent, and the mean rank.

    There is one row per system, or one per dataset if there are more datasets than systems.
    """
    names = _sets(results, kind)
    heads = [n if results[n]["metric"] == "accuracy" else f"{n} (ROC AUC)" for n in names]
    place = ranks(results, kind)
    rows = [["", *heads, "mean rank"]]
    for system in _systems(results):
        cells = [_score(results, name, system) for name in names]
        if any(cell != EMPTY for cell in cells):
            rank = f"{place[system]:.1f}" if system in place else EMPTY
            rows.append([_title(system), *cells, rank])
    wide = len(rows[0]) > len(rows) + 1
    return [list(column) for column in zip(*rows, strict=True)] if wide else rows


def _score(results: Results, name: str, system: str) -> str:
    values = list(_values(results, name, system).values())
    if not values:
        return EMPTY
    return percent(*spread(values))


def _title(system: str) -> str:
    return "`DIFFormerClassifier()`" if system == OURS else get_system(system).title


def _paired_cells(results: Results, kind: str, peer: str) -> list[str]:
    sets, splits = over_sets(results, kind, peer), over_splits(results, kind, peer)
    if sets is None or splits is None:
        return [EMPTY] * 3
    gaps = _gaps(results, kind, peer)
    interval = splits.shown(100).partition(" ")[2] or EMPTY
    return [sets.shown(100), interval, f"{sum(gap.mean > 0 for gap in gaps)} of {len(gaps)}"]


def _ranked(results: Results, kind: str) -> str:
    place = ranks(results, kind)
    peers = {system: rank for system, rank in place.items() if system != OURS}
    if OURS not in place or not peers:
        return EMPTY
    best = min(peers, key=lambda system: peers[system])
    ahead = sum(rank < place[OURS] for rank in peers.values())
    return f"{place[OURS]:.1f}, place {ahead + 1} of {len(place)}; {_title(best)} {peers[best]:.1f}"


def _against_best(results: Results, kind: str) -> str:
    """The difference to the peer with the best mean over datasets."""
    whole = [system for system in ranks(results, kind) if system != OURS]
    found = {peer: over_sets(results, kind, peer) for peer in whole}
    known = {peer: gap for peer, gap in found.items() if gap is not None}
    if not known:
        return EMPTY
    best = min(known, key=lambda peer: known[peer].mean)
    return f"{known[best].shown(100)} compared with {_title(best)}"


def _far_behind(results: Results, kind: str) -> str:
    gaps = [_best_on(results, name)[1] for name in _sets(results, kind)]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return EMPTY
    worst = min(100 * gap.mean for gap in known)
    far = sum(100 * gap.mean < -BEHIND for gap in known)
    return f"{far} of {len(known)}; lowest difference {worst:+.1f}"


def _peers_log_loss(results: Results, name: str) -> list[float]:
    peers = [s for s in _systems(results) if s != OURS and _values(results, name, s, "log_loss")]
    return [_mean(results, name, system, "log_loss") for system in peers]


def _lowest_log_loss(results: Results, kind: str) -> str:
    names = _sets(results, kind)
    means = {s: mean(_mean(results, n, s, "log_loss") for n in names) for s in ranks(results, kind)}
    peers = {system: loss for system, loss in means.items() if system != OURS}
    if OURS not in means or not peers:
        return EMPTY
    best = min(peers, key=lambda system: peers[system])
    return f"{means[OURS]:.3f}; {_title(best)} {peers[best]:.3f}"


def _log_loss_won(results: Results, kind: str) -> str:
    names = [name for name in _sets(results, kind) if _values(results, name, OURS)]
    pairs = [(_mean(results, n, OURS, "log_loss"), _peers_log_loss(results, n)) for n in names]
    judged = [(ours, theirs) for ours, theirs in pairs if theirs]
    return f"{sum(ours <= min(theirs) for ours, theirs in judged)} of {len(judged)}"


def _calibration(results: Results, kind: str) -> str:
    names = [name for name in _sets(results, kind) if _values(results, name, OURS)]
    return f"{mean(_mean(results, n, OURS, 'ece') for n in names):.3f}" if names else EMPTY


MAKERS = (suite_shown, suite_tables, suite_graphs, suite_paired, suite_behind, suite_costs)
