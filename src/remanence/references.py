"""The literature, once: what ran can print the bibliography of exactly what ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A publication and the short form under which tables cite it."""

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
GUO_2022A = Reference(
    "Guo et al. 2022a",
    "C. Guo, B. Karrer, K. Chaudhuri, L. van der Maaten. Bounding Training Data Reconstruction in Private "
    "(Deep) Learning. ICML, 2022.",
)
GUO_2022B = Reference(
    "Guo et al. 2022b",
    "C. Guo, A. Sablayrolles, M. Sanjabi. Analyzing Privacy Leakage in Machine Learning via Multiple Hypothesis "
    "Testing: A Lesson From Fano. ICML, 2023 (arXiv 2022).",
)
REMANENCE = Reference("Remanence", "This tool; derived in its documentation.")
