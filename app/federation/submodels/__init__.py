"""Which channels of the server's network a client trains: one file per family of methods."""

from app.federation.submodels.base import LocalWidths, Seat, SubmodelMethod
from app.federation.submodels.fedrolex import FedRolex
from app.federation.submodels.fjord import FjORD
from app.federation.submodels.integration import PRESETS, Integration
from app.federation.submodels.prefix import Prefix

__all__ = [
    "PRESETS",
    "FedRolex",
    "FjORD",
    "Integration",
    "LocalWidths",
    "Prefix",
    "Seat",
    "SubmodelMethod",
]
