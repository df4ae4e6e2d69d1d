"""A federation of two clients in NVFLARE's own simulator: one step each, with the guard in place.

python integration/nvflare/federation.py WORKSPACE log|withhold
"""

import sys
from pathlib import Path

from network import Net
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from remanence.updates.nvflare import ExposureGuard, KeepModel

HERE = Path(__file__).parent


def main() -> None:
    workspace, manner = sys.argv[1:]
    job = FedJob(name="guarded", min_clients=2)
    job.to_server(FedAvg(num_clients=2, num_rounds=1))
    job.to_server(PTModel(Net()))
    for site in ("site-1", "site-2"):
        job.to(ScriptRunner(script=str(HERE / "client.py")), site)
        job.to(KeepModel(), site, filter_type=FilterType.TASK_DATA, tasks=["train"])
        guard = ExposureGuard(
            f"{HERE / 'network.py'}:make", 0.1, local_steps=1, withhold=manner == "withhold"
        )
        job.to(guard, site, filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.simulator_run(workspace, n_clients=None, threads=2)


if __name__ == "__main__":
    main()
