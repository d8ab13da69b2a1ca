"""Which channels of the server's network a client trains: one file per family of methods."""

from app.federation.submodels.base import ClientRound, LocalWidths, SubmodelMethod
from app.federation.submodels.fedrolex import FedRolex
from app.federation.submodels.fjord import FjORD
from app.federation.submodels.integration import PRESETS, ChannelSubset
from app.federation.submodels.prefix import Prefix

__all__ = ["PRESETS", "FedRolex", "FjORD", "ChannelSubset", "LocalWidths", "Prefix", "ClientRound", "SubmodelMethod"]
