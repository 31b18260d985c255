"""Settings explain themselves, refuse nonsense in one line, and do not need torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from difformer.train.settings import TrainSettings


def test_every_option_has_help():
    assert all(field.metadata["help"] for field in dataclasses.fields(TrainSettings))


NONSENSE = {
    "epochs": (0, 1.5, True),
    "lr": (0, float("nan"), "fast"),
    "weight_decay": (-0.1, float("inf")),
    "optimizer": ("sgd",),
    "schedule": ("linear",),
    "pseudo_labels": (-1.0,),
    "pseudo_feedback": (float("nan"),),
    "pseudo_warmup": (0.5,),
    "warmup": (-1,),
    "grad_clip": (0.0,),
    "patience": (0,),
    "eval_every": (0,),
    "seed": (-1,),
    "device": ("tpu", "auto:1", "cuda:", 3),
    "threads": (0,),
    "checkpoint_every": (-1,),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_named(name):
    for value in NONSENSE[name]:
        with pytest.raises(ValueError, match=f"^{name} must be .*, got {value!r}$"):
            TrainSettings(**{name: value})


def test_settings_come_without_torch():
    code = "import difformer.train.settings as s, sys; s.TrainSettings(); assert 'torch' not in "
    code += "sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_learning_rate_rises_stays_and_falls_as_the_schedule_says():
    from difformer.train.steps import lr_factor

    warm = TrainSettings(epochs=8, warmup=4)
    assert [lr_factor(e, warm) for e in (1, 2, 4, 5, 8)] == [0.25, 0.5, 1, 1, 1]
    cosine = TrainSettings(epochs=8, warmup=4, schedule="cosine")
    assert [round(lr_factor(e, cosine), 4) for e in (2, 4, 5, 7, 8)] == [0.5, 1, 1, 0.5, 0.1464]
