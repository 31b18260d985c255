"""The command line itself: help, speed, exit codes, one line for every error."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import difformer
from difformer.app import COMMANDS
from difformer.app.cli import load_command
from difformer.app.commands import data
from difformer.errors import DataError
from difformer.extensions import added
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.settings import TrainSettings

SOURCE = Path(difformer.__file__).parent.parent
SHOWN = [*added("commands"), *COMMANDS]


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=options.pop("cwd", SOURCE),
        **options,
    )


def test_the_module_runs_as_the_command_does(tmp_path: Path) -> None:
    done = python("-m", "difformer", "--version")
    assert (done.returncode, done.stdout) == (0, f"{difformer.__version__}\n")


def test_help_names_every_command_in_the_order_of_the_list(cli: Any) -> None:
    text = cli("--help").out
    positions = [text.index(f"\n  {name} ") for name in SHOWN]
    assert positions == sorted(positions)
    for name in COMMANDS:
        assert COMMANDS[name].split(",")[0] in " ".join(text.split())


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in SHOWN)])
def test_help_does_not_import_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom difformer.app.cli import main\ntry:\n"
        f"    main({words!r})\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr[-1000:]


def test_help_takes_under_half_a_second_of_one_core() -> None:
    code = "import time\nfrom difformer.app.cli import main\ntry:\n    main(['--help'])\n"
    code += "except SystemExit:\n    print('CPU', time.process_time())\n"
    taken = min(float(python("-c", code).stdout.split("CPU")[1]) for _ in range(3))
    assert taken < 0.5


@pytest.mark.parametrize("name", SHOWN)
def test_every_command_has_an_example_json_and_debug_and_no_option_twice(
    name: str, cli: Any
) -> None:
    text = cli(name, "--help").out
    assert f"Example: difformer {name}" in text
    if name != "serve":  # it answers in JSON over HTTP, and prints nothing but where
        assert "--json" in text
    if name != "datasets":
        assert "--debug" in text
    names = [n for p in load_command(name).params for n in (*p.opts, *p.secondary_opts)]
    assert len(names) == len(set(names))


def test_reproduce_gives_a_cell_no_split_but_its_own() -> None:
    from difformer_paper.reproduce import _narrowed
    from difformer_paper.specs import load_spec

    cells = load_spec("table4").cells(columns=["20news-1000", "20news-2000"], systems=["mlp"])
    both = _narrowed(cells, ["per-class:100:0", "per-class:200:1", "per-class:200:0"], [3])
    found = {c.column: (c.splits, c.seeds) for c in both}
    assert found == {
        "20news-1000": (("per-class:100:0",), (3,)),
        "20news-2000": (("per-class:200:0", "per-class:200:1"), (3,)),
    }
    only = _narrowed(cells, ["per-class:200:0"], None)
    assert {c.column for c in only} == {"20news-2000"}


def test_no_words_show_the_help_and_nothing_went_wrong(cli: Any) -> None:
    bare, asked = cli(), cli("--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == asked.out
    assert "Commands:" in bare.out


WRONG = (
    "train cora --bogus",
    "train cora --epochs many",
    "train cora --lr -1",
    "train cora --hidden-channels 0",
    "train cora --set nonsense=3",
    "train cora --model nope",
    "train --nodes t.csv",
    "train --nodes none.csv --label y",
    "train --nodes t.csv --label y --kind a=colour",
    "train --nodes t.csv --label y --task guess",
    "train --nodes t.csv --label y --neighbours 0",
    "train --nodes t.csv --label y --lr 0.1",
    "train --series t.csv --set steps=0",
    "train --series none.csv",
    "predict run",
    "serve run --port x",
    "compare cora --bogus",
    "tune cora --trials x",
    "reproduce table99",
    "bench nope",
    "datasets fetch nope",
    "nope",
)


def test_wrong_flags_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    """That takes seconds: the answer is there at once."""
    (tmp_path / "t.csv").write_text("a,y\n1,u\n2,v\n")
    code = (
        "import sys; from difformer.app.cli import main\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    try: main(line.split())\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules, line)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(WRONG),
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [f"2 False {line}" for line in WRONG]
    said = done.stderr.splitlines()
    assert len(said) == len(WRONG)
    assert all(line.startswith("error: ") for line in said)


def test_a_learning_rate_of_1e10_is_stopped_as_diverged_with_one_line(
    cli: Any, tmp_path: Path
) -> None:
    """-s ends in nan at once, the MLP in losses of 1e21 that stay finite."""
    words = ["--lr", "1e10", "--epochs", "40", "--quiet", "--out"]
    for model in ("difformer-s", "mlp"):
        line = cli.refused("train", "digits", "--model", model, *words, str(tmp_path / model))
        assert "training diverged, the loss is" in line
        assert "try a lower lr than 10000000000.0" in line


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("the file is\nbroken"), 2, "error: the file is broken"),
        (ValueError("k must be 1"), 2, "error: k must be 1"),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 2, "No space left on device"),
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("odd"), 1, "RuntimeError: odd; this is a fault of difformer"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code_says_whose_turn_it_is(
    error: BaseException, code: int, message: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*values: Any) -> None:
        raise error

    monkeypatch.setattr(data, "print_table", broken)
    done = cli("datasets")
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1


def test_debug_shows_the_traceback() -> None:
    from difformer.app.cli import main

    with pytest.raises(ValueError, match="table must be one of"):
        main(["reproduce", "table99", "--debug"])


def test_datasets_are_listed_for_people_and_for_machines(cli: Any) -> None:
    assert "2,708 papers" in cli("datasets").out
    listed = json.loads(cli("datasets", "--json").out)
    assert [entry["name"] for entry in listed] == difformer.list_datasets()
    assert json.loads(cli("datasets", "fetch", "digits", "--json").out)["folder"] is None


def test_the_help_of_train_fits_on_two_screens(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli("train", "--help").out.count("\n") <= 80


def test_help_all_and_settings_show_the_values_a_run_records(cli: Any) -> None:
    from difformer.app.options import PANELS, shown_default
    from difformer.settings import options_of
    from difformer.train.folder import read_config

    text = " ".join(cli("train", "--help-all").out.split())
    listed = {
        row["name"]: row["default"] for row in json.loads(cli("settings", "--json").out)["settings"]
    }
    cli("train", "digits", "--epochs", "1", "--no-report", "--out", "r")
    kept = read_config(Path("r/config.toml"))
    for settings, recorded in zip(PANELS.values(), (kept["model"], kept["train"]), strict=True):
        for option in options_of(settings).values():
            shown = shown_default(option.name)
            assert f" {option.flag}" in text
            assert f"{' '.join(option.help.split())} [{shown}]" in text
            assert listed[option.name] == shown
            usual, *others = shown.split("; ")
            alone = [o.split()[0] for o in others if o.endswith("without a graph")]
            found = recorded.get(option.name, "none")
            said = str(found).lower() if isinstance(found, bool) else f"{found}"
            if option.name != "epochs":
                assert option.parse((alone or [usual])[0]) == option.parse(said), option.name


@pytest.mark.parametrize("system", SYSTEMS)
def test_settings_lists_each_setting_of_a_system_with_default_range_and_meaning(
    cli: Any, system: str
) -> None:
    rows = json.loads(cli("settings", system, "--json").out)["settings"]
    names = [row["name"] for row in rows]
    kind = get_system(system)
    assert names[: len(kind.config.names())] == [*kind.config.names()]
    assert {name for name in TrainSettings.names() if kind.uses(name)} <= set(names)
    assert len(names) == len(set(names))
    assert not {*kind.config.names()} & {*TrainSettings.names()}
    assert all(row["default"] and row["range"] and row["meaning"] for row in rows)


@pytest.mark.parametrize("name", ["compare", "tune"])
def test_the_help_of_a_search_shows_what_it_trains_with(
    cli: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    from difformer.compare.compare import DEFAULT_TRAIN

    class SeenError(Exception):
        """Carries what the command hands on; nothing is trained."""

    def look(*values: Any, **options: Any) -> None:
        raise SeenError(values, options)

    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", cli(name, "--help").out).split())
    module = import_module(f"difformer.app.commands.{name}")
    function = getattr(module, name)
    monkeypatch.setattr(module, name, look)
    with pytest.raises(SeenError) as caught:
        module.command("digits", quiet=True)
    values, options = caught.value.args
    train = options["train"] if name == "compare" else vars(values[0].train)
    for option, value in DEFAULT_TRAIN.items():
        assert train[option] == value
        assert re.search(rf"--{option} N [^\[]*\[default: {value}\]", text), option
    for option, parameter in signature(function).parameters.items():
        simple = isinstance(parameter.default, int | str) and option in options
        assert not simple or options[option] == parameter.default, option


@pytest.mark.parametrize("kind", ["DIFFormerClassifier", "DIFFormerRegressor"])
def test_signature_parameters_and_settings_of_an_estimator_have_one_default(kind: str) -> None:
    from difformer.estimators.settings import FitSettings

    made = getattr(difformer, kind)
    shown = {n: p.default for n, p in signature(made).parameters.items()}
    assert shown == made().get_params()
    for field in fields(FitSettings):
        assert shown[field.name] == field.default
        assert field.name in str(difformer.DIFFormerClassifier.__doc__)  # which both go by


def test_what_estimators_and_the_loop_both_take_has_one_help_and_one_rule() -> None:
    from difformer.estimators.settings import FitSettings, ForecastSettings
    from difformer.train.settings import TrainSettings

    loop = TrainSettings.__dataclass_fields__
    for settings, least in ((FitSettings, 7), (ForecastSettings, 5)):
        shared = [field for field in fields(settings) if field.name in loop]
        assert len(shared) >= least
        for field in shared:
            assert field.metadata == loop[field.name].metadata


def test_a_series_is_trained_with_the_defaults_of_the_forecaster() -> None:
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.jobs.series import SeriesSettings

    theirs, ours = DIFFormerForecaster().get_params(), vars(SeriesSettings())
    assert set(theirs) - set(ours) == {"checkpoint", "random_state"}
    assert {name: ours[name] for name in theirs if name in ours}.items() <= theirs.items()


def test_a_shell_can_complete_commands(tmp_path: Path) -> None:
    environment = {**os.environ, "_DIFFORMER_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    environment |= {"COMP_WORDS": "difformer tr", "PYTHONPATH": str(SOURCE)}
    code = "import sys; sys.argv = ['difformer']; from difformer.app.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["train"]
