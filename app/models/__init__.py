"""Image classifiers whose width scales: one file per network, with the layers and norms they share."""

from app.models.alexnet import AlexNet
from app.models.base import DataShape, LayerAxes, ScalableNet
from app.models.cnn import CNN
from app.models.convnet import ConvNet
from app.models.factorised import Factorised
from app.models.lenet import LeNet5
from app.models.mlp import MLP
from app.models.resnet import ResNet18

__all__ = [
    "CNN",
    "MLP",
    "AlexNet",
    "ConvNet",
    "DataShape",
    "Factorised",
    "LayerAxes",
    "LeNet5",
    "ResNet18",
    "ScalableNet",
]
