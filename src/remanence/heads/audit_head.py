"""Before a transfer-learned classifier is published: which of its training pictures come back out of its head?"""

from __future__ import annotations

from torch import Tensor, nn

from remanence.auditing import AuditResult, audit
from remanence.core.records import Records
from remanence.heads.head import Head
from remanence.heads.head_game import HeadAudit, head_game
from remanence.heads.reading import HeadWeights
from remanence.heads.this_head import PictureExposure, ThisHead
from remanence.results.verdict import Policy


def audit_head(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    recipe: Head,
    *,
    prior: Records,
    released: HeadWeights | None = None,
    settings: HeadAudit | None = None,
) -> AuditResult:
    """Attack heads that are trained by your recipe on your pictures; the adversary holds only pictures like them.

    `prior` are public pictures of the same kind with their labels, which the adversary trains on. Give the backbone,
    or the features of your pictures and a `prior` that has its own as `embedding`. Every trial trains a new head, with
    fresh initial weights, on all of your pictures. The control holds what comes out of heads on public pictures against
    yours. The linear reader attacks first, and then a network that starts from it.

    `released` is the head that you are about to publish: its module, its state dict or a file of it. Heads are made
    anew by the recipe, and where this one is not like them (`MisfitError`) there is no verdict. Otherwise there are two
    answers: how often pictures come back out of heads made like this (the rates), and which pictures come back out of
    this head (`exposed_pictures(result)`), each with its own test against public ones. The verdict is EXPOSED if
    either is. Every rate stands beside what the linear reader draws from the true features: what heads withhold of
    that is protected by the head, and the rest by the backbone. A recipe with a `noise_multiplier`
    comes with a proven ceiling, so that the verdict may be PROTECTED.
    """
    settings = settings or HeadAudit()
    game = head_game(
        backbone_or_features, images, labels, recipe, prior=prior, released=released, settings=settings
    )
    return audit(
        game,
        settings.attacks,
        policy=None if settings.limit is None else Policy(settings.limit),
        trials=settings.trials,
        seed=settings.seed,
        device=settings.device,
        target=settings.target,
    )


def exposed_pictures(result: AuditResult) -> list[PictureExposure]:
    """What came back out of the released head, the closest first; empty if none was given.

    By the attack that does best on heads made like it. The chances assume that your pictures and the public ones are
    draws of one kind.
    """
    heads = [each for each in result.strongest.findings if isinstance(each, ThisHead)]
    return heads[0].pictures() if heads else []
