"""Attacks: sizes kept, range kept, success judged anew, units right."""

from __future__ import annotations

import copy
from dataclasses import replace
from io import StringIO

import pytest
import torch

import lben
from lben.data import MNIST_STD, embedded_mnist, pixels
from tests.problems import mnist_network, random_network

METHODS: list[lben.AttackMethod] = ["fgm", "pgd", "deepfool"]


@pytest.mark.parametrize("method", METHODS)
def test_what_an_attack_returns_is_true(method: lben.AttackMethod) -> None:
    data, net = embedded_mnist(), mnist_network(1.0)
    x, y = pixels(data.test_images[:100]), data.test_labels[:100]
    result = lben.attack(net, x, y, [0.0, 2.0, 5.0], method=method, steps=20, restarts=2, batch_size=64)
    assert result.inputs.shape == (3, 100, 784)
    assert result.inputs.dtype == x.dtype
    assert float(result.inputs.min()) >= 0
    assert float(result.inputs.max()) <= 1
    moved = (result.inputs.double() - x.double()).norm(dim=-1)
    assert torch.allclose(result.distances.pixels, moved)
    assert torch.allclose(result.distances.input, moved / MNIST_STD, rtol=1e-6)
    assert bool((result.distances.input <= result.epsilons.input[:, None]).all())
    assert torch.allclose(result.epsilons.pixels, result.epsilons.input * MNIST_STD, rtol=1e-6)
    judge = copy.deepcopy(net)
    judge.solver = lben.PeacemanRachford(tolerance=1e-5)
    with torch.no_grad():
        logits = judge(result.inputs)
        wrong = judge(x).argmax(-1) != y
    top = logits.topk(2, dim=-1).values
    clear = (top[..., 0] - top[..., 1]) > 1e-3  # where float32 can tell
    assert torch.equal((logits.argmax(-1) != y)[clear], result.success[clear])
    assert result.clean_error == pytest.approx(float(wrong.double().mean()))
    assert torch.equal(result.error, result.success.double().mean(dim=1))
    assert result.error[0] == pytest.approx(result.clean_error)
    assert bool(result.success[:, wrong].all())  # who is wrong already needs no attack
    assert result.error.tolist() == sorted(result.error.tolist())
    assert result.error[2] > 2 * result.clean_error


def test_an_attack_prints_as_a_sentence() -> None:
    data, net = embedded_mnist(), mnist_network(1.0)
    x, y = pixels(data.test_images[:20]), data.test_labels[:20]
    result = lben.attack(net, x, y, [0.0, 3.0], method="fgm")
    said = str(result)
    error = f"{100 * float(result.error[1]):.2f} % at size 3 (0.9243 in pixels)"
    for words in (
        "by fgm, 20 inputs",
        "% at size 0 (0 in pixels),",
        error,
        "at the network's input",
        "without attack.",
    ):
        assert words in said
    assert "tensor" not in said
    unsolved = replace(result, unsolved=torch.ones_like(result.unsolved))
    assert "40 attacked ones have no equilibrium" in str(unsolved)
    nowhere = lben.Lengths(torch.full((2,), torch.nan), result.epsilons.pixels)
    assert "at size 0.9243, measured at pixels" in str(replace(result, epsilons=nowhere))
    alike = lben.Lengths(result.epsilons.input, result.epsilons.input)
    assert "at size 3, measured at the network's input" in str(replace(result, epsilons=alike))


def test_many_steps_are_worse_than_one() -> None:
    data, net = embedded_mnist(), mnist_network(None)
    x, y = pixels(data.test_images[:300]), data.test_labels[:300]
    errors = {m: float(lben.attack(net, x, y, [4.0], method=m, steps=20).error[0]) for m in METHODS}
    assert errors["pgd"] > errors["fgm"]


def test_the_network_is_left_alone_and_the_seed_holds() -> None:
    data, net = embedded_mnist(), mnist_network(1.0)
    x, y = pixels(data.test_images[:20]), data.test_labels[:20]
    net.zero_grad()
    random_state = torch.get_rng_state()
    results = [lben.attack(net, x, y, [3.0], steps=5, restarts=2, seed=7, progress=False) for _ in range(2)]
    assert torch.equal(results[0].inputs, results[1].inputs)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert not torch.equal(lben.attack(net, x, y, [3.0], steps=5, restarts=2, seed=8).inputs, results[0].inputs)


def test_paper_protocol() -> None:
    """One step on the last 2,000 images, sizes in normalised units, all images attacked: the same by hand."""
    data, net = embedded_mnist(), mnist_network(1.0)
    x = pixels(torch.cat([data.test_images] * 3))
    y = torch.cat([data.test_labels] * 3)
    result = lben.attack(net, x, y, [5.0], paper_protocol=True)
    assert result.method == "fgm"
    assert result.inputs.shape == (1, 2000, 784)
    assert result.epsilons.pixels[0] == pytest.approx(5 * MNIST_STD)
    images = x[-2000:].clone().requires_grad_()
    logits = net(images)
    (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y[-2000:], reduction="sum"), images)
    step = 5 * MNIST_STD * slope / slope.norm(dim=-1, keepdim=True)
    by_hand = (images + step).clamp(0, 1).detach()
    assert torch.allclose(result.inputs[0], by_hand, atol=1e-4)
    assert float(result.error[0]) == pytest.approx(
        float((net(by_hand).argmax(-1) != y[-2000:]).double().mean()), abs=2e-3
    )


