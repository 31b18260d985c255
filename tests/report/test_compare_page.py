"""The page of a comparison, from the record that `difformer compare` leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from difformer.compare.comparison import Comparison, Row
from difformer.errors import RunError
from difformer.report.run_page import write_report


def record(**changes: Any) -> dict[str, Any]:
    runs = {
        name: {s: {"val": v, "test": v, "seconds": 1.0} for s, v in zip("ab", values, strict=True)}
        for name, values in {"mlp": (0.5, 0.6), "gcn": (0.7, 0.9)}.items()
    }
    rows = [Row(name, runs[name], memory=2**20) for name in runs]
    rows.append(Row("lp", cannot="needs <b>a graph</b>"))
    found = Comparison("blobs", "accuracy", ("a", "b"), 0, tuple(rows), True)
    return {**found.to_json(), "command": "difformer compare blobs", **changes}


def test_a_comparison_has_its_page(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps(record()))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Comparison on blobs" in text
    for words in ("GCN", "80.0 ± 14.1", "best", "-25.0 [", "LP: needs &lt;b&gt;a graph"):
        assert words in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "compare blobs" in text
    assert "before 2a0c100" in text
    (tmp_path / "comparison.json").write_text(json.dumps(record(commit="5" * 12)))
    assert "5" * 12 in write_report(tmp_path).read_text(encoding="utf-8")


def test_a_comparison_in_which_nothing_ran_has_a_page(tmp_path: Path) -> None:
    rows = [row for row in record()["rows"] if row["cannot"]]
    (tmp_path / "comparison.json").write_text(json.dumps(record(rows=rows)))
    assert "needs &lt;b&gt;" in write_report(tmp_path).read_text(encoding="utf-8")


def test_a_damaged_comparison_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(RunError, match="cannot be read"):
        write_report(tmp_path)
