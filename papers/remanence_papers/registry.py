"""Every reproduction by name, without loading any."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from remanence.core.exceptions import InputError
from remanence.core.references import BALLE_2022, HAYES_2023, MACIAZEK_2025, PAN_2022
from remanence_papers.reproduction import Reproduction, Settings
from remanence_papers.signatures import READ, code_signature, data_signature

_HOME = "remanence_papers"

REPRODUCTIONS = {
    entry.name: entry
    for entry in (
        Reproduction(
            "maciazek-figure-4",
            "Heads trained by DP-SGD: what still comes back, and what it costs",
            MACIAZEK_2025.at("Figures 4, 5 and 16; §4"),
            f"{_HOME}.maciazek_private:figure_4",
            reduced="800 steps of 1,024 shadows for 10^6 of 32; 1,000 heads; letters of another alphabet behind a "
            "smaller network than the paper's",
        ),
        Reproduction(
            "maciazek-figure-4-four",
            "The same with four pictures per class",
            MACIAZEK_2025.at("Figure 4, MNIST, N = 40; §4"),
            f"{_HOME}.maciazek_private:figure_4_four",
            reduced="as with one picture",
        ),
        Reproduction(
            "maciazek-figure-4-cifar",
            "CIFAR-10 heads trained by DP-SGD, one picture per class",
            MACIAZEK_2025.at("Figure 4, CIFAR, N = 10; Figures 5 and 16"),
            f"{_HOME}.maciazek_private:figure_4_cifar",
            reduced="800 steps of 1,024 shadows for 10^6 of 32; MobileNetV2 for EfficientNet-B0",
        ),
        Reproduction(
            "maciazek-figure-4-cifar-four",
            "The same with four pictures per class",
            MACIAZEK_2025.at("Figure 4, CIFAR, N = 40"),
            f"{_HOME}.maciazek_private:figure_4_cifar_four",
            reduced="as with one picture",
        ),
        Reproduction(
            "maciazek-defences",
            "DP-SGD beside noise, rounding, wide initial weights and fewer epochs: attack and accuracy",
            MACIAZEK_2025.at("§4, extended"),
            f"{_HOME}.maciazek_private:defences",
            reduced="as Figure 4",
        ),
        Reproduction(
            "balle-figure-5",
            "An informed adversary's network: error and KL over the number of shadows",
            BALLE_2022.at("Figure 5"),
            f"{_HOME}.balle_shadows:figure_5",
            reduced="nothing but KL's judge, which is ours",
            seeds=3,
        ),
        Reproduction(
            "balle-black-box",
            "The same from answers alone: logits, probabilities, rounded top 3",
            BALLE_2022.at("§VI-C"),
            f"{_HOME}.balle_shadows:black_box",
            seeds=3,
        ),
        Reproduction(
            "balle-table-2",
            "What training changes: activation, learning rate, kind of initial weights",
            BALLE_2022.at("Table II and §VI-B"),
            f"{_HOME}.balle_training:table_2",
            reduced="16,000 shadows for 59,000",
        ),
        Reproduction(
            "balle-initialisation",
            "Unknown initial weights, with one shadow per target or many",
            BALLE_2022.at("§VI-B and Table II"),
            f"{_HOME}.balle_randomness:initialisation",
            reduced="1,000 known records for 10,000; 20 shadows for each of 10,000 targets for 500",
        ),
        Reproduction(
            "balle-figure-6",
            "Mini-batches in a known or an unknown order",
            BALLE_2022.at("Figure 6"),
            f"{_HOME}.balle_randomness:figure_6",
            reduced="5,000 known records for 10,000; 50 epochs for 100; 8,000 shadows for 59,000; 3 of 7 batch sizes",
            seeds=3,
        ),
        Reproduction(
            "balle-figure-7",
            "The released models' weights, coloured by the label they hide",
            BALLE_2022.at("Figure 7"),
            f"{_HOME}.balle_randomness:figure_7",
            reduced="5,000 known records for 10,000; 50 epochs for 100",
            seeds=3,
        ),
        Reproduction(
            "balle-figure-8",
            "DP gradient descent: error, accuracy, and bounds over ε, with a gallery",
            BALLE_2022.at("Figures 8 and 9"),
            f"{_HOME}.balle_private:figure_8",
            reduced="4,000 known records for 10,000; 8,000 shadows for 59,000",
        ),
        Reproduction(
            "balle-attributes",
            "Hidden columns of patients: inferred from a model, imputed without it, guessed",
            BALLE_2022.at("§II-C"),
            f"{_HOME}.balle_attributes:attributes",
        ),
        Reproduction(
            "balle-cifar",
            "A small convolutional network on coloured pictures: weights and answers",
            BALLE_2022.at("§VI-B and §VI-C, CIFAR-10"),
            f"{_HOME}.balle_cifar:cifar",
            reduced="1,000 known records, 30 steps, and layers that are ours; at most 20,000 shadows",
            seeds=3,
        ),
        Reproduction(
            "balle-cifar-prior",
            "The same with an adversary whose pictures are of another kind",
            BALLE_2022.at("§VI-B, out-of-distribution data"),
            f"{_HOME}.balle_cifar:prior",
            reduced="as balle-cifar; 8,000 shadows",
            seeds=3,
        ),
        Reproduction(
            "balle-cifar-private",
            "The same under DP gradient descent",
            BALLE_2022.at("Appendix E, CIFAR-10"),
            f"{_HOME}.balle_cifar:private",
            reduced="100 known records; 5,000 shadows; otherwise as balle-cifar",
        ),
        Reproduction(
            "maciazek-table-1",
            "A weak adversary reads training pictures out of transfer-learned heads, one picture per class",
            MACIAZEK_2025.at("Tables 1 and 4, N = 10; Figures 1, 3c and 6 to 9"),
            f"{_HOME}.maciazek_tables:table_1",
            reduced="1,000 steps of 1,024 shadows for 10^6 of 32; the backbone learned Cyrillic letters for EMNIST's "
            "and has six convolutions with batch normalisation for the paper's VGG",
            seeds=2,
        ),
        Reproduction(
            "maciazek-table-1-four",
            "The same with four pictures per class",
            MACIAZEK_2025.at("Tables 1 and 4, N = 40; Figures 2, 3c, 6 to 9 and 15"),
            f"{_HOME}.maciazek_tables:table_1_four",
            reduced="5,000 steps of 1,024 shadows for 10^6 of 32; backbone as with one picture",
        ),
        Reproduction(
            "maciazek-cifar",
            "CIFAR-10 behind a MobileNetV2, beside an adversary who is given the true embeddings",
            MACIAZEK_2025.at("Tables 1 and 4, CIFAR, N = 10; Figure 14"),
            f"{_HOME}.maciazek_tables:cifar",
            reduced="3,000 steps of 1,024 shadows for 10^6 of 32; MobileNetV2 on ImageNet for an EfficientNet-B0 "
            "that learned CIFAR-100 too; no perceptual loss",
        ),
        Reproduction(
            "maciazek-cifar-four",
            "The same with four pictures per class, and with the mean of their embeddings",
            MACIAZEK_2025.at("Tables 1 and 4, CIFAR, N = 40"),
            f"{_HOME}.maciazek_tables:cifar_four",
            reduced="as with one picture",
        ),
        Reproduction(
            "maciazek-faces",
            "Heads that know one person among others: unbalanced sets, four hidden units",
            MACIAZEK_2025.at("Tables 1 and 5, CelebA; Figures 11 and 12"),
            f"{_HOME}.maciazek_faces:faces",
            reduced="40 people for CelebA's; 8,000 shadows",
        ),
        Reproduction(
            "maciazek-one-face",
            "One face among ten, with many public faces: attack, linear reader and the oracle",
            MACIAZEK_2025.at("Tables 1 and 5, CelebA, N = 10"),
            f"{_HOME}.maciazek_faces:one_face",
            reduced="UTKFace for CelebA; 100,000 shadows for 2.56 million; no perceptual loss",
        ),
        Reproduction(
            "maciazek-four-faces",
            "Four pictures of one person among forty: attack, linear reader and the oracle",
            MACIAZEK_2025.at("Tables 1 and 5, CelebA, N = 40"),
            f"{_HOME}.maciazek_faces:four_faces",
            reduced="158 people for CelebA's 10,177; 40,000 shadows for 2.56 million; no perceptual loss",
        ),
        Reproduction(
            "maciazek-tests",
            "Other tests of whether a picture was trained on: MSE + MAE, features, relative errors, membership first",
            MACIAZEK_2025.at("Appendix F"),
            f"{_HOME}.maciazek_tests:statistics",
            reduced="500 steps of 1,024 shadows; backbone as in Table 1",
        ),
        Reproduction(
            "maciazek-factors",
            "What the weak adversary has and believes: shadows, sizes, classes, priors and wrong recipes",
            MACIAZEK_2025.at("§3.2, points 1 to 3 and 8; Figure 3a"),
            f"{_HOME}.maciazek_factors:adversary",
            reduced="500 steps of 1,024 shadows for 10^6 of 32; backbone as in Table 1",
        ),
        Reproduction(
            "maciazek-factors-training",
            "How the weak adversary's heads are trained: task, optimiser, initial weights and epochs",
            MACIAZEK_2025.at("§3.2, points 4 to 7; Tables 3 and 6; Figure 3b"),
            f"{_HOME}.maciazek_factors:training",
            reduced="500 steps of 1,024 shadows for 10^6 of 32, and at most 200,000 shadows where heads train "
            "slowly; backbone as in Table 1",
        ),
        Reproduction(
            "maciazek-factors-cifar",
            "The factors on CIFAR-10, and CIFAR-100 for what the adversary has instead",
            MACIAZEK_2025.at("§3.2, CIFAR-10; Figures 3a and 3b"),
            f"{_HOME}.maciazek_factors:cifar",
            reduced="500 steps of 1,024 shadows for 10^6 of 32; MobileNetV2 for EfficientNet-B0",
        ),
        Reproduction(
            "hayes-shortlist-of-ten",
            "The likelihood attack on a shortlist of ten, its optimum and the bound",
            HAYES_2023.at("§4, full batch"),
            f"{_HOME}.hayes_full_batch:shortlist_of_ten",
            reduced="sixty shortlists for one anew in every trial; five learning rates tried",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-1",
            "Reconstruction by optimisation: its error over ε, with a gallery",
            HAYES_2023.at("Figures 1a and 6a"),
            f"{_HOME}.hayes_optimisation:figure_1",
            reduced="300 targets for 1,000 and 40 of Equation 1; 20,000 shadows for 40,000; thousands of iterations "
            "for a million",
        ),
        Reproduction(
            "hayes-figure-1-prior",
            "The same by whoever knows what pictures of a class look like",
            HAYES_2023.at("Figure 1a, extended"),
            f"{_HOME}.hayes_optimisation:with_a_prior",
            reduced="300 targets for 1,000",
        ),
        Reproduction(
            "hayes-figure-2",
            "The last layer of a pretrained network: two attacks and two bounds, with accuracies",
            HAYES_2023.at("Figure 2"),
            f"{_HOME}.hayes_features:figure_2",
            reduced="MobileNetV2 for WRN-28-10; 4,000 trials for 10,000",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-3",
            "Prior-aware attack and bound over the size of the shortlist",
            HAYES_2023.at("Figure 3"),
            f"{_HOME}.hayes_full_batch:figure_3",
            reduced="up to sixty shortlists for one anew in every trial; six of eleven sizes",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-4",
            "Sampled batches: the likelihood, Algorithm 3 and Algorithm 2",
            HAYES_2023.at("Figure 4"),
            f"{_HOME}.hayes_minibatch:figure_4",
            reduced="3,300 trials for 10,000, on fifteen shortlists; learning rate not tuned",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-5",
            "One ε and all sampling rates: bound and attack",
            HAYES_2023.at("Figure 5"),
            f"{_HOME}.hayes_minibatch:figure_5",
            reduced="four rates; learning rate not tuned",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-7",
            "Prior-aware attack over the width of the network",
            HAYES_2023.at("Figure 7"),
            f"{_HOME}.hayes_full_batch:figure_7",
            reduced="1,200 trials for 10,000, on six shortlists",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-8",
            "Optimisation matched to a shortlist, beside the prior-aware attack",
            HAYES_2023.at("Figure 8"),
            f"{_HOME}.hayes_optimisation:figure_8",
            reduced="300 reconstructions for 1,000",
        ),
        Reproduction(
            "hayes-figure-9",
            "A shortlist of pictures and one of noise",
            HAYES_2023.at("Figure 9"),
            f"{_HOME}.hayes_full_batch:figure_9",
            reduced="three shortlists for one anew in every trial",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-10",
            "What taking the known gradients off is worth",
            HAYES_2023.at("Figure 10"),
            f"{_HOME}.hayes_full_batch:figure_10",
            reduced="sixty shortlists for one anew in every trial",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-12",
            "At least a share of the pixels right, without a shortlist",
            HAYES_2023.at("Figure 12a"),
            f"{_HOME}.hayes_optimisation:figure_12",
            reduced="300 targets for 1,000",
        ),
        Reproduction(
            "hayes-cifar",
            "Reconstruction by optimisation on coloured pictures",
            HAYES_2023.at("Figures 1b, 6b and 12b"),
            f"{_HOME}.hayes_optimisation:in_colour",
            reduced="a perceptron on pixels for the last layer of a WRN-28-10; 200 targets for 1,000",
        ),
        Reproduction(
            "hayes-figure-13",
            "The clipping norm, and the bound for records that are not clipped",
            HAYES_2023.at("Figure 13"),
            f"{_HOME}.hayes_full_batch:figure_13",
            reduced="sixty shortlists for one anew in every trial",
            seeds=3,
        ),
        Reproduction(
            "hayes-figure-14",
            "Sampling rates at several ε and sizes of the shortlist",
            HAYES_2023.at("Figure 14"),
            f"{_HOME}.hayes_minibatch:figure_14",
            reduced="four rates; learning rate not tuned",
            seeds=3,
        ),
        Reproduction(
            "hayes-accuracy",
            "Test accuracy over learning rates and draws of the training set, with and without noise",
            HAYES_2023.at("Appendix A"),
            f"{_HOME}.reasons:accuracies",
        ),
        Reproduction(
            "pan-table-1",
            "Threat models of the gradient attacks",
            PAN_2022.at("Table 1"),
            f"{_HOME}.pan_attacks:table_1",
        ),
        Reproduction(
            "pan-table-2",
            "One gradient, insecure batches of 8: DLG, Inverting, the printed algorithm and ours",
            PAN_2022.at("Table 2 and Figure 6, fully connected"),
            f"{_HOME}.pan_attacks:table_2",
            reduced="MNIST for OrganMNIST and Olivetti faces for FaceScrub; batches made insecure in another way",
        ),
        Reproduction(
            "pan-table-2-convolutional",
            "Behind convolutions: features exactly, pictures by an untrained generator",
            PAN_2022.at("Table 2 and Figure 8, convolutional"),
            f"{_HOME}.pan_convolutional:table_2",
            reduced="3 batches for 10; Inverting 1,200 steps for 4,800; CIFAR-10 enlarged for ImageNet, ISIC and "
            "FaceScrub, smoother and so easier; VGG-13's dense layers 1,024 wide for 4,096",
        ),
        Reproduction(
            "pan-figure-5",
            "Other batches with the same gradient: how different, and a gallery",
            PAN_2022.at("Figure 5"),
            f"{_HOME}.pan_exclusivity:figure_5",
        ),
        Reproduction(
            "pan-figure-7",
            "The exact attack over batch size, epoch, width and depth",
            PAN_2022.at("Figure 7 and C.5"),
            f"{_HOME}.pan_attacks:figure_7",
            reduced="Inverting 2,400 steps for 4,800 and at three batch sizes",
        ),
        Reproduction(
            "pan-figure-9",
            "Groups A to E, pruning and signs: attacks and accuracies",
            PAN_2022.at("Figure 9 and C.4"),
            f"{_HOME}.pan_exclusivity:figure_9",
            reduced="40 batches for 100; 2,400 steps for 4,800",
        ),
        Reproduction(
            "pan-figure-10",
            "Insecure batches and exposed samples over width, depth, epoch and label mix",
            PAN_2022.at("Figure 10"),
            f"{_HOME}.pan_exclusivity:figure_10",
        ),
        Reproduction(
            "pan-figure-10-scaling",
            "Insecure batches over the scaling of pixels and the initial weights",
            PAN_2022.at("Figure 10a"),
            f"{_HOME}.reasons:scalings",
        ),
        Reproduction(
            "pan-figure-11",
            "With and without exclusive neurons: three attacks",
            PAN_2022.at("Figure 11 and C.2"),
            f"{_HOME}.pan_attacks:figure_11",
            reduced="20 batches for 100; groups are made in another way",
        ),
        Reproduction(
            "pan-figure-c3",
            "What leaving the first ReLU out costs in accuracy",
            PAN_2022.at("Figure C.3"),
            f"{_HOME}.pan_exclusivity:figure_c3",
        ),
    )
}


def find(name: str) -> Reproduction:
    """The reproduction of this name."""
    if name not in REPRODUCTIONS:
        raise InputError(
            f"There is no reproduction named {name!r}.",
            needs=", ".join(REPRODUCTIONS),
            got=name,
            hint="`remanence reproduce` describes each",
        )
    return REPRODUCTIONS[name]


def run(entry: Reproduction, settings: Settings) -> dict[str, Any]:
    """Run one again and return the document that is stored: what was found, how, on what and how long it took."""
    module, _, function = entry.home.partition(":")
    compute = getattr(import_module(module), function)
    READ.clear()
    started = time.perf_counter()
    outcome = compute(settings)
    seconds = time.perf_counter() - started
    import torch

    on_gpu = settings.device.startswith("cuda")
    return {
        "name": entry.name,
        "title": entry.title,
        "reference": entry.reference.short,
        "scale": settings.scale,
        "seed": settings.seed,
        "trials": settings.trials,
        "reduced": _reduced(entry, settings),
        **outcome.to_json(),
        "environment": {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "seconds": round(seconds, 1),
        },
        "signature": {
            "code": code_signature(entry.home),
            "data": {path.name: data_signature(path) for path in sorted(READ)},
        },
    }


def _reduced(entry: Reproduction, settings: Settings) -> str:
    """What is less than in the paper; the small scale says it by its name."""
    if settings.small:
        return ""
    fewer = (
        f"{settings.trials} trials, as `--trials` says, whatever else is named here"
        if settings.trials
        else ""
    )
    return "; ".join(part for part in (fewer, entry.reduced) if part)
