"""Saved models come back bit for bit; anything else is one clear line."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from difformer.core.diffusivity import Diffusivity
from difformer.errors import ModelFileError
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.inputs import describe_model
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import checksum, read_tensors, write_tensors


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = DIFFormer(5, 4, 3, num_layers=2, kernel="sigmoid", learn_tau=True, center=True)
    path = tmp_path / "model.safetensors"
    model.save(path)
    return model, path


def rewrite_header(path, **changes):
    """Change the description inside the file, or replace it by the text `raw`."""
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    content = json.loads(header["__metadata__"]["difformer"])
    content |= changes
    if isinstance(content["description"], dict):
        content["checksum"] = checksum(load_file(path), content["description"])
    raw = changes.pop("raw", None) or json.dumps(content)
    header["__metadata__"]["difformer"] = raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob[8 + length :])


SHARP = {"kernel": "sharp", "compare": "input", "sharpness": 7.0}


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "sigmoid", "learn_tau": True, "center": True},
        {**SHARP, "self_weight": True, "residual": True},
        {**SHARP, "learn_reach": "layer", "learn_qk": False},
        {**SHARP, "learn_reach": "shared", "qk_init": "identity"},
    ],
    ids=str,
)
def test_round_trip_is_exact_and_draws_no_random_number(make, options, tmp_path):
    model, x, _ = make(options)
    for name in "abc":
        model.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "a").read_bytes()
    before = torch.get_rng_state()
    loaded = DIFFormer.load(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded.config == model.config
    assert torch.equal(loaded(x), model(x))


def cut(length):
    return lambda path, _: path.write_bytes(path.read_bytes()[:length])


def flip(place):
    def change(path, _):
        blob = bytearray(path.read_bytes())
        blob[place] ^= 1
        path.write_bytes(blob)

    return change


def header(**changes):
    return lambda path, _: rewrite_header(path, **changes)


def tensors(**changes):
    def change(path, model):
        kept = {n.replace(".", "_"): (n, t) for n, t in model.state_dict().items()}
        kept |= {n: (kept.get(n, (n,))[0], t) for n, t in changes.items()}
        found = {n: t for n, t in kept.values() if t is not None}
        write_tensors(path, "model", found, describe_model(model))

    return change


WIDTHS = {"in_channels": 1, "hidden_channels": 1, "out_channels": 1}
FEW = {"config": {"num_layers": -1, "kernel": "simple"}, **WIDTHS}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((cut(length), "not a whole safetensors file") for length in (3, 40, -5)),
        *((flip(place), "changed after it was written") for place in (-1, -40)),
        (lambda path, _: path.unlink(), "the model .*: no such file"),
        (lambda path, _: save_file({"a": torch.zeros(1)}, path), "not a difformer model"),
        (header(version=99), "format version 99, this difformer reads version 1"),
        (header(raw="not json"), "description is not JSON"),
        (header(raw="[]"), "not a difformer model"),
        (header(description=None), "no description of a model"),
        (header(description={}), "does not fit a DIFFormer"),
        (header(description={"config": {"bogus": 1}, **WIDTHS}), "does not fit a DIFFormer"),
        (header(description=FEW), "num_layers"),
        (tensors(output_bias=None), "misses tensor 'output.bias'"),
        (tensors(extra=torch.zeros(1)), "has an unknown tensor 'extra'"),
        (tensors(output_bias=torch.zeros(9)), r"'output.bias' has shape \(9,\)"),
        (tensors(output_bias=torch.full((3,), torch.inf)), "NaN or infinity"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(saved, damage, message):
    model, path = saved
    damage(path, model)
    with pytest.raises(ModelFileError, match=message) as caught:
        DIFFormer.load(path)
    assert "\n" not in str(caught.value)


def test_a_custom_diffusivity_must_be_passed_again(tmp_path):
    class Flat(Diffusivity):
        def omega(self, q, k):
            return torch.ones(*q.shape[:-1], k.shape[-2])

    model = DIFFormer(2, 3, 1, kernel=Flat())
    model.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="pass it as kernel="):
        DIFFormer.load(tmp_path / "m")
    x = torch.randn(4, 2)
    assert torch.equal(DIFFormer.load(tmp_path / "m", kernel=Flat())(x), model(x))


@pytest.mark.parametrize(
    "options", [{}, {"learn_qk": False, "use_weight": False, "norm": "input"}], ids=["full", "bare"]
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 10**9}, "describes 1000000000 layers|misses tensor"),
        ({"hidden_channels": 30_000}, r"has shape .*, expected"),
        ({"in_channels": 10**12}, r"has shape .*, expected"),
        ({"hidden_channels": 10**30}, "does not fit a DIFFormer"),
        ({"num_layers": 3}, "misses tensor|fits"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["model", "frozen"])
def test_described_shapes_are_compared_before_anything_is_built(
    tmp_path, monkeypatch, options, changes, message, kind
):
    model = DIFFormer(5, 4, 3, num_layers=2, **options)
    saved = model if kind == "model" else model.freeze(torch.randn(6, 5))
    saved.save(tmp_path / "m")
    _, description = read_tensors(tmp_path / "m", kind)
    for name, value in changes.items():
        where = description if name in description else description["config"]
        where[name] = value
    rewrite_header(tmp_path / "m", description=description)
    real = []
    monkeypatch.setattr(
        torch.nn.Linear, "reset_parameters", lambda self: real.append(self.weight.device.type)
    )
    if changes == {"num_layers": 3} and options:  # a layer without tensors of its own
        if kind == "frozen":
            with pytest.raises(ModelFileError, match="2 contexts for 3 layers"):
                type(saved).load(tmp_path / "m")
        else:
            assert len(DIFFormer.load(tmp_path / "m").layers) == 3
        return
    with pytest.raises(ModelFileError, match=message):
        type(saved).load(tmp_path / "m")
    assert set(real) <= {"meta"}


def test_a_frozen_file_without_a_part_is_named(tmp_path):
    DIFFormer(2, 4, 1).freeze(torch.randn(5, 2)).save(tmp_path / "f")
    tensors, description = read_tensors(tmp_path / "f", "frozen")
    less = {name: t for name, t in tensors.items() if name != "layer.1.context.count"}
    centred = {**description, "config": {**description["config"], "center": True}}
    for kept, told, message in (
        (less, description, "its frozen part is incomplete"),
        (tensors, centred, "center must be stored for a layer that subtracts it"),
    ):
        write_tensors(tmp_path / "f", "frozen", kept, told)
        with pytest.raises(ModelFileError, match=message):
            FrozenDIFFormer.load(tmp_path / "f")


def test_what_a_library_says_in_many_lines_is_quoted_in_one():
    said = "cannot be read (Invalid data\n  Deserializing failed.\n)"
    assert str(ModelFileError(said)) == "cannot be read (Invalid data Deserializing failed. )"
    torch_said = "it does not fit (Overflow\nException raised from a.h:79\nframe #0: c10::Error)"
    assert str(ModelFileError(torch_said)) == "it does not fit (Overflow"
    assert str(ModelFileError()) == ""
