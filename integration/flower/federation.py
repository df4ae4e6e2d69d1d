"""A federation of two clients in Flower's own simulation: one step each, with one of the mods in place.

python integration/flower/federation.py record FOLDER     # keeps every update
python integration/flower/federation.py withhold          # prints how many updates came through
"""

from __future__ import annotations

import sys

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from network import make
from torch import nn

from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.flower import record_updates, withhold_exposed

RATE = 0.1


def client(mods: list) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context) -> Message:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        model = make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        start = 8 * (context.node_config["partition-id"] + 1)
        inputs = torch.tensor(pixels[start : start + 8] / 8 - 1, dtype=torch.float32)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        nn.functional.cross_entropy(model(inputs), torch.tensor(labels[start : start + 8])).backward()
        optimiser.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 8})}
        return Message(RecordDict(content), reply_to=message)

    return app


class Counting(FedAvg):
    """FedAvg that says how many updates it was sent."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        print("updates:", sum(not reply.has_error() for reply in replies), "of", len(replies), flush=True)
        return super().aggregate_train(server_round, replies)


def server() -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, context) -> None:
        strategy = Counting(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=1)

    return app


if __name__ == "__main__":
    kind = sys.argv[1]
    mod = (
        record_updates(sys.argv[2])
        if kind == "record"
        else withhold_exposed(make, Declared(LocalTraining(1, RATE)))
    )
    run_simulation(
        server_app=server(),
        client_app=client([mod]),
        num_supernodes=2,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
