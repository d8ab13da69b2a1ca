"""Runs a federation under a malicious server on one process or two: `malicious_script.py devices folder`."""

import json
import sys
import warnings
from pathlib import Path

from malicious_kit import attacked

from app.attacks.reconstruction.active.rolling_model import RollingModel


def outcome(devices: int) -> dict:
    """What was isolated and recovered."""
    warnings.filterwarnings("ignore")
    strategy = {"strategy": "ddp", "devices": devices} if devices > 1 else {}
    sizes, capacities = (4, 4, 2, 2, 2), [1.0, 0.5, 0.25, 0.25, 0.25]
    server, found, federation = attacked(RollingModel(), sizes, capacities, trainer=strategy)
    result = found[0].result
    return {
        "world": federation.trainer.world_size,
        "rank": federation.global_rank,
        "error": server._isolation_error,
        "change": server._isolated.change.tolist(),
        "recovered": result.oracle.recovered,
        "keys": [[score.client, score.sample, round(score.pearson, 9)] for score in result.per_image],
    }


if __name__ == "__main__":
    result = outcome(int(sys.argv[1]))
    if result["rank"] == 0:
        Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps(result))
