"""Image classifiers whose width scales: one file per network, with the layers and norms they share."""

from app.models.alexnet import AlexNet
from app.models.base import DataShape, LayerAxes, ScalableNet, scaled_width
from app.models.cnn import CNN
from app.models.convnet import ConvNet
from app.models.factor_layers import FactorConv2d, FactorLayer, FactorLinear, FactorSettings
from app.models.factorised import Factorised
from app.models.layers import Scaler, SeededDropout, has_dropout, seed_dropout
from app.models.lenet import LeNet5
from app.models.mlp import MLP
from app.models.norms import BatchStatistics, NormKind, make_norm, posthoc_statistics, uses_batch_statistics
from app.models.resnet import ResNet18

__all__ = [
    "DataShape",
    "LayerAxes",
    "ScalableNet",
    "scaled_width",
    "CNN",
    "LeNet5",
    "AlexNet",
    "MLP",
    "ConvNet",
    "ResNet18",
    "Factorised",
    "FactorLayer",
    "FactorLinear",
    "FactorConv2d",
    "FactorSettings",
    "NormKind",
    "BatchStatistics",
    "make_norm",
    "posthoc_statistics",
    "uses_batch_statistics",
    "SeededDropout",
    "seed_dropout",
    "has_dropout",
    "Scaler",
]
