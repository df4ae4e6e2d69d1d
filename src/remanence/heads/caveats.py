"""Reasons not to trust an audit of heads, each with its meaning and its remedy."""

from remanence.results.caveats import Caveat

THIS_HEAD_GIVES_LESS = Caveat(
    "this-head-gives-less",
    "at most one in twenty of the heads made like this, this one included, give away as few pictures as it does.",
    "The rates are about heads made like this, and this head gives away fewer pictures. It may have been trained on "
    "other pictures, or by another recipe, though the test of whether it belongs did not refuse it.",
    "Check the pictures and the recipe. The pictures recovered from this head are listed separately.",
)
SIMILAR_PICTURES = Caveat(
    "similar-pictures",
    "fewer than nine in ten of the heads that the recipe makes from other pictures of the same classes are refused.",
    "The test of whether the head belongs cannot tell whether these pictures or similar ones were used. The rates are "
    "about heads on your pictures, and this head may not be one, so the verdict does not rest on them.",
    "Rely on the pictures recovered from this head. Make sure that it was trained on the pictures you gave.",
)
