"""Training in several processes, one core each: MLX's ring over the loopback. Two processes of one BLAS thread each train faster than one of two.

Every process runs the same steps on its part of each batch; gradients are averaged. Knows no network and no data.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxspec.errors import MlxspecError
from mlxspec.training.loop import keep_memory

OPENBLAS = "/usr/lib/{}-linux-gnu/openblas-pthread/libopenblas.so.0"


class Team:
    """This process among those that train together; alone it is a team of one."""

    def __init__(self) -> None:
        self.group = mx.distributed.init(strict=True, backend="ring") if "MLX_HOSTFILE" in os.environ else None
        self.rank = self.group.rank() if self.group is not None else 0
        self.size = self.group.size() if self.group is not None else 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, batch: Sequence[Any]) -> Sequence[Any]:
        """This process's part of a batch: every ``size``-th of it."""
        return batch[self.rank :: self.size]

    def averaged(self, gradients: Any) -> Any:
        return nn.average_gradients(gradients, self.group) if self.group is not None else gradients

    def total(self, x: mx.array) -> mx.array:
        return mx.distributed.all_sum(x, group=self.group) if self.group is not None else x

    def agreed(self, value: float) -> float:
        """The leader's value, for all."""
        return float(self.total(mx.array(value if self.leads else 0.0)).item())  # type: ignore[arg-type]

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return float(self.total(mx.array(float(flag))).item()) > 0  # type: ignore[arg-type]

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The others wait until the leader is through."""
        if not self.leads:
            self.any(False)
        yield
        if self.leads:
            self.any(False)


def command(module: str, given: argparse.Namespace, argv: Sequence[str] | None, work: Callable[[Team, Callable[[str], None]], None]) -> int:
    """Do a recipe's work in the processes it was given; returns the exit code. What fails is said in one line, by the leader."""
    if given.processes > 1:
        return run_team(module, [*(sys.argv[1:] if argv is None else argv), "--processes=1"], given.processes)
    keep_memory()
    team = Team()

    def say(text: str) -> None:
        if team.leads:
            print(text, file=sys.stderr, flush=True)

    try:
        work(team, say)
    except MlxspecError as error:
        say(f"{module}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def run_team(module: str, argv: Sequence[str], processes: int) -> int:
    """Run ``python -m module argv`` in processes that train together; returns the exit code. Ctrl-C reaches them all, and they end in step."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in _free_ports(processes)]))
        environ = {**os.environ, "MLX_HOSTFILE": str(hosts), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        library = OPENBLAS.format(os.uname().machine)
        if sys.platform == "linux" and os.path.exists(library):
            environ["LD_PRELOAD"] = library
        command = [sys.executable, "-m", module, *argv]
        team = [subprocess.Popen(command, env={**environ, "MLX_RANK": str(rank)}) for rank in range(processes)]
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # theirs to act on
        try:
            codes = [process.wait() for process in team]
        finally:
            signal.signal(signal.SIGINT, before)
            for process in team:
                process.kill()
    return next((code for code in codes if code), 0)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
