"""Numbers from the papers, written down once more by hand: file, place, measure, value and spread."""

ADV_UPLOADS, ADV_SERVER = "paper:mapp-fl.yeom.uploads/Adv %", "paper:mapp-fl.yeom.global/Adv %"
GLOBAL, LOCAL = "paper:memdefense.nasr.global/A_att_g %", "paper:memdefense.nasr.uploads/A_att_l %"
MEAN = "paper:taxonomy.tmia.uploads/mean {} of yeom, lira, tmia"
POOLED = "correlation:size~mapp-fl.yeom.uploads/Adv %"
PEARSON = "paper:mapp-fl.yeom.uploads/Pearson of log10 size and Adv"


def _tax(attack, figure="AUC %"):
    return f"paper:taxonomy.{attack}.uploads/{figure}"


VALUES = [
    ("mapp-fl-table-2", "cifar10", "mapp-fl", "none", "server_accuracy", None, 76.54, None),
    ("mapp-fl-table-2", "cifar10", "mapp-fl", "none", ADV_UPLOADS, 5, 0.35, None),
    ("mapp-fl-table-2", "cifar10", "local-30k", "none", "clients_accuracy", 9, 41.53, None),
    ("mapp-fl-table-2", "cifar10", "fedavg-30k", "none", ADV_UPLOADS, 6, 6.69, None),
    ("mapp-fl-table-3", "cifar100", "fedavg-1.6m", "none", PEARSON, None, -0.90, None),
    ("mapp-fl-table-3", "femnist", "fedavg-30k", "none", PEARSON, None, -0.71, None),
    ("mapp-fl-table-3", "cifar10", "fedavg-1.6m", "none", POOLED, None, -0.87, None),
    ("mapp-fl-table-4", "cifar10", "heterofl-0-large", "none", "server_accuracy", None, 70.43, 0.91),
    ("mapp-fl-table-4", "cifar100", "mapp-fl-0-large", "none", ADV_SERVER, None, -0.45, 0.85),
    ("mapp-fl-table-4", "femnist", "fdropout-5-large", "none", "clients_accuracy", None, 54.12, 1.02),
    ("mapp-fl-table-4", "femnist", "mapp-fl-9-large", "none", ADV_UPLOADS, None, 13.37, 0.27),
    ("mapp-fl-table-5", "cifar10", "heterofl", "none", "server_accuracy", None, 78.26, 0.78),
    ("mapp-fl-table-5", "cifar10", "mapp-fl", "none", ADV_SERVER, None, 1.49, 0.06),
    ("mapp-fl-table-5", "cifar10", "fdropout", "none", "clients_accuracy", None, 42.06, 0.69),
    ("mapp-fl-table-6", "cifar10", "fdropout-independent", "none", "clients_accuracy", None, 23.56, 0.29),
    ("taxonomy-table-3", "cifar10", "osm-2-large", "none", "server_accuracy", None, 78.70, None),
    ("taxonomy-table-3", "cifar100", "gsr-2-large", "none", MEAN.format("AUC %"), None, 51.56, None),
    ("taxonomy-table-4", "cifar10", "mapp-fl-r", "none", ADV_UPLOADS, None, 3.20, 0.24),
    ("taxonomy-table-5", "cifar10", "fedavg-400k", "none", PEARSON, None, -0.57, None),
    ("taxonomy-table-6", "femnist", "gsr-fedprox", "none", "clients_accuracy", None, 44.75, None),
    ("taxonomy-table-6", "femnist", "osr-fedavgm", "none", _tax("yeom"), None, 55.52, None),
    ("taxonomy-table-7", "femnist", "heterofl-8-large", "none", _tax("lira"), None, 53.41, 0.75),
    ("taxonomy-table-7", "femnist", "fdropout-2-large", "none", MEAN.format("Adv %"), None, 4.22, 0.14),
    ("taxonomy-table-7", "femnist", "osm-5-large", "none", "server_accuracy", None, 86.74, 0.47),
    ("taxonomy-table-8", "cifar10", "mapp-fl-2-large", "none", _tax("tmia"), None, 52.54, 0.27),
    ("taxonomy-table-8", "cifar10", "osr-8-large", "none", "clients_accuracy", None, 67.32, 0.08),
    ("taxonomy-table-8", "cifar10", "fedavg-100k", "none", _tax("tmia", "TPR % at 0.1 % FPR"), None, 0.16, 0.05),
    ("taxonomy-table-9", "cifar100", "ufr-2-large", "none", _tax("lira", "Adv %"), None, -0.23, 1.61),
    ("taxonomy-table-9", "cifar100", "ufr-8-large", "none", "server_accuracy", None, 46.54, 0.69),
    ("waffle-table-1", "mnist-multimodal", "qffl", "none", "everyone_accuracy", None, 88.42, 1.24),
    ("waffle-table-1", "cifar10", "waffle-lenet", "none", "everyone_accuracy", None, 71.30, 0.92),
    ("waffle-table-2", "fashionmnist-multimodal", "waffle-convnet", "none", "everyone_minority", None, 79.67, 1.52),
    ("waffle-table-2", "mnist-multimodal", "fedavg", "none", "everyone_variance", None, 199, 106),
    ("waffle-table-3", "cifar10", "waffle-lenet", "none", "paper:waffle.shokri.uploads/F1 %", None, 54.39, 1.85),
    ("waffle-table-4", "cifar10-30-epochs", "fedavg", "none", "everyone_accuracy", None, 55.39, None),
    (
        *("waffle-table-5", "fashionmnist-multimodal-20-epochs", "waffle-convnet", "none", "everyone_accuracy"),
        *(None, 89.15, None),
    ),
    ("waffle-table-6", "mnist", "waffle-f150-0.4", "none", "everyone_accuracy", None, 94.42, None),
    ("waffle-table-7", "mnist-multimodal", "waffle-f80-1.0", "none", "everyone_accuracy", None, 94.70, None),
    ("waffle-figure-7", "cifar10-3-classes", "waffle-lenet", "none", "lead:fedavg/everyone_accuracy", None, 7.2, None),
    ("waffle-figure-7", "cifar10-4-classes", "waffle-lenet", "none", "lead:fedavg/everyone_accuracy", None, 2.74, None),
    ("memdefense-table-iv", "cifar100", "fedavg", "nbafl-8000", "server_accuracy", None, 64.41, None),
    ("memdefense-table-iv", "mnist", "fedavg", "nbafl-25", LOCAL, None, 64.57, None),
    ("memdefense-table-iv", "fashionmnist", "fedavg", "paillier", GLOBAL, None, 53.82, None),
    ("memdefense-table-iv", "mnist", "fedavg", "adversarial-regularisation", "train_accuracy", None, 100.0, None),
    ("memdefense-table-v", "cifar10", "fedavg", "paillier", "client_ratio", None, 2863.4, None),
    ("memdefense-table-v", "mnist", "fedavg", "memdefense", "client_ratio", None, 1.3, None),
    ("memdefense-table-vi", "cifar10-50", "fedavg", "none", LOCAL, None, 55.90, None),
    ("memdefense-table-vi", "cifar100-10", "fedavg", "memdefense", "server_accuracy", None, 57.00, None),
    ("memdefense-figure-4", "fashionmnist", "fedavg", "memdefense-0.9", LOCAL, None, 51.10, None),
]
