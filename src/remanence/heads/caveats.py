"""Reasons not to trust an audit of heads, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

THIS_HEAD_GIVES_LESS = Caveat(
    "this-head-gives-less",
    "at most one in twenty of the heads made like this, this one included, give back as few pictures as it does.",
    "The rates are about heads made like this, and this head gives back fewer pictures. It may have been trained on "
    "other pictures, or otherwise than declared, though the test of whether it belongs did not refuse it.",
    "Check the pictures and the recipe. What came back out of this very head is listed by itself.",
)
SIMILAR_PICTURES = Caveat(
    "similar-pictures",
    "of heads that the recipe makes from other pictures of the same classes, fewer than nine in ten are refused.",
    "The test of whether the head belongs cannot tell whether these pictures or similar ones were used. The rates are "
    "about heads on your pictures, and this head may not be one, so the verdict does not rest on them.",
    "Go by what came back out of this very head. Make sure that these are the pictures that it was trained on.",
)
