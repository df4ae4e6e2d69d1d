"""What a reconstructor is taught by: its losses, its decoders, and the learner that keeps and resumes its state."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate

from remanence import InputError, Records
from remanence.reconstructor.decoders import Residual, convolutional, separation_loss, softmin_loss
from remanence.reconstructor.learning import Learner


def test_the_loss_looks_at_the_closest_candidate():
    drawn, near, far = torch.zeros(1, 4), torch.full((1, 4), 0.1), torch.full((1, 4), 5.0)
    one = softmin_loss(drawn, near.unsqueeze(1))
    both = softmin_loss(drawn, torch.stack([far, near], 1))
    torch.testing.assert_close(one, both)
    assert float(one) == pytest.approx((0.01 + 0.1) / 2)


def smoothed(errors, threshold, softness=0.2):
    return torch.sigmoid((threshold - errors.log()) / softness).mean()


def test_separation_goes_down_the_gradient_of_the_true_positive_rate_at_a_fixed_false_positive_rate():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(6, 400, 1, 3, generator=generator, dtype=torch.float64)
    drawn, own, strangers = numbers[0, :, 0], 0.6 * numbers[0] + 0.8 * numbers[1], numbers[2:]
    direction = torch.randn(drawn.shape, generator=generator, dtype=torch.float64)

    def errors(step):
        moved = drawn + step * direction
        return (moved.unsqueeze(1) - own).square().mean(2), (moved.unsqueeze(1) - strangers).square().mean(3)

    threshold = errors(0)[1].flatten().log().sort().values[int(0.1 * 4 * 400)]
    allowed = smoothed(errors(0)[1], threshold)

    def rate(step):  # with the threshold that keeps the strangers' rate as it was
        low, high = threshold - 1, threshold + 1
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if smoothed(errors(step)[1], middle) < allowed else (low, middle)
        return smoothed(errors(step)[0], low)

    moving = torch.zeros((), dtype=torch.float64, requires_grad=True)
    separation_loss(drawn + moving * direction, own, strangers, fpr=0.1).backward()
    expected = float((rate(1e-4) - rate(-1e-4)) / 2e-4)
    assert abs(expected) > 1e-3
    assert -float(moving.grad) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("length", [1.0, 3.0])
def test_records_of_one_length_are_still_strangers(length):
    """Unit rows, pixels of −1 and 1, one-hot tables: their norms say nothing about who they are."""
    rows = torch.randn(3, 60, 2, 12, generator=torch.Generator().manual_seed(0)).sign() * length
    own, strangers = rows[0], rows[1:]
    drawn = own[:, 0].roll(1, 1).clone().requires_grad_()
    separation_loss(drawn, own, strangers, fpr=0.1).backward()
    assert drawn.grad.abs().sum() > 0


def test_a_set_that_shares_a_record_is_no_stranger():
    own, others = torch.rand(2, 100, 2, 4, generator=torch.Generator().manual_seed(0))
    shared = torch.stack([others[:, 0], own[:, 0]], 1)
    found = []
    for strangers in ([shared, shared, others], [others], [others.roll(1, 0), others]):
        drawn = own[:, 0].roll(1, 1).clone().requires_grad_()
        loss = separation_loss(drawn, own, torch.stack(strangers), fpr=0.2)
        loss.backward()
        found.append(torch.cat([loss.detach()[None], drawn.grad.flatten()]))
    torch.testing.assert_close(found[0], found[1])
    assert found[1].abs().sum() > 1.1
    assert not torch.allclose(found[1], found[2])


@pytest.mark.parametrize("shape", [(1, 32, 32), (28, 28), (3, 20, 20)])
def test_a_convolutional_decoder_draws_pictures_of_any_size_within_their_range(shape):
    pool = Records(torch.rand(4, *shape), torch.zeros(4))
    decoder = convolutional(10, 4, pool, trunk=16).eval()
    drawn = decoder(100 * torch.randn(2, 10))
    assert drawn.shape == (2, *shape)
    assert drawn.min() >= pool.features.min() - 1e-6
    assert drawn.max() <= pool.features.max() + 1e-6


@pytest.mark.parametrize("outputs", [4, 8])
def test_a_block_that_doubles_the_side_is_the_one_that_the_paper_draws(outputs):
    torch.manual_seed(0)
    block = Residual(8, outputs).double()
    values = torch.randn(3, 8, 5, 4, dtype=torch.float64, requires_grad=True)
    wide = interpolate(block.enter(values), scale_factor=2)
    drawn = block.body(conv2d(wide, block.widen.weight, padding=1))
    drawn = drawn + block.bypass(interpolate(values, scale_factor=2))
    weight = torch.randn_like(drawn)
    inputs = [values, *block.parameters()]
    slow = torch.autograd.grad((drawn * weight).sum(), inputs)
    fast = block(values)
    torch.testing.assert_close(fast, drawn)
    torch.testing.assert_close(torch.autograd.grad((fast * weight).sum(), inputs), slow)


def learn(path, steps, stop=None):
    torch.manual_seed(0)
    network, counted = nn.Linear(1, 1), []

    generator = torch.Generator().manual_seed(1)

    def loss(model, batch):
        counted.append(1)
        if len(counted) == stop:
            raise KeyboardInterrupt
        return (model(batch) - 3).square().mean()

    def quality(model, _):
        return -float((model(torch.ones(1, 1)) - 3).abs().detach()), ""

    learner = Learner(steps=steps, learning_rate=0.05, checkpoint=path)
    fitted = learner.fit(network, lambda: torch.rand(4, 1, generator=generator), loss, quality)
    return len(counted), float(fitted(torch.ones(1, 1)))


def test_an_averaged_network_has_the_statistics_of_the_one_that_learnt():
    network = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    fitted = Learner(steps=10, learning_rate=0.01).fit(
        network,
        lambda: [5 + torch.rand(4, 1, generator=torch.Generator().manual_seed(0))],
        lambda model, batch: model(batch[0]).square().mean(),
        lambda _, step: (float(step), ""),  # the last look is the best
    )
    assert fitted[0].num_batches_tracked == 10
    torch.testing.assert_close(fitted[0].running_mean, network[0].running_mean)
    assert float(fitted[0].running_mean) > 1


def test_learning_goes_on_where_it_was_killed(tmp_path):
    path = tmp_path / "learner.pt"
    with pytest.raises(KeyboardInterrupt):
        learn(path, 200, stop=101)
    steps, answer = learn(path, 200)
    whole, expected = learn(None, 200)
    assert steps == whole - 100
    assert answer == expected, "bit by bit: what was drawn before is drawn once more, and not learnt from"


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    path = tmp_path / "learner.pt"
    learn(path, 20)
    for size, of_game, said in ((2, "", "cannot be continued"), (1, "another", "another game")):
        with pytest.raises(InputError, match=said):
            Learner(20, 0.1, checkpoint=path, fingerprint=of_game).fit(
                nn.Linear(size, 1), lambda: None, lambda m, _: m.weight.sum(), lambda m, _: (0.0, "")
            )
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="cannot be continued"):
        learn(path, 20)


def test_a_single_flipped_bit_of_a_checkpoint_is_found(tmp_path):
    path = tmp_path / "learner.pt"
    with pytest.raises(KeyboardInterrupt):
        learn(path, 200, stop=101)
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="checksum"):
            learn(path, 200)
