"""One process of a team, for tests: writes what it saw to a folder."""

import json
import sys
from pathlib import Path

import mlx.core as mx

from mlxspec.recipes.two_processes import Team

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    team = Team()
    with team.leader_first():
        seen = sorted(path.name for path in folder.iterdir())
        (folder / f"{team.rank}.mark").write_text("")
    told = {
        "share": list(team.share(range(5))),
        "averaged": team.averaged({"a": mx.array([float(team.rank), 2.0])})["a"].tolist(),
        "agreed": team.agreed(7.5 if team.leads else 99.0),
        "any": [team.any(team.rank == 1), team.any(False)],
        "seen": seen,
    }
    (folder / f"{team.rank}.json").write_text(json.dumps(told))
    sys.exit(3 if len(sys.argv) > 2 and team.rank == 1 else 0)
