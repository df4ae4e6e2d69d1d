"""The literature in one place, so that a result can print the bibliography of exactly what ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A publication and the short form by which tables cite it."""

    short: str
    full: str

    def at(self, place: str) -> Reference:
        """The same publication, pointing at one place in it.

        >>> BALLE_2022.at("Theorem 1").short
        'Balle et al. 2022, Theorem 1'
        """
        return Reference(f"{self.short}, {place}", self.full)


BALLE_2022 = Reference(
    "Balle et al. 2022",
    "B. Balle, G. Cherubin, J. Hayes. Reconstructing Training Data with Informed Adversaries. "
    "IEEE Symposium on Security and Privacy, 2022.",
)
HAYES_2023 = Reference(
    "Hayes et al. 2023",
    "J. Hayes, S. Mahloujifar, B. Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS, 2023.",
)
GUO_2022B = Reference(
    "Guo et al. 2022b",
    "C. Guo, A. Sablayrolles, M. Sanjabi. Analyzing Privacy Leakage in Machine Learning via Multiple Hypothesis "
    "Testing: A Lesson From Fano. ICML, 2023 (arXiv 2022).",
)
PAN_2022 = Reference(
    "Pan et al. 2022",
    "X. Pan, M. Zhang, Y. Yan, J. Zhu, M. Yang. Exploring the Security Boundary of Data Reconstruction via Neuron "
    "Exclusivity Analysis. USENIX Security Symposium, 2022.",
)
DIMITROV_2024 = Reference(
    "Dimitrov et al. 2024",
    "D. I. Dimitrov, M. Baader, M. N. Müller, M. Vechev. SPEAR: Exact Gradient Inversion of Batches in Federated "
    "Learning. NeurIPS, 2024.",
)
PETROV_2024 = Reference(
    "Petrov et al. 2024",
    "I. Petrov, D. I. Dimitrov, M. Baader, M. N. Müller, M. Vechev. DAGER: Exact Gradient Inversion for Large "
    "Language Models. NeurIPS, 2024. arXiv:2405.15586.",
)
MAHLOUJIFAR_2024 = Reference(
    "Mahloujifar et al. 2024",
    "S. Mahloujifar, L. Melis, K. Chaudhuri. Auditing f-Differential Privacy in One Run. ICML, 2025 (arXiv 2024).",
)
MACIAZEK_2025 = Reference(
    "Maciazek and Allison 2025",
    "T. Maciazek, R. Allison. Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction Attacks "
    "in Small-Data Regime. 2025.",
)
CHOQUETTE_CHOO_2023 = Reference(
    "Choquette-Choo et al. 2023",
    "C. A. Choquette-Choo, A. Ganesh, R. McKenna, H. B. McMahan, K. Rush, A. Thakurta, Z. Xu. (Amplified) Banded "
    "Matrix Factorization: A unified approach to private training. NeurIPS, 2023.",
)
FELDMAN_2026 = Reference(
    "Feldman and Shenfeld 2026",
    "V. Feldman, M. Shenfeld. Efficient Privacy Loss Accounting for Subsampling and Random Allocation. ICML, 2026. "
    "arXiv:2602.17284.",
)
BOK_2024 = Reference(
    "Bok et al. 2024",
    "J. Bok, W. J. Su, J. M. Altschuler. Shifted Interpolation for Differential Privacy. ICML, 2024.",
)
CARLINI_2021 = Reference(
    "Carlini et al. 2021",
    "N. Carlini, F. Tramèr, E. Wallace, M. Jagielski, A. Herbert-Voss, K. Lee, A. Roberts, T. Brown, D. Song, "
    "Ú. Erlingsson, A. Oprea, C. Raffel. Extracting Training Data from Large Language Models. USENIX Security "
    "Symposium, 2021.",
)
HAYES_2025 = Reference(
    "Hayes et al. 2025",
    "J. Hayes, M. Swanberg, H. Chaudhari, I. Yona, I. Shumailov, M. Nasr, C. A. Choquette-Choo, K. Lee, A. F. Cooper. "
    "Measuring Memorization in Language Models via Probabilistic Extraction. NAACL, 2025.",
)
REMANENCE = Reference("Remanence", "This tool; derived in its documentation.")


def bibliography(shorts: Iterable[str]) -> list[str]:
    """The publications that short forms name, without duplicates; what the tool itself derives has no entry.

    >>> bibliography(["Balle et al. 2022, Theorem 1", "Balle et al. 2022", "unheard of"])
    ['B. Balle, G. Cherubin, J. Hayes. Reconstructing Training Data with Informed Adversaries. \
IEEE Symposium on Security and Privacy, 2022.']
    >>> [entry.split(".")[0] for entry in bibliography(["Remanence, after Pan et al. 2022, Petrov et al. 2024"])]
    ['I', 'X']
    """
    known = [value for value in globals().values() if isinstance(value, Reference) and value is not REMANENCE]
    return sorted({entry.full for short in shorts for entry in known if entry.short in short})
