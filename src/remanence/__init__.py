"""Remanence tells you how much of your training data can be read back out of what you release.

From both sides of one inequality: what the best attack recovers (measured, a lower limit) and what
no attack can exceed (proven, an upper limit). Start with `remanence.game`.
"""

import lazy_loader

# Loaded on first use, so that `import remanence` and the command line start without torch.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _load(name)
