"""difformer compare and difformer tune, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from difformer.app.cli import main
from difformer.compare.comparison import comparison_block
from difformer.machine import commit


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_compare_prints_a_table_and_a_verdict_and_keeps_both(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["compare", "digits", "--models", "mlp,gcn,lp-knn,difformer-s", "--splits", "2"]
    words += ["--epochs", "3", "--workers", "0", "--out", str(tmp_path / "kept")]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "GCN" in out
    assert "needs a graph, the data has none" in out
    assert "Does all-pair diffusion help on this data?" in out
    kept = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert kept["commit"] == commit()
    assert kept["command"].startswith("difformer")
    assert {row["system"]: len(row["runs"]) for row in kept["rows"]} == {
        "mlp": 2,
        "gcn": 0,
        "lp-knn": 2,
        "difformer-s": 2,
    }
    block = comparison_block(tmp_path / "kept" / "comparison.json")
    assert block.startswith("| Model | Test | Paired difference to the best |")
    assert all(line in block for line in kept["verdict"])
    code, out, _ = call(capsys, *words, "--json")  # reads what is there
    again = json.loads(out)
    assert (code, again["rows"]) == (0, kept["rows"])


def test_tune_names_the_best_setting_by_validation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    words = ["tune", "digits", "--model", "mlp", "--trials", "2", "--epochs", "3"]
    words += ["--storage", str(tmp_path / "t.sqlite")]
    code, out, err = call(capsys, *words)
    assert code == 0
    assert "best:" in out
    assert "trial 2 of 2" in err
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["trials"]) == 2
    assert "test" not in out


@pytest.mark.parametrize(
    ("name", "option", "where"), [("compare", "--out", "kept"), ("tune", "--storage", "s.sqlite")]
)
def test_ctrl_c_says_whether_the_same_command_goes_on(
    name: str,
    option: str,
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"difformer.app.commands.{name}.{name}", interrupt)
    words = [name, "digits", "--model" if name == "tune" else "--models", "mlp"]
    nothing = f"interrupted: nothing is kept without {option}\n"
    assert call(capsys, *words) == (130, "", nothing)
    goes_on = "interrupted: the same command resumes it\n"
    assert call(capsys, *words, option, str(tmp_path / where)) == (130, "", goes_on)
