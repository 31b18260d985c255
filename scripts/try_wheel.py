"""Build sdist and wheel, look into them, and try the wheel in an empty environment.

    python scripts/try_wheel.py [--keep FOLDER]

The environment is made beside nothing: no repository on its path, no data, an empty home. What it
needs is installed from the index, with the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MUST = (
    "difformer/py.typed",
    "difformer/data/embedded/cora.npz",
    "difformer/data/embedded/NOTICE.md",
    "difformer/report/assets/page.css",
    "difformer/experiments/specs/table2.toml",
)
TRIALS: Sequence[tuple[Sequence[str], str]] = (
    (["-c", "import difformer; print(difformer.load_dataset('cora').describe())"], "2,708 rows"),
    (["-m", "difformer", "--version"], "0."),
    (["-m", "difformer", "--help"], "--install-completion"),
    (["-m", "difformer", "datasets"], "cora"),
    (["-m", "difformer", "train", "digits", "--epochs", "3", "--quiet"], "accuracy"),
    (["-m", "difformer", "reproduce", "table2", "--models", "gcn", "--show"], "Cora"),
)


def contents(path: Path) -> list[str]:
    """The names in a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    with tarfile.open(path) as archive:
        return [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]


def check_contents(wheel: list[str], sdist: list[str]) -> list[str]:
    """What is missing from them, or too much in them."""
    problems = [f"the wheel lacks {name}" for name in MUST if name not in wheel]
    problems += [f"the sdist lacks src/{name}" for name in MUST if f"src/{name}" not in sdist]
    own = ("difformer/", "difformer-")
    problems += [f"the wheel holds {name}" for name in wheel if not name.startswith(own)]
    odd = ("__pycache__", ".venv", "results/", "runs/", ".git/")
    both = [*wheel, *sdist]
    return problems + [
        f"{name} should not be there" for name in both if any(o in name for o in odd)
    ]


def run(command: Sequence[str], folder: Path, home: Path) -> str:
    """What a command prints; SystemExit with its errors if it fails."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "LANG", "TMP"))}
    kept |= {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def main() -> None:
    """Build, look, install, try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="also leave the two files here")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        home, out = place / "home", place / "dist" if keep is None else keep.resolve()
        home.mkdir()
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
        run([*build, str(REPOSITORY)], place, home)
        (wheel,), (sdist,) = list(out.glob("*.whl")), list(out.glob("*.tar.gz"))
        if problems := check_contents(contents(wheel), contents(sdist)):
            raise SystemExit("\n".join(problems))
        venv.create(place / "env", with_pip=True)
        python = str(place / "env" / ("Scripts" if os.name == "nt" else "bin") / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*install, "-c", str(REPOSITORY / "constraints.txt"), str(wheel)], place, home)
        for words, expected in TRIALS:
            printed = run([python, *words], place, home)
            if expected not in printed:
                raise SystemExit(f"python {' '.join(words)} does not say {expected!r}:\n{printed}")
            print("ok:", *words)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, works alone")


if __name__ == "__main__":
    main()
