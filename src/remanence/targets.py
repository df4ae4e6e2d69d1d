"""Built-in games on data that scikit-learn carries, for the demo and for first steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from remanence.adversary.stratified import StratifiedPrior
    from remanence.data.records import Records
    from remanence.game import Game
    from remanence.games.leave_one_out import LeaveOneOut
    from remanence.games.texts.game import Texts
    from remanence.mechanisms.glm.model import GLM
    from remanence.mechanisms.heads.transfer_head import TransferHead
    from remanence.protocol import AnyGame


def breast_cancer_logistic() -> LeaveOneOut[GLM]:
    """Logistic regression at its exact optimum (569 patients, standardised, C = 0.01)."""
    from remanence.games.leave_one_out import LeaveOneOut
    from remanence.mechanisms.glm.families import Logistic
    from remanence.mechanisms.glm.model import GLM
    from remanence.scoring.errors import Criterion, relative_error

    criterion = Criterion(relative_error(), label_scale=1.0)
    data, columns = _standardised("breast_cancer"), _columns("breast_cancer")
    return LeaveOneOut(GLM(Logistic(), penalty=100.0), data, criterion, columns=columns)


def breast_cancer_sloppy() -> LeaveOneOut:
    """The same patients, fitted with scikit-learn's default C and tolerance: hidden by accident."""
    from sklearn.linear_model import LogisticRegression

    from remanence.integrations.sklearn import leave_one_out

    data = _standardised("breast_cancer")
    features, labels = data.features.numpy(), data.labels.numpy()
    game = leave_one_out(LogisticRegression().fit(features, labels), features, labels)
    return replace(game, columns=_columns("breast_cancer"))


def digits_logistic() -> LeaveOneOut[GLM]:
    """Ten-class logistic regression on 1,797 pictures of digits, pixels in [0, 1]."""
    from remanence.games.leave_one_out import LeaveOneOut
    from remanence.mechanisms.glm.families import Multinomial
    from remanence.mechanisms.glm.model import GLM
    from remanence.scoring.errors import Criterion, relative_error

    criterion = Criterion(relative_error(), label_scale=1.0)
    return LeaveOneOut(GLM(Multinomial(10), penalty=1.0), _raw("digits", scale=16.0), criterion)


def diabetes_ridge() -> LeaveOneOut:
    """scikit-learn's own Ridge on 442 patients: records and the disease score come back."""
    from sklearn.linear_model import Ridge

    return _fitted(Ridge(alpha=1.0), "diabetes")


