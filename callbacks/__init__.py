"""Callbacks of a federated run: defenses, attacks and recorders, one file each."""

from app.federation.transcript_recorder import TranscriptRecorder
from callbacks.attacks.client_canaries import ClientCanaryAudit
from callbacks.attacks.factor_recovery import FactorRecovery
from callbacks.attacks.gradient_ascent import GradientAscent
from callbacks.attacks.image_reconstruction import ImageReconstruction
from callbacks.attacks.malicious_server import MaliciousServer
from callbacks.attacks.membership_inference import MembershipInference
from callbacks.attacks.sample_canaries import SampleCanaryAudit
from callbacks.attacks.source_inference import SourceInference
from callbacks.defenses.adversarial_regularisation import AdversarialRegularisation
from callbacks.defenses.client_early_stopping import ClientEarlyStopping
from callbacks.defenses.distributed_dp import DistributedDP
from callbacks.defenses.dp_fedavg import DPFedAvg
from callbacks.defenses.dp_ftrl import DPFTRL
from callbacks.defenses.dp_sgd import DPSGD
from callbacks.defenses.dropout import Dropout
from callbacks.defenses.l2 import L2
from callbacks.defenses.label_smoothing import LabelSmoothing
from callbacks.defenses.local_early_stopping import LocalEarlyStopping
from callbacks.defenses.memdefense import MemDefense
from callbacks.defenses.mixup import Mixup
from callbacks.defenses.nbafl import NbAFL
from callbacks.defenses.paillier import Paillier
from callbacks.defenses.secure_aggregation import SecureAggregation
from callbacks.defenses.tripwire import Tripwire
from callbacks.recorders.fairness import FairnessRecorder
from callbacks.recorders.newcomers import NewcomerRecorder
from callbacks.recorders.progress import FederationProgress
from callbacks.recorders.representations import Representations
from callbacks.recorders.run_recorder import RunRecorder

__all__ = [
    "AdversarialRegularisation",
    "ClientEarlyStopping",
    "DPFTRL",
    "DPFedAvg",
    "DPSGD",
    "DistributedDP",
    "Dropout",
    "L2",
    "LabelSmoothing",
    "MemDefense",
    "Mixup",
    "NbAFL",
    "Paillier",
    "SecureAggregation",
    "LocalEarlyStopping",
    "Tripwire",
    "ClientCanaryAudit",
    "FactorRecovery",
    "GradientAscent",
    "ImageReconstruction",
    "MaliciousServer",
    "MembershipInference",
    "SampleCanaryAudit",
    "SourceInference",
    "FairnessRecorder",
    "FederationProgress",
    "NewcomerRecorder",
    "Representations",
    "RunRecorder",
    "TranscriptRecorder",
]
