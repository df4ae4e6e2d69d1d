"""Ways in which training may depend on a setting: each is in the key, or refused until it has a version.

A way is the source of a module that trains, and a statement that changes the setting afterwards.
"""

import importlib
import sys

import pytest
import torch

from remanence import looped
from remanence.core.exceptions import InputError
from remanence.scale.fingerprints import arithmetic, changed, fingerprint, parts

WAYS = {
    "a number": ("RATE = 1\ndef train(x): return x * RATE", "RATE = 2"),
    "a tuple": ("RATES = (1, 2)\ndef train(x): return x * RATES[0]", "RATES = (3, 2)"),
    "a dict": ("RATES = {'a': 1}\ndef train(x): return x * RATES['a']", "RATES['a'] = 2"),
    "a list": ("RATES = [1]\ndef train(x): return x * RATES[0]", "RATES.append(2)"),
    "an object": (
        "class Recipe:\n    rate = 1\nrecipe = Recipe()\ndef train(x): return x * recipe.rate",
        "recipe.rate = 2",
    ),
    "a class": ("class Recipe:\n    rate = 1\ndef train(x): return x * Recipe.rate", "Recipe.rate = 2"),
    "within a lambda": ("RATE = 1\ndef train(x): return (lambda y: y * RATE)(x)", "RATE = 2"),
    "within a comprehension": ("RATE = 1\ndef train(x): return [y * RATE for y in x]", "RATE = 2"),
    "two calls away": (
        "RATE = 1\ndef c(x): return x * RATE\ndef b(x): return c(x)\ndef train(x): return b(x)",
        "RATE = 2",
    ),
    "in a method": (
        "RATE = 1\nclass M:\n    @property\n    def rate(self): return RATE\ndef train(x): return M().rate",
        "RATE = 2",
    ),
    "cached": (
        "import functools\nRATE = 1\n@functools.lru_cache\ndef c(): return RATE\ndef train(x): return c()",
        "RATE = 2",
    ),
    "an array": ("import numpy\nA = numpy.zeros(2)\ndef train(x): return x + A", "A[1] = 1"),
    "a default": ("def train(x, rate=1): return x * rate", "train.__defaults__ = (2,)"),
    "a default by name": ("def train(x, *, rate=1): return x * rate", "train.__kwdefaults__ = {'rate': 2}"),
    "an attribute of the function": ("def train(x): return x * train.rate\ntrain.rate = 1", "train.rate = 2"),
    "how many arguments are one": ("def train(x, rates): return rates", "def train(x, *rates): return rates"),
    "a list in a closure": (
        "rates = [1]\ndef make(r):\n    def train(x): return x * r[0]\n    return train\ntrain = make(rates)",
        "rates[0] = 2",
    ),
    "an object in a closure": (
        "import types\nbox = types.SimpleNamespace(rate=1)\ntrain = (lambda b: lambda x: x * b.rate)(box)",
        "box.rate = 2",
    ),
    "a default of a function within": (
        "RATE = 1\ndef train(x):\n    def inner(y, rate=RATE): return y * rate\n    return inner(x)",
        "RATE = 2",
    ),
    "a class within": (
        "RATE = 1\ndef train(x):\n    class Recipe:\n        rate = RATE\n"
        "    return Recipe.rate",
        "RATE = 2",
    ),
    "a class above": (
        "class Base:\n    rate = 1\nclass Recipe(Base): pass\ndef train(x): return x * Recipe().rate",
        "Base.rate = 2",
    ),
    "a class of classes": (
        "class Meta(type):\n    rate = 1\nclass Recipe(metaclass=Meta): pass\ndef train(x): return x * Recipe.rate",
        "Meta.rate = 2",
    ),
    "a slot": (
        "class Recipe:\n    __slots__ = ('rate',)\nrecipe = Recipe()\nrecipe.rate = 1\n"
        "def train(x): return recipe.rate",
        "recipe.rate = 2",
    ),
    "what a pickle would not hold": (
        "class Recipe:\n    def __getstate__(self): return {}\nrecipe = Recipe()\nrecipe.rate = 1\n"
        "def train(x): return recipe.rate",
        "recipe.rate = 2",
    ),
    "a descriptor": (
        "class Given:\n    def __init__(self, rate): self.rate = rate\n    def __get__(self, *_): return self.rate\n"
        "given = Given(1)\nclass Recipe:\n    rate = given\ndef train(x): return Recipe().rate",
        "given.rate = 2",
    ),
    "a property that was replaced": (
        "class Recipe:\n    rate = property(lambda self: 1)\ndef train(x): return Recipe().rate",
        "Recipe.rate = property(lambda self: 2)",
    ),
    "a method that was replaced": (
        "class Recipe:\n    def step(self, x): return x\ndef train(x): return Recipe().step(x)",
        "Recipe.step = lambda self, x: 2 * x",
    ),
    "a method that is found by its name": (
        "class Recipe:\n    def step_a(self, x): return x\ndef train(x): return getattr(Recipe(), 'step_' + 'a')(x)",
        "Recipe.step_a = lambda self, x: 2 * x",
    ),
    "a decorator": (
        "def times(rate):\n    return lambda f: lambda x: rate * f(x)\ndef plain(x): return x\ntrain = times(1)(plain)",
        "train = times(2)(plain)",
    ),
    "a decorator that wraps": (
        "import functools\nRATE = 1\ndef scaled(f):\n    @functools.wraps(f)\n    def g(x): return RATE * f(x)\n"
        "    return g\n@scaled\ndef train(x): return x",
        "RATE = 2",
    ),
    "a partial": (
        "import functools\nrates = {'rate': 1}\ndef step(x, rate): return x * rate\n"
        "train = functools.partial(step, rate=rates)",
        "rates['rate'] = 2",
    ),
    "a partial method": (
        "import functools\nclass M:\n    def step(self, x, rate): return x * rate\n"
        "    half = functools.partialmethod(step, rate=1)\ndef train(x): return M().half(x)",
        "M.half = functools.partialmethod(M.step, rate=2)",
    ),
    "one function for each type": (
        "import functools\n@functools.singledispatch\ndef step(x): return x\ndef train(x): return step(x)",
        "step.register(float, lambda x: 2 * x)",
    ),
    "the order of a dict": (
        "STEPS = {'a': 1, 'b': 2}\ndef train(x): return [x * s for s in STEPS.values()]",
        "STEPS['a'] = STEPS.pop('a')",
    ),
    "a default of a dict": (
        "import collections\nRATES = collections.defaultdict(int)\ndef train(x): return RATES['a']",
        "RATES.default_factory = float",
    ),
    "a dict of one's own": (
        "class Rates(dict):\n    def __missing__(self, key): return 1\nRATES = Rates()\n"
        "def train(x): return RATES['a']",
        "Rates.__missing__ = lambda self, key: 2",
    ),
    "an attribute of a list": (
        "class Rates(list): pass\nRATES = Rates()\nRATES.rate = 1\ndef train(x): return RATES.rate",
        "RATES.rate = 2",
    ),
    "a number of one's own": (
        "class Rate(float):\n    def half(self): return self / 2\nRATE = Rate(1)\ndef train(x): return RATE.half()",
        "Rate.half = lambda self: self / 3",
    ),
    "a method of an enumeration": (
        "import enum\nclass Kind(enum.Enum):\n    A = 1\n    def rate(self): return 1\n"
        "def train(x): return Kind.A.rate()",
        "Kind.rate = lambda self: 2",
    ),
    "a field that is not compared": (
        "import dataclasses\n@dataclasses.dataclass\nclass Recipe:\n    rate: int = dataclasses.field(compare=False)\n"
        "recipe = Recipe(1)\ndef train(x): return recipe.rate",
        "recipe.rate = 2",
    ),
    "more than the fields": (
        "import dataclasses\n@dataclasses.dataclass\nclass Recipe:\n    a: int = 0\nrecipe = Recipe()\n"
        "recipe.rate = 1\ndef train(x): return recipe.rate",
        "recipe.rate = 2",
    ),
    "what makes a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass Recipe:\n"
        "    rate: list = dataclasses.field(default_factory=lambda: [1])\ndef train(x): return Recipe().rate",
        "@dataclasses.dataclass\nclass Recipe:\n    rate: list = dataclasses.field(default_factory=lambda: [2])",
    ),
    "a named tuple": (
        "import collections\nR = collections.namedtuple('R', 'rate', defaults=[1])\ndef train(x): return R().rate",
        "R.__new__.__defaults__ = (2,)",
    ),
    "a number's sign": ("RATE = 0.0\ndef train(x): return x / RATE", "RATE = -0.0"),
    "a generator of numpy": (
        "import numpy\nrng = numpy.random.default_rng(0)\ndef train(x): return rng.normal()",
        "rng.normal()",
    ),
    "an old generator of numpy": (
        "import numpy\nrng = numpy.random.RandomState(0)\ndef train(x): return rng.normal()",
        "rng.seed(1)",
    ),
    "a generator of Python": (
        "import random\nrng = random.Random(0)\n"
        "def train(x): return rng.random()",
        "rng.seed(1)",
    ),
    "a counter": ("import itertools\ncount = itertools.count()\ndef train(x): return next(count)", "next(count)"),
    "an array's mask": (
        "import numpy\nA = numpy.ma.masked_array([1.0, 2.0], [True, False])\ndef train(x): return x + A",
        "A.mask = [False, True]",
    ),
    "an array of objects": (
        "import numpy\nA = numpy.array([[1], None], dtype=object)\ndef train(x): return A",
        "A[0].append(2)",
    ),
    "a vectorised function": (
        "import numpy\nRATE = 1\ndef one(x): return x * RATE\ntrain = numpy.vectorize(one)",
        "RATE = 2",
    ),
    "a buffer": (
        "import torch\nnet = torch.nn.BatchNorm1d(2)\ndef train(x): return net(x)",
        "net.running_mean += 1",
    ),
    "a buffer that is not saved": (
        "import torch\nnet = torch.nn.Module()\nnet.register_buffer('rate', torch.ones(1), persistent=False)\n"
        "def train(x): return net.rate",
        "net.rate += 1",
    ),
    "a module's mode": ("import torch\nnet = torch.nn.Dropout()\ndef train(x): return net(x)", "net.eval()"),
    "a hook": (
        "import torch\nnet = torch.nn.Linear(1, 1)\ndef train(x): return net(x)",
        "net.register_forward_hook(lambda *a: a[-1] * 2)",
    ),
    "whether a tensor learns": (
        "import torch\nW = torch.ones(1)\ndef train(x): return W * x",
        "W.requires_grad_()",
    ),
    "an attribute of a tensor": (
        "import torch\nW = torch.ones(1)\nW.rate = 1\n"
        "def train(x): return W.rate",
        "W.rate = 2",
    ),
    "a global by its name": ("RATE = 1\ndef train(x): return x * globals()['RA' + 'TE']", "RATE = 2"),
    "text that is evaluated": ("RATE = 1\ndef train(x): return x * eval('RA' + 'TE')", "RATE = 2"),
    "a variable of the environment": (
        "import os\nos.environ['REMANENCE_RATE'] = '1'\ndef train(x): return x * float(os.environ['REMANENCE_RATE'])",
        "os.environ['REMANENCE_RATE'] = '2'",
    ),
    "one that is asked for": (
        "import os\nos.environ['REMANENCE_RATE'] = '1'\ndef train(x): return float(os.getenv('REMANENCE_RATE', 3))",
        "os.environ['REMANENCE_RATE'] = '2'",
    ),
    "one whose name is a setting": (
        "import os\nNAME = 'REMANENCE_RATE'\nos.environ[NAME] = '1'\ndef train(x): return os.environ.get(NAME)",
        "os.environ[NAME] = '2'",
    ),
    "a function that replaced a library's": (
        "import math\ndef train(x): return math.remanence(x)\nmath.remanence = lambda x: x",
        "math.remanence = lambda x: 2 * x",
    ),
    "a setting of a library": (
        "import decimal\ndecimal.remanence = 1\ndef train(x): return x * decimal.remanence",
        "decimal.remanence = 2",
    ),
    "a method of a library's class": (
        "import fractions\nfractions.Fraction.remanence = lambda self: 1\n"
        "def train(x): return fractions.Fraction(1).remanence()",
        "fractions.Fraction.remanence = lambda self: 2",
    ),
    "a new word of Python's": (
        "import builtins\nbuiltins.REMANENCE = 1\ndef train(x): return x * REMANENCE",
        "builtins.REMANENCE = 2",
    ),
    "a module without a file": (
        "import types\nsettings = types.ModuleType('settings')\nsettings.rate = 1\ndef train(x): return settings.rate",
        "settings.rate = 2",
    ),
    "a file that is named": (
        "import pathlib\npathlib.Path('settings.txt').write_text('1')\n"
        "def train(x): return open('settings.txt').read()",
        "pathlib.Path('settings.txt').write_text('2')",
    ),
    "a file that a setting names": (
        "import pathlib\nFILE = pathlib.Path('settings.txt')\nFILE.write_text('1')\n"
        "def train(x): return FILE.read_text()",
        "FILE.write_text('2')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_setting_counts_however_training_comes_by_it(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMANENCE_RATE", "0")
    source, change = WAYS[way]
    module = {"__name__": "somebodys_training"}
    exec(source, module)  # noqa: S102
    before = parts(train=module["train"])
    assert parts(train=module["train"]) == before
    exec(change, module)  # noqa: S102
    assert changed(before, parts(train=module["train"]))


