"""What local bounds add to a report: between global certificate and attack, and counted where the gap is widest."""

from __future__ import annotations

import pytest

import lben
from lben.data import embedded_mnist, pixels
from lben.experiments.nearby import Around, measure_around
from tests.problems import mnist_network


@pytest.mark.slow
def test_local_accuracies_lie_between_the_others() -> None:
    data, net = embedded_mnist(), mnist_network(None)
    x, y = pixels(data.test_images[:4]), data.test_labels[:4]
    found = measure_around(net, x, y, [0.1, 0.4], corners=[0.005], progress=False)
    for proved, around, attacked in zip(found.everywhere, found.around, found.attacked, strict=True):
        assert proved <= around <= attacked
    assert found.corners_everywhere[0] <= found.corners_around[0]
    assert found.images == 4


def test_the_gap_is_closed_where_it_is_widest() -> None:
    def around(local: list[float]) -> Around:
        return Around(10, [0.1, 1.0], [0.9, 0.2], local, [0.95, 0.8], [0.01], [0.5], [0.5])

    assert around([0.95, 0.5]).closed == pytest.approx(0.5)
    assert around([0.9, 0.2]).closed == 0
    with pytest.raises(lben.InvalidInput, match="differ in length"):
        around([0.9])