def test_pixels_bare_weights_and_several_stds() -> None:
    data, net = embedded_mnist(), mnist_network(1.0)
    x, y = pixels(data.test_images[:50]), data.test_labels[:50]
    at_input = lben.attack(net, x, y, [3.0], method="fgm")
    in_pixels = lben.attack(net, x, y, [3.0 * float(at_input.epsilons.pixels[0]) / 3.0], method="fgm", domain="pixels")
    assert torch.allclose(at_input.inputs, in_pixels.inputs)
    weights = random_network("LBEN", (4, 5, 3), lben.ReLU(), gamma=5.0, size=2, spread=1, trained=5, seed=0).weights()
    points, labels = torch.rand(20, 4), torch.randint(3, (20,))
    result = lben.attack(weights.detach(), points, labels, [0.5], activation=lben.Tanh(), steps=5)
    assert torch.equal(result.distances.input, result.distances.pixels)
    several = lben.LBEN(4, 5, 3, gamma=1.0, normalize=lben.Normalize(0.0, [0.1, 0.2, 0.3, 0.4])).eval()
    assert bool(torch.isnan(lben.attack(several, points, labels, [0.1], method="fgm", domain="pixels").epsilons.input))
    with pytest.raises(lben.InvalidInput, match="different stds"):
        lben.attack(several, points, labels, [0.1])


def test_inputs_without_equilibrium_count_as_wrong() -> None:
    """z = relu(z + x) has an equilibrium for x <= 0 only: an attack that takes it away has succeeded."""
    net = lben.UnconstrainedEN(1, 1, 2).eval()
    with torch.no_grad():
        for name, value in (("W", 1.0), ("U", 1.0), ("bz", 0.0), ("Wo", 0.0)):
            net.get_parameter(f"parameterization.{name}").fill_(value)
        net.get_parameter("parameterization.by").copy_(torch.tensor([1.0, 0.0]))
    x, y = torch.tensor([[-0.5], [0.5]]), torch.tensor([0, 0])
    result = lben.attack(net, x, y, [0.1], method="fgm", bounds=(-1, 1))
    assert result.success.tolist() == [[False, True]]
    assert result.unsolved.tolist() == [[False, True]]
    assert result.clean_error == 0.5


def test_linear_units_above_one_are_solved() -> None:
    """No metric proves z = 3 z + x, but as a linear equation it has one solution, and attacks must find it."""
    weights = lben.Weights(
        torch.diag(torch.tensor([3.0, 0.2, 0.1])), torch.eye(3), torch.zeros(3), torch.eye(3), torch.zeros(3)
    )
    activation = lben.PerUnit([lben.Identity(), lben.ReLU(), lben.ReLU()])
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, 0] / -2, x[:, 1] / 0.8, x[:, 2] / 0.9], dim=1).argmax(dim=1)
    result = lben.attack(weights, x, y, [0.0], activation=activation)
    assert result.clean_error == 0
    assert not bool(result.unsolved.any())


def test_the_state_of_torch_does_not_matter() -> None:
    torch.manual_seed(0)
    net, y = lben.LBEN(3, 4, 3, gamma=1.0), torch.tensor([0, 1, 2, 0])
    x = torch.rand(4, 3)

    def everything(x: torch.Tensor) -> list[object]:
        return [
            lben.tightest_bound(net).gamma,
            lben.certified_radius(net, x).radius.tolist(),
            lben.lipschitz_lower_bound(net, x, restarts=2, steps=3).value,
            lben.attack(net, x, y, [0.1], steps=3).error.tolist(),
        ]

    expected = everything(x)
    with torch.no_grad():
        assert everything(x) == expected
    with torch.inference_mode():
        assert everything(x.clone()) == expected
    with torch.autocast("cpu"):
        assert everything(x) == expected
    assert everything(x.requires_grad_()) == expected


def test_progress(terminal: StringIO) -> None:
    data, net = embedded_mnist(), mnist_network(1.0)
    lben.attack(net, pixels(data.test_images[:4]), data.test_labels[:4], [1.0], method="fgm", progress=True)
    assert "Attacking by fgm" in terminal.getvalue()


@pytest.mark.parametrize("method", ["fgm", "pgd"])
def test_an_attack_that_leaves_all_equilibria_behind_goes_on(method: lben.AttackMethod) -> None:
    """z = relu(5 z + U x + b) has no equilibrium where U x + b > 0; there outputs and gradients overflow."""
    eye = torch.eye(3)
    weights = lben.Weights(5 * eye, 40 * torch.ones(3, 4), -torch.ones(3), eye[:2], torch.tensor([1.0, 0.0]))
    net = lben.UnconstrainedEN.from_weights(weights).eval()
    x, y = torch.rand(40, 4, generator=torch.Generator().manual_seed(0)) * 0.01, torch.zeros(40, dtype=torch.int64)
    result = lben.attack(net, x, y, [0.5], method=method, steps=5, restarts=1)
    assert bool(result.inputs.isfinite().all())
    assert float(result.error[0]) > 0
    assert bool(result.unsolved.any())


def test_labels_made_in_inference_mode_serve() -> None:
    with torch.inference_mode():
        labels = torch.zeros(2, dtype=torch.long)
    result = lben.attack(lben.LBEN(16, 4, 2, gamma=1.0).eval(), torch.rand(2, 16), labels, [0.1], steps=2)
    assert result.success.shape == (1, 2)
