"""No hot path takes more torch operations where there are more trials: a loop over them once went unseen."""

import torch

from operations import operations
from remanence import Weights


def test_release_checks_do_not_loop_over_trials():
    def checked(trials):
        release = Weights({"weight": torch.zeros(trials, 3, 2), "bias": torch.zeros(trials, 2)})
        return operations(release.not_finite)

    assert checked(10) == checked(1000) <= 30


def test_release_checks_find_every_number_that_is_not_finite():
    weight, count = torch.zeros(5, 3, 2), torch.ones(5, dtype=torch.int64)
    weight[1, 2, 1], weight[3, 0, 0] = torch.nan, -torch.inf
    found = Weights({"weight": weight, "count": count}).not_finite()
    assert found.tolist() == [False, True, False, True, False]
