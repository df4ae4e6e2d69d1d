"""What is said about the very head that was released."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.heads.this_head import PictureExposure, ThisHead


def released(result: AuditResult) -> str:
    """What the table about the released head shows."""
    best, found = result.strongest, result.strongest.pictures
    back = sum(picture.came_back for picture in found)
    head = best.this_head
    belongs = "" if head is None else f" (p = {float(head.fit):.2g})"
    return (
        f"From this very head, a picture of {back} of its {len(found)} classes came back. The rates above are about "
        f"other heads that the recipe makes; this one is like them{belongs}.{told_apart(head)} {best.attack} drew one "
        "picture of each class. The table names the closest of your pictures, by its position. A picture came back if "
        "two things hold: it is within the threshold, and it is closer than public pictures are, by more than chance. "
        "Of those that came back, expect at most one in twenty to be chance, if your pictures and the public ones are "
        "of one kind."
    )


def told_apart(head: ThisHead | None) -> str:
    """Whether the test of belonging can tell a head on these pictures from one on similar pictures."""
    if head is None or head.power is None:
        return ""
    measured = f"{head.power.successes} of {head.power.trials} heads on other pictures of the same classes"
    if head.made_like_this:
        return f" The test of that refused {measured}."
    return (
        f" This test cannot tell whether these pictures or similar ones were used: it refused only {measured}. "
        "So the verdict does not rest on those rates."
    )


def came_back(picture: PictureExposure) -> str:
    """Whether a picture came back, or what it takes to tell."""
    if picture.undecided:
        return f"undecided: {picture.public_needed} public pictures needed"
    return "yes" if picture.came_back else "no"
