"""LPIPS from weights that the user brings; here random ones."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from remanence import InputError, Records
from remanence_papers.perceptual import lpips


def alexnet():
    """The features in the order of the published network, with their ReLUs and poolings."""
    torch.manual_seed(0)
    pool, relu = nn.MaxPool2d(3, 2), nn.ReLU()
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), relu, pool, nn.Conv2d(64, 192, 5, padding=2), relu, pool),
        *(nn.Conv2d(192, 384, 3, padding=1), relu, nn.Conv2d(384, 256, 3, padding=1), relu),
        *(nn.Conv2d(256, 256, 3, padding=1), relu, pool),
    )


@pytest.fixture
def weights(tmp_path):
    network = alexnet()
    tensors = {f"features.{name}": value for name, value in network.state_dict().items()}
    for k, width in enumerate((64, 192, 384, 256, 256)):
        tensors[f"lin{k}.model.1.weight"] = torch.rand(1, width, 1, 1)
    save_file(tensors, tmp_path / "lpips.safetensors")
    return tmp_path / "lpips.safetensors", network, tensors


def coloured(count, seed=1):
    pixels = torch.rand(count, 1, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
    return Records(pixels, torch.zeros(count, 1))


@torch.no_grad()
def by_hand(network, tensors, left, right):
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in ((-0.03, -0.088, -0.188), (0.458, 0.448, 0.45)))
    a, b = ((2 * picture - 1 - shift) / scale for picture in (left, right))
    total, k = 0.0, 0
    for layer in network[:12]:
        a, b = layer(a), layer(b)
        if isinstance(layer, nn.ReLU):
            unit = [x / x.square().sum(0, keepdim=True).sqrt() for x in (a, b)]
            difference = (unit[0] - unit[1]).square().nan_to_num() * tensors[f"lin{k}.model.1.weight"][0]
            total += float(difference.sum(0).mean())
            k += 1
    return total


def test_it_is_the_weighted_distance_of_normalised_features(weights):
    path, network, tensors = weights
    left, right = coloured(3), coloured(3, seed=2)
    expected = [
        by_hand(network, tensors, a, b)
        for a, b in zip(left.features[:, 0], right.features[:, 0], strict=True)
    ]
    assert lpips(path)(left, right).flatten().tolist() == pytest.approx(expected, rel=1e-4)


def test_a_picture_is_at_no_distance_from_itself_and_grey_is_colour_three_times(weights):
    error = lpips(weights[0])
    grey = Records(torch.rand(2, 1, 28, 28), torch.zeros(2, 1))
    same = Records(grey.features.unsqueeze(2).expand(-1, -1, 3, -1, -1), grey.labels)
    other = Records(grey.features.flip(0), grey.labels)
    thrice = Records(other.features.unsqueeze(2).expand(-1, -1, 3, -1, -1), grey.labels)
    assert error(grey, grey).abs().max() == 0
    assert error(grey, other).min() > 0
    torch.testing.assert_close(error(grey, other), error(same, thrice))


def test_without_weights_it_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match="does not carry"):
        lpips(tmp_path / "nowhere.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="does not carry"):
        lpips(tmp_path / "bad.safetensors")
    save_file({"features.0.weight": torch.zeros(1)}, tmp_path / "few.safetensors")
    with pytest.raises(InputError, match=r"features\.0\.bias|size mismatch|does not carry"):
        lpips(tmp_path / "few.safetensors")
