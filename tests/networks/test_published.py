"""Networks of others: their outputs from small files in their layouts, what is said of them, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.torch_version import TorchVersion

import lben
from tests.networks import published_files as files
from tests.networks.published_files import IMAGE, IN, State, saved

EXACT = lben.PeacemanRachford(tolerance=1e-12)


def outputs(imported: lben.Imported, x: Tensor, solver: lben.Solver = EXACT) -> Tensor:
    imported.net.solver = solver
    with torch.no_grad():
        return imported.net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "gamma", "kind"),
    [
        (files.dense_bounded, 0.5, lben.LBEN),
        (files.dense_free, None, lben.LBEN),
        (files.dense_mon, None, lben.MON),
        (files.dense_unconstrained, None, lben.UnconstrainedEN),
    ],
)
@pytest.mark.parametrize("m", [1.0, 0.3])
def test_dense_networks_have_their_outputs(
    tmp_path: Path, make: Callable[[], State], gamma: float | None, kind: type, m: float
) -> None:
    torch.manual_seed(3)
    state, x = make(), torch.rand(6, IN, dtype=torch.float64)
    imported = lben.import_checkpoint(saved(tmp_path, state), gamma=gamma, m=m)
    assert type(imported.net) is kind
    torch.testing.assert_close(outputs(imported, x), files.dense_outputs(state, x, gamma, m), rtol=1e-9, atol=1e-9)


PSI: dict[str, Tensor] = {
    "identity": torch.full((1, 1, 1, 1), 0.7, dtype=torch.float64),
    "channel": torch.tensor([0.4, -0.3], dtype=torch.float64).reshape(1, 2, 1, 1),
    "pixel": torch.linspace(-0.3, 0.3, 48, dtype=torch.float64).reshape(1, 1, 6, 8),
    "full, of channels": torch.tensor([0.4, -0.3], dtype=torch.float64).reshape(2, 1, 1).expand(2, 6, 8).clone(),
}


@pytest.mark.parametrize("metric", PSI)
@pytest.mark.parametrize(
    ("make", "gamma"), [(files.conv_free, None), (files.conv_bounded, 0.8), (files.conv_scaled, 0.8)]
)
def test_convolutions_of_the_authors_have_their_outputs(
    tmp_path: Path, make: Callable[[Tensor], State], gamma: float | None, metric: str
) -> None:
    torch.manual_seed(4)
    psi, x = PSI[metric], torch.randn(3, *IMAGE, dtype=torch.float64)
    state = make(psi)
    imported = lben.import_checkpoint(saved(tmp_path, state), gamma=gamma, m=0.5, in_shape=IMAGE)
    expected = files.conv_outputs(state, x, gamma, 0.5, metric=None if metric == "identity" else psi)
    solver = lben.ForwardBackward(tolerance=1e-11, max_iterations=20_000) if metric == "pixel" else EXACT
    torch.testing.assert_close(outputs(imported, x, solver), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("image", "pool"), [(IMAGE, 2), ((3, 5, 5), 2), ((3, 6, 6), 4)])
def test_a_single_convolution_of_monotone_op_net_has_its_outputs(
    tmp_path: Path, image: tuple[int, int, int], pool: int
) -> None:
    """Also where pools do not divide the image, and leave its last pixels out."""
    torch.manual_seed(5)
    state, x = files.conv_mon(pool, image), torch.randn(3, *image, dtype=torch.float64)
    imported = lben.import_checkpoint(saved(tmp_path, state), in_shape=image)
    assert type(imported.net) is lben.ConvMON
    torch.testing.assert_close(outputs(imported, x), files.conv_outputs(state, x, pool=pool), rtol=1e-9, atol=1e-9)


def test_the_bound_of_an_imported_network_is_proved_and_it_is_saved_and_trained_like_any_other(tmp_path: Path) -> None:
    torch.manual_seed(6)
    for state, options in (
        (files.dense_bounded(), {}),
        (files.conv_bounded(PSI["channel"]), {"in_shape": IMAGE}),
    ):
        net = lben.import_checkpoint(saved(tmp_path, state), gamma=0.5, **options).net  # type: ignore[arg-type]
        assert lben.certify(net, 0.5)
        x = torch.randn(4, net.in_features, dtype=torch.float64)
        lben.save(net, tmp_path / "net.safetensors")
        assert torch.equal(lben.load(tmp_path / "net.safetensors").eval()(x), net(x))
        optimizer = torch.optim.SGD(net.train().parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
        assert lben.certify(net.eval(), 0.5)


def test_what_was_recognised_and_assumed_is_said(tmp_path: Path) -> None:
    found = lben.import_checkpoint(saved(tmp_path, files.dense_bounded(784), "fc_lip0.2_w80.params"))
    assert found.net.gamma == 0.2
    said = str(found)
    assert said.startswith("Recognised: a dense LBEN with gamma, of the paper's authors; 784 inputs, 7 hidden units, 3")
    assert "gamma = 0.2, from the name of the file." in said
    assert "m = 1, which is not in the file." in said
    assert "normalised by 0.1307 and 0.3081" in said
    pixels = torch.rand(2, 784, dtype=torch.float64)
    bare = lben.import_checkpoint(tmp_path / "fc_lip0.2_w80.params", gamma=0.2, normalize=None)
    assert not any("gamma" in note or "0.1307" in note for note in bare.notes)
    torch.testing.assert_close(outputs(found, pixels), outputs(bare, (pixels - 0.1307) / 0.3081))
    other = lben.import_checkpoint(saved(tmp_path, files.dense_mon(6), "mon.pt"))
    assert other.net.normalize is None
    assert "how they were normalised is not in the file" in str(other)
    assert "a dense MON, of monotone_op_net" in str(other)


def test_images_of_mnist_and_svhn_need_no_size(tmp_path: Path) -> None:
    for image, pool in (((1, 28, 28), 4), ((3, 32, 32), 2)):
        found = lben.import_checkpoint(saved(tmp_path, files.conv_mon(pool, image))).net
        assert isinstance(found, lben.ConvNetwork)
        assert found.in_shape == image
        assert (found.normalize is None) == (image[0] == 3)


def test_safetensors_are_read_as_well(tmp_path: Path) -> None:
    state = files.dense_mon()
    save_file(state, tmp_path / "net.safetensors")
    x = torch.rand(2, IN, dtype=torch.float64)
    one, other = (lben.import_checkpoint(p) for p in (tmp_path / "net.safetensors", saved(tmp_path, state)))
    assert torch.equal(one.net(x), other.net(x))


def test_a_state_dict_within_a_checkpoint_is_read(tmp_path: Path) -> None:
    state = files.dense_mon()
    saved(tmp_path, state, "plain")
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    saved(tmp_path, {"epoch": 3, "state_dict": wrapped, "optimizer": {"state": {}}}, "checkpoint")
    plain, inside = (lben.import_checkpoint(tmp_path / name).net.state_dict() for name in ("plain", "checkpoint"))
    assert plain.keys() == inside.keys()
    assert all(torch.equal(plain[name], inside[name]) for name in plain if isinstance(plain[name], torch.Tensor))


def test_no_random_number_is_drawn(tmp_path: Path) -> None:
    path = saved(tmp_path, files.dense_mon())
    before = torch.get_rng_state()
    lben.import_checkpoint(path)
    assert torch.equal(before, torch.get_rng_state())


class Runs:
    """A pickle that runs code when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def refused(path: Path, words: str, error: type[lben.LbenError] = lben.InvalidFile, **options: object) -> None:
    with pytest.raises(error, match=words) as caught:
        lben.import_checkpoint(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    saved(tmp_path, {"a": Runs(trace)}, "zip.pt")
    torch.save({"a": Runs(trace)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Runs(trace)))
    for name in ("zip.pt", "old.pt", "bare.pt"):
        refused(tmp_path / name, "cannot be read as a file of tensors alone")
    assert not trace.exists()


def test_a_torch_whose_reader_could_run_code_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.params"
    torch.save(files.dense_mon(), path)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.5.1+cpu"))
    refused(path, "Before torch 2.6 .* and this is 2.5.1", lben.InvalidInput)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path, files.dense_bounded()).read_bytes()
    save_file(files.dense_mon(), tmp_path / "safe")
    safe = (tmp_path / "safe").read_bytes()
    for content in (b"", b"nonsense", whole[:100], whole[: len(whole) // 2], whole[:-30], safe[:50], safe[:-9]):
        (tmp_path / "broken").write_bytes(content)
        refused(tmp_path / "broken", "cannot be read as a file of tensors alone", gamma=1.0)
    refused(tmp_path, "is not a file")
    refused(tmp_path / "nothing", "is not a file")


def changed(**tensors: Tensor | None) -> State:
    state = {**files.dense_mon(), **{f"mon.linear_module.{k.replace('__', '.')}": v for k, v in tensors.items()}}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.ones(2)], "holds a list, and not tensors by their names"),
        ({}, "none of the networks that are understood: a dense LBEN with gamma, .*; a MON with a single convolution"),
        ({"0.weight": torch.ones(2, 2)}, "holds 0.weight, which is none of the networks"),
        (changed(B__weight=None), "none of the networks"),
        (changed(extra=torch.ones(2)), "none of the networks"),
        ({"a": 3}, "holds a, which is int"),
        (changed(A__weight=torch.ones(7, 7, dtype=torch.int64)), "A.weight, which is int64"),
        (changed(A__weight=torch.ones(7, 7).to_sparse()), "A.weight, which is not a dense tensor"),
        (changed(A__weight=torch.full((7, 7), torch.nan)), "A.weight, in which some entries are not finite"),
        (changed(A__weight=torch.zeros(1).expand(7, 7)), "A.weight of shape .*, but fewer numbers than that"),
        (changed(A__weight=torch.ones(7, 6, dtype=torch.float64)), "looks like a dense MON, .*V must have shape"),
        (changed(U__weight=torch.ones(7, dtype=torch.float64)), "looks like a dense MON, .*matrices are needed"),
        ({"mon.linear_module.A_n0.0.weight": torch.ones(2, 2, 3, 3)}, "a MON of several convolutions"),
    ],
)
def test_what_is_no_such_network_is_named(tmp_path: Path, content: object, words: str) -> None:
    refused(saved(tmp_path, content), words)


