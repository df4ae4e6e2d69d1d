"""Counts torch operations: times cannot be asserted on shared machines, operations can."""

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """How many operations torch was asked for inside the `with`."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(work) -> int:
    """The number of torch operations that `work()` takes."""
    with Operations() as counted:
        work()
    return counted.count