def wine_pipeline() -> LeaveOneOut:
    """A StandardScaler and LogisticRegression with defaults on 178 wines: the scaler alone leaks."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return _fitted(make_pipeline(StandardScaler(), LogisticRegression()), "wine")


def diabetes_shortlist() -> Game:
    """Ridge with noise on the weights; the target is one of 20 patients, and guessing finds 1 in 20."""
    from remanence.adversary.priors import FinitePrior
    from remanence.game import Game
    from remanence.mechanisms.glm.families import Gaussian
    from remanence.mechanisms.glm.model import GLM
    from remanence.scoring.errors import Criterion, relative_error

    data = _standardised("diabetes")
    mechanism, criterion = GLM(Gaussian(), penalty=10.0, noise=0.1), Criterion(relative_error(), 1e-2)
    return Game(mechanism, FinitePrior(data[:20]), data[20:], criterion)


def digits_noisy_sum() -> Game:
    """The sum of 1,797 pictures of norm 1 with Gaussian noise: a shortlist of 100 against a proven ceiling."""
    from remanence import bounds
    from remanence.adversary.priors import FinitePrior
    from remanence.game import Game
    from remanence.mechanisms.noisy_sum import NoisySum
    from remanence.scoring.errors import Criterion, mismatch

    data = _raw("digits", scale=16.0)
    mechanism = NoisySum(noise_multiplier=2.0)
    bound = bounds.of(mechanism, 1 / 100)
    return Game(mechanism, FinitePrior(data[:100]), data[100:], Criterion(mismatch, 0.5), bounds=(bound,))


def digits_dpsgd() -> Game:
    """Full-batch DP-SGD at (10, 1e-5) on 500 pictures; a shortlist of 32 against the whole transcript."""
    return _digits_dpsgd(noise_multiplier=5.0, sample_rate=1.0, learning_rate=5.0)


def digits_dpsgd_poisson() -> Game:
    """The same with a tenth of the records in each batch, and noise for about the same ε."""
    return _digits_dpsgd(noise_multiplier=0.8, sample_rate=0.1, learning_rate=1.0)


def _digits_dpsgd(*, noise_multiplier: float, sample_rate: float, learning_rate: float) -> Game:
    from remanence import bounds
    from remanence.adversary.priors import FinitePrior
    from remanence.data.records import Records
    from remanence.game import Game
    from remanence.mechanisms.networks.dpsgd import DPSGD
    from remanence.mechanisms.networks.perceptron import Perceptron
    from remanence.scoring.errors import Criterion, mismatch

    digits = _raw("digits", scale=8.0)
    data = Records(digits.features.float() - 1, digits.labels)  # pixels in [−1, 1]
    mechanism = DPSGD(
        Perceptron((64, 10, 10)),
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=100,
        max_grad_norm=0.1,
        learning_rate=learning_rate,
    )
    bound = bounds.of(mechanism, 1 / 32)
    return Game(
        mechanism, FinitePrior(data[:32]), data[32:532], Criterion(mismatch, threshold=0.5), bounds=(bound,)
    )


def digits_gradient() -> Game:
    """One shared gradient of 8 pictures of digits on a 64-256-10 ReLU network in float32: whole batches come back."""
    import torch
    from torch import nn

    from remanence.adversary.priors import EmpiricalPrior, Uninformed
    from remanence.data.records import Records
    from remanence.game import Game
    from remanence.mechanisms.shared_gradient import SharedGradient
    from remanence.scoring.errors import Criterion, Reduction, relative_error

    digits = _raw("digits", scale=8.0)
    data = Records(digits.features.float() - 1, digits.labels)  # pixels in [−1, 1]
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.125, 0.125, generator=generator)
    criterion = Criterion(relative_error(), reduction=Reduction.MATCHED, label_scale=1.0)
    targets = EmpiricalPrior(data, set_size=8)
    return Game(SharedGradient(network, (64,)), Uninformed(), None, criterion, targets=targets)


def digits_heads() -> Game[TransferHead, StratifiedPrior]:
    """Heads for the digits 5 to 9 on a backbone that learned 0 to 4; one picture per class, a weak adversary."""
    from remanence.adversary.stratified import StratifiedPrior
    from remanence.game import Game
    from remanence.mechanisms.heads.transfer_head import TransferHead
    from remanence.scoring.distances import nearest_neighbour_errors
    from remanence.scoring.errors import Criterion, Reduction, mean_squared_error

    public, private = digits_transfer()
    threshold = float(nearest_neighbour_errors(private, public).mean())
    criterion = Criterion(mean_squared_error, threshold, Reduction.CLASS)
    head = TransferHead(classes=5, epochs=32, learning_rate=0.05, weight_decay=1e-5)
    return Game(head, StratifiedPrior(public), None, criterion, targets=StratifiedPrior(private))


def digits_transfer() -> tuple[Records, Records]:
    """The digits 5 to 9 as classes 0 to 4, embedded by a network that learned the digits 0 to 4 in four turns.

    The first part is public: what the adversary holds. The second is what heads are trained on.
    """
    from remanence.data.records import Records
    from remanence.mechanisms.heads.embedding import embed

    backbone, pictures, labels, order = digits_backbone()
    new = labels >= 5
    embedded = embed(Records(pictures[new], labels[new] - 5)[order], backbone)
    return embedded[:600], embedded[600:]


def digits_backbone() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The network, all digits with their labels, and the order in which those from 5 up are handed out."""
    import torch
    from torch import nn

    digits = _raw("digits", scale=8.0)
    pictures, labels = digits.features.float().unflatten(1, (8, 8)) - 1, digits.labels
    old, turns = labels < 5, 4
    seen = torch.cat([torch.rot90(pictures[old], k, (1, 2)) for k in range(turns)])
    answers = torch.cat([labels[old] * turns + k for k in range(turns)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5 * turns)
        network = nn.Sequential(nn.Flatten(), *layers)
        optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
        for _ in range(600):
            batch = torch.randint(len(seen), (256,))
            loss = nn.functional.cross_entropy(network(seen[batch]), answers[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        order = torch.randperm(int((~old).sum()))
    return network[:-1], pictures, labels, order


def digits_mlp() -> Game:
    """A small network on 400 pictures; the adversary knows all but one, the recipe and the initial weights."""
    from remanence.adversary.priors import EmpiricalPrior
    from remanence.game import Game
    from remanence.mechanisms.networks.perceptron import Perceptron
    from remanence.mechanisms.networks.sgd import SGD
    from remanence.scoring.distances import nearest_neighbour_errors
    from remanence.scoring.errors import Criterion, mean_squared_error

    known, public, private = digits_split()
    threshold = float(nearest_neighbour_errors(private, public).mean())
    mechanism = SGD(Perceptron((64, 10, 10)), 50, 0.2, 0.9, initial_seed=0)
    criterion = Criterion(mean_squared_error, threshold)
    return Game(mechanism, EmpiricalPrior(public), known, criterion, targets=EmpiricalPrior(private))


def digits_split() -> tuple[Records, Records, Records]:
    """Pictures with pixels in [0, 1]: known training records, the adversary's own, and the targets."""
    import torch

    from remanence.data.records import Records

    digits = _raw("digits", scale=16.0)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    data = Records(digits.features.float().unflatten(1, (8, 8)), digits.labels)[order]
    return data[:400], data[400:1500], data[1500:]


def tiny_text() -> Texts:
    """A tiny language model fine-tuned on 60 made-up names with codes of four digits, beside its base."""
    from remanence.games.texts.audit_text import text_game
    from remanence.games.texts.claims import Planted
    from remanence.games.texts.tiny import tiny_pair

    base, model, mine, unseen = tiny_pair()
    return text_game(model, mine, base=base, unseen=unseen, planted=Planted(10**4))


TARGETS: dict[str, Callable[[], AnyGame]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        breast_cancer_logistic,
        breast_cancer_sloppy,
        digits_logistic,
        diabetes_ridge,
        wine_pipeline,
        diabetes_shortlist,
        digits_noisy_sum,
        digits_dpsgd,
        digits_dpsgd_poisson,
        digits_heads,
        digits_mlp,
        digits_gradient,
        tiny_text,
    )
}


def _raw(name: str, scale: float = 1.0) -> Records:
    import torch
    from sklearn import datasets

    from remanence.data.records import Records

    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return Records(torch.from_numpy(features / scale), torch.from_numpy(labels))


def _fitted(estimator: Any, name: str) -> LeaveOneOut:
    from remanence.integrations.sklearn import leave_one_out

    data = _raw(name)
    features, labels = data.features.numpy(), data.labels.numpy()
    return replace(leave_one_out(estimator.fit(features, labels), features, labels), columns=_columns(name))


def _columns(name: str) -> tuple[str, ...]:
    from sklearn import datasets

    return tuple(map(str, getattr(datasets, f"load_{name}")().feature_names))


def _standardised(name: str) -> Records:
    from remanence.data.records import Records
    from remanence.mechanisms.glm.units import standard_units

    data = _raw(name)
    mean, deviation = standard_units(data)
    return Records((data.features - mean) / deviation, data.labels)