REFUSED = {
    "a generator under way": "steps = (n for n in range(3))\ndef train(x): return next(steps)",
    "a variable of a context": (
        "import contextvars\nRATE = contextvars.ContextVar('rate')\n"
        "def train(x): return RATE.get()"
    ),
    "values of a thread": "import threading\nbox = threading.local()\ndef train(x): return box.rate",
    "a lock within an object": (
        "import threading\nclass Box:\n    def __getstate__(self): return {}\nbox = Box()\n"
        "box.lock = threading.Lock()\ndef train(x): return box"
    ),
    "a function within a ufunc": "import numpy\ntrain = numpy.frompyfunc(lambda x: 2 * x, 1, 1)",
    "a tensor without contents": "import torch\nW = torch.empty(2, device='meta')\ndef train(x): return W",
    "an object that does not tell": (
        "class Box:\n    def __reduce_ex__(self, n): raise ValueError\nbox = Box()\ndef train(x): return box"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_seen_needs_a_version(way):
    module = {"__name__": "somebodys_training"}
    exec(REFUSED[way], module)  # noqa: S102
    with pytest.raises(InputError, match="version="):
        fingerprint(looped(module["train"]))


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("import mine_settings as m\ndef train(x): return m.rate", "rate"),
        ("import mine_settings\ndef train(x): return getattr(mine_settings, 'ra' + 'te')", "rate"),
        ("import mine_settings\ndef train(x): return vars(mine_settings)['ra' + 'te']", "rate"),
        ("from mine_settings import table\ndef train(x): return table['rate']", "table"),
        ("import mine_package.inner\ndef train(x): return mine_package.inner.rate", "inner"),
    ],
)
def test_a_value_that_was_set_in_a_module_counts(source, change, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_settings.py").write_text("rate = 1\ntable = {'rate': 1}\n")
    (tmp_path / "mine_package").mkdir()
    (tmp_path / "mine_package/__init__.py").write_text("")
    (tmp_path / "mine_package/inner.py").write_text("rate = 1\n")
    importlib.invalidate_caches()
    try:
        module = {"__name__": "target", "__file__": str(tmp_path / "target.py")}
        exec(source, module)  # noqa: S102
        before = parts(train=module["train"])
        assert parts(train=module["train"]) == before
        if change == "table":
            sys.modules["mine_settings"].table["rate"] = 2
        else:
            owner = "mine_settings" if change == "rate" else "mine_package.inner"
            monkeypatch.setattr(sys.modules[owner], "rate", 2)
        assert changed(before, parts(train=module["train"]))
    finally:
        for name in ("mine_settings", "mine_package", "mine_package.inner"):
            sys.modules.pop(name, None)


def test_how_torch_computes_is_part_of_the_key():
    before = arithmetic()
    try:
        torch.set_default_dtype(torch.float64)
        assert arithmetic() != before
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert arithmetic() != before
    finally:
        torch.use_deterministic_algorithms(False)
    assert arithmetic() == before