def test_convolutions_that_are_not_ours_are_named(tmp_path: Path) -> None:
    full = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    refused(saved(tmp_path, files.conv_free(full)), "one entry for every channel of every pixel", in_shape=IMAGE)
    wrong = torch.zeros(1, 5, 1, 1, dtype=torch.float64)
    refused(saved(tmp_path, files.conv_free(wrong)), "psi has shape", in_shape=IMAGE)
    state = files.conv_mon()
    refused(saved(tmp_path, state), "sizes of pools give so many", in_shape=(3, 20, 20))
    state["mon.linear_module.g"] = torch.tensor(-1.0, dtype=torch.float64)
    refused(saved(tmp_path, state), "is -1, and must not be negative", in_shape=IMAGE)
    refused(saved(tmp_path, files.conv_mon(2, (2, 4, 4))), "2 channels has no size that is known")
    state = {**files.conv_mon(), **files.inside(U__weight=files.rand(2, 3, 1, 1))}
    refused(saved(tmp_path, state), "a 3 x 3 kernel and a matrix are needed", in_shape=IMAGE)
    odd = files.conv_bounded(PSI["channel"]) | {"mon.linear_module.Wout.weight": files.rand(3, 2 * 3 * 4)}
    refused(saved(tmp_path, odd), "does not divide the hidden image, 7 x 9", gamma=1.0, in_shape=(3, 5, 7))


def test_arguments_that_are_missing_or_wrong_are_named(tmp_path: Path) -> None:
    path, mon = saved(tmp_path, files.dense_bounded()), saved(tmp_path, files.dense_mon(), "mon.params")
    refused(path, "neither in the file nor in its name: give gamma=", lben.InvalidInput)
    refused(path, "gamma must be a finite number above 0", lben.InvalidInput, gamma=-1.0)
    refused(path, "m must be", lben.InvalidInput, gamma=1.0, m=0.0)
    refused(path, "in_shape must be", lben.InvalidInput, gamma=1.0, in_shape=(3, 3))
    refused(path, "normalize must be", lben.InvalidInput, gamma=1.0, normalize="mnist")
    refused(mon, "which has no gamma: leave it out", lben.InvalidInput, gamma=1.0)
    lben.save(lben.LBEN(2, 3, 2), tmp_path / "own.safetensors")
    refused(tmp_path / "own.safetensors", "was written by lben.save: lben.load reads it")
