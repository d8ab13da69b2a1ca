"""Class paths of earlier versions, so that saved configurations and finished runs still open."""

from __future__ import annotations

from typing import Any

RECONSTRUCTION = "app.attacks.reconstruction."
MODULES = {
    RECONSTRUCTION + "convergence_rate": RECONSTRUCTION + "active.convergence_rate",
    RECONSTRUCTION + "rolling_model": RECONSTRUCTION + "active.rolling_model",
    RECONSTRUCTION + "trap_server": RECONSTRUCTION + "active.trap_server",
    RECONSTRUCTION + "passive": RECONSTRUCTION + "inversion.uploads",
    RECONSTRUCTION + "released_model": RECONSTRUCTION + "inversion.released_model",
    RECONSTRUCTION + "reading": RECONSTRUCTION + "inversion.extraction",
    RECONSTRUCTION + "gradient_matching": RECONSTRUCTION + "inversion.gradient_matching",
    "app.federation.submodels.integration": "app.federation.submodels",
    "app.federation.local": "app.federation.local_training",
}
CLASSES = {
    "app.federation.submodels.Integration": "app.federation.submodels.ChannelSubset",
    "callbacks.StopEarly": "callbacks.LocalEarlyStopping",
}


def current_path(path: str) -> str:
    """The class path of today for a class path of any version; others are returned as they are."""
    module, _, name = path.rpartition(".")
    parts = module.split(".")
    if parts[0] == "callbacks" and len(parts) == 2:  # callbacks lay in one folder, a module each
        module = "callbacks"
    path = f"{MODULES.get(module, module)}.{name}" if module else name
    return CLASSES.get(path, path)


def current(config: Any) -> Any:
    """A configuration (plain data) whose class paths are those of today."""
    if isinstance(config, list):
        return [current(item) for item in config]
    if not isinstance(config, dict):
        return config
    return {
        key: current_path(value) if key == "class_path" and isinstance(value, str) else current(value)
        for key, value in config.items()
    }
