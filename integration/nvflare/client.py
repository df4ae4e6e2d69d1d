"""One step of SGD on eight digits, by NVFLARE's client API."""

import nvflare.client as flare
import torch
from network import make
from sklearn.datasets import load_digits
from torch import nn

RATE = 0.1


def main() -> None:
    flare.init()
    pixels, labels = load_digits(return_X_y=True)
    start = 8 * int(flare.get_site_name().rsplit("-", 1)[1])
    inputs = torch.tensor(pixels[start : start + 8] / 8 - 1, dtype=torch.float32)
    while flare.is_running():
        received = flare.receive()
        model = make()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        nn.functional.cross_entropy(model(inputs), torch.tensor(labels[start : start + 8])).backward()
        optimiser.step()
        flare.send(
            flare.FLModel(params=model.state_dict(), params_type="FULL", meta={"NUM_STEPS_CURRENT_ROUND": 1})
        )


if __name__ == "__main__":
    main()
