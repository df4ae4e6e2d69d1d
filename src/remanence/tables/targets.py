"""Built-in tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remanence.core.examples import column_names, example

if TYPE_CHECKING:
    from remanence.core.records import Records
    from remanence.game import Game
    from remanence.tables.game import LeaveOneOut
    from remanence.tables.glm.model import GLM


def breast_cancer_logistic() -> LeaveOneOut[GLM]:
    """Logistic regression at its exact optimum (569 patients, standardised, C = 0.01)."""
    return _exact(_standardised("breast_cancer"), 100.0, column_names("breast_cancer"))


def breast_cancer_sloppy() -> LeaveOneOut:
    """The same patients, fitted with scikit-learn's default C and tolerance: hidden by accident."""
    from sklearn.linear_model import LogisticRegression

    return _fitted(LogisticRegression(), "breast_cancer", _standardised("breast_cancer"))


def digits_logistic() -> LeaveOneOut[GLM]:
    """Ten-class logistic regression on 1,797 pictures of digits, pixels in [0, 1]."""
    return _exact(example("digits", scale=16.0), 1.0)


def diabetes_ridge() -> LeaveOneOut:
    """scikit-learn's own Ridge on 442 patients: records and the disease score come back."""
    from sklearn.linear_model import Ridge

    return _fitted(Ridge(alpha=1.0), "diabetes", example("diabetes"))


def wine_pipeline() -> LeaveOneOut:
    """A StandardScaler and LogisticRegression with defaults on 178 wines: the scaler alone leaks."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return _fitted(make_pipeline(StandardScaler(), LogisticRegression()), "wine", example("wine"))


def diabetes_shortlist() -> Game:
    """Ridge with noise on the weights; the target is one of 20 patients, and guessing finds 1 in 20."""
    from remanence.core.errors import Criterion, relative_error
    from remanence.core.priors import FinitePrior
    from remanence.game import Game
    from remanence.tables.glm.families import Gaussian
    from remanence.tables.glm.model import GLM

    data = _standardised("diabetes")
    mechanism, criterion = GLM(Gaussian(), penalty=10.0, noise=0.1), Criterion(relative_error(), 1e-2)
    return Game(mechanism, FinitePrior(data[:20]), data[20:], criterion)


def _exact(data: Records, penalty: float, columns: tuple[str, ...] = ()) -> LeaveOneOut[GLM]:
    from remanence.core.errors import Criterion, relative_error
    from remanence.tables.game import LeaveOneOut
    from remanence.tables.glm.families import Logistic, Multinomial
    from remanence.tables.glm.model import GLM

    classes, criterion = int(data.labels.max()) + 1, Criterion(relative_error(), label_scale=1.0)
    mechanism = GLM(Logistic() if classes == 2 else Multinomial(classes), penalty=penalty)
    return LeaveOneOut(mechanism, data, criterion, columns=columns)


def _fitted(estimator: Any, name: str, data: Records) -> LeaveOneOut:
    from remanence.tables.sklearn import leave_one_out

    features, labels = data.features.numpy(), data.labels.numpy()
    game = leave_one_out(estimator.fit(features, labels), features, labels)
    return replace(game, columns=column_names(name))


def _standardised(name: str) -> Records:
    """The same with features of mean 0 and deviation 1."""
    from remanence.core.records import Records
    from remanence.tables.glm.model import standard_units

    data = example(name)
    mean, deviation = standard_units(data)
    return Records((data.features - mean) / deviation, data.labels)
