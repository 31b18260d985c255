"""Record what difformer answers: `python tests/golden/record.py [--only NAME ...] [--out FOLDER]`.

A case is a function that returns a JSON document of numbers and texts; it runs in an empty folder,
on one thread. `--only` takes names or beginnings of names. `--archive` freezes run folders of
today's code anew in `runs/`; they are otherwise left as they are. `--list` names the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"


def cases() -> dict[str, Any]:
    """All cases by name."""
    import archive
    import commands
    import errors
    import fits
    import training

    modules = (fits, training, commands, errors, archive)
    return {name: case for module in modules for name, case in module.CASES.items()}


def run(case: Any) -> Any:
    """The answer of a case, in a new empty folder that is gone afterwards."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return case()
        finally:
            os.chdir(before)


def prepare() -> None:
    """One thread, one width of lines, no folder of data, and the source beside these tests."""
    from doors import DATA, STEADY

    os.environ.update(STEADY)
    os.environ["PYTHONPATH"] = str(SOURCE)
    os.environ.pop(DATA, None)
    sys.path.insert(0, str(SOURCE))
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Run the chosen cases and write one JSON file for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE / "answers")
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    prepare()
    if asked.list:
        return print("\n".join(cases()))
    if asked.archive:
        import archive

        return archive.freeze(HERE / "runs")
    asked.out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name, case in cases().items():
        if name.startswith(tuple(asked.only)):
            start = time.perf_counter()
            try:
                text = json.dumps(run(case), indent=1, ensure_ascii=False)
            except Exception:  # the other cases are still worth having
                traceback.print_exc()
                failed.append(name)
                continue
            (asked.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{time.perf_counter() - start:6.2f} s  {name}", flush=True)
    if failed:
        sys.exit(f"no answer from {', '.join(failed)}")


if __name__ == "__main__":
    main()
