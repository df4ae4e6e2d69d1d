"""Shadow networks per second (Balle et al. 2022's reduced setting), and how exact their weights are.

python benchmarks/networks.py                       # one thread of a CPU, beside a loop over modules
python benchmarks/networks.py --device cuda --jax   # a GPU, beside a plain vmapped loop in JAX
python benchmarks/networks.py --device cuda --profile
"""

import argparse

import torch
from torch import nn

from remanence import SGD, Perceptron, Records
from shadows import seconds

EPOCHS, RATE, MOMENTUM = 100, 0.1, 0.9


def data(device: str, known: int, count: int) -> tuple[Records, Records]:
    """Sparse pixels as in handwriting: dense ones make training unstable, and rounding would decide the weights."""
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.rand(known + count, 784, device=device, generator=generator)
    pixels = pixels * (torch.rand(pixels.shape, device=device, generator=generator) < 0.1)
    labels = torch.randint(10, (known + count,), device=device, generator=generator)
    return Records(pixels[:known], labels[:known]), Records(pixels[known:, None], labels[known:, None])


def precision(training: SGD, known: Records, targets: Records) -> None:
    """How far weights are from those of double precision, in units of what a target changes."""
    exact = plain(training, known, targets, torch.float64)
    ours = training.release(known, targets, torch.Generator(known.features.device))["parameters"]
    signal = exact.std(0).square().mean().sqrt()
    for name, weights in (("ours", ours), ("plain float32", plain(training, known, targets, torch.float32))):
        off = (weights - exact).square().mean().sqrt()
        print(f"  {name}: off by {float(off / signal):.1e} of what a target changes")


def plain(training: SGD, known: Records, targets: Records, dtype: torch.dtype) -> torch.Tensor:
    """The same training without a reference, in any precision."""
    network = training.network
    start = network.initial(1, torch.Generator().manual_seed(0)).to(known.features.device, dtype)
    parameters, velocity = start.expand(len(targets), -1), 0.0
    for _ in range(EPOCHS):
        total = network.clipped_sum(parameters, known[None], max_norm=None)
        total = total + network.clipped_sum(parameters, targets, max_norm=None)
        velocity = MOMENTUM * velocity + total / (len(known) + 1)
        parameters = parameters - RATE * velocity
    return parameters


def loop(training: SGD, known: Records, targets: Records) -> float:
    """Models per second of a loop over modules, which must end at the same weights."""
    network, trained = training.network, []
    assert isinstance(network, Perceptron)
    start = network.initial(1, torch.Generator().manual_seed(0))

    def one_by_one() -> None:
        trained.clear()
        for target in range(len(targets)):
            layers = [nn.Linear(784, 10), nn.Linear(10, 10)]
            for layer, (w, b) in zip(layers, network.layers(start), strict=True):
                layer.weight.data, layer.bias.data = w[0].clone(), b[0].clone()
            module = nn.Sequential(layers[0], nn.ELU(), layers[1])
            optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=MOMENTUM)
            features = torch.cat([known.features, targets.features[target]])
            labels = torch.cat([known.labels, targets.labels[target]])
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(features), labels).backward()
                optimizer.step()
            trained.append(torch.cat([p.data.flatten() for p in module.parameters()]))

    taken = seconds(one_by_one, "cpu")
    ours = training.release(known, targets, torch.Generator())["parameters"]
    print(
        f"  largest difference of a weight to the loop's: {float((torch.stack(trained) - ours).abs().max()):.1e}"
    )
    return len(targets) / taken


def jax_loop(known: Records, targets: Records, at_once: int, precision: str) -> float:
    """Models per second of a vmapped and compiled JAX loop, compilation not counted.

    On a GPU JAX rounds what goes into products to ten bits, unless the `precision` is "highest".
    """
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_default_matmul_precision", precision)
    arrays = [jnp.asarray(tensor.cpu().numpy()) for tensor in (known.flat, known.labels)]
    flat, labels = (jnp.asarray(t[:, 0].cpu().numpy()) for t in (targets.flat, targets.labels))
    first, second = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(first, (784, 10)) / 28, jax.random.normal(second, (10, 10)) / 10**0.5
    start = (weights[0], jnp.zeros(10), weights[1], jnp.zeros(10))

    def loss(parameters, x, y):
        hidden = jax.nn.elu(x @ parameters[0] + parameters[1])
        answers = jax.nn.log_softmax(hidden @ parameters[2] + parameters[3])
        return -jnp.take_along_axis(answers, y[:, None], 1).mean()

    def train(target, label):
        x, y = jnp.concatenate([arrays[0], target[None]]), jnp.concatenate([arrays[1], label[None]])

        def step(_, state):
            parameters, velocity = state
            gradient = jax.grad(loss)(parameters, x, y)
            velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
            return jax.tree.map(lambda p, v: p - RATE * v, parameters, velocity), velocity

        return jax.lax.fori_loop(0, EPOCHS, step, (start, jax.tree.map(jnp.zeros_like, start)))[0]

    together = jax.jit(jax.vmap(train))
    starts = range(0, len(flat) - at_once + 1, at_once)

    def run() -> None:
        for begin in starts:
            part = slice(begin, begin + at_once)
            jax.block_until_ready(together(flat[part], labels[part]))

    run()
    return len(starts) * at_once / seconds(run, "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--count", type=int, help="networks; 10,000 on a GPU, 200 else")
    options = parser.parse_args()
    device, gpu = options.device, options.device == "cuda"
    torch.set_num_threads(1)
    count, known_count = (10_000, 1000) if gpu else (200, 200)
    count = options.count or count
    known, targets = data(device, known_count, count)
    training = SGD(Perceptron((784, 10, 10)), EPOCHS, RATE, MOMENTUM, initial_seed=0)
    chunk = training.trials_at_once(targets)

    def together() -> None:
        for start in range(0, count, chunk):
            training.release(known, targets[start : start + chunk], torch.Generator(device))

    together()
    taken = seconds(together, device)
    rate = count / taken
    print(
        f"{count:,} networks with {known_count} known records on {device}: {taken:.2f} s, {rate:,.0f} per second"
    )
    precision(training, known, targets[:32])
    if not gpu:
        slow = loop(training, known, targets[:10])
        print(f"  a loop over modules: {slow:,.1f} per second; ratio {rate / slow:.1f}")
    if options.jax:
        for name in ("default", "highest"):
            slow = jax_loop(known, targets, 1000 if gpu else 50, name)
            print(
                f"  a vmapped loop in JAX, {name} precision: {slow:,.1f} per second; ratio {rate / slow:.1f}"
            )
    if options.profile:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as found:
            together()
        column = "self_cuda_time_total" if gpu else "self_cpu_time_total"
        print(found.key_averages().table(sort_by=column, row_limit=20, max_name_column_width=70))


if __name__ == "__main__":
    main()
