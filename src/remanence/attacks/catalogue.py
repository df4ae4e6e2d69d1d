"""What each attack needs and sees, readable without loading it (and so without loading torch)."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from remanence.exceptions import InputError
from remanence.references import (
    BALLE_2022,
    CARLINI_2019,
    CARLINI_2021,
    DIMITROV_2024,
    GEIPING_2020,
    HAYES_2023,
    HAYES_2025,
    MACIAZEK_2025,
    MAHLOUJIFAR_2024,
    PAN_2022,
    PETROV_2024,
    REMANENCE,
    ZHAO_2020,
    ZHU_2019,
    Reference,
)
from remanence.scale.user_code import call_factory

if TYPE_CHECKING:
    from remanence.attacks.attack import Attack


@dataclass(frozen=True)
class AttackInfo:
    """The facts that `remanence attacks` prints and a report cites."""

    name: str
    summary: str
    needs: str
    sees: str
    reference: Reference
    home: str = ""  # module:class, of those that come with this package
    on_request: bool = False  # so slow that an audit runs it only when it is named


CLOSED_FORM = AttackInfo(
    "closed-form",
    "Solves the optimality condition of a generalised linear model for the missing record and its label.",
    "a GLM at its optimum; all other training records",
    "weights",
    BALLE_2022.at("Theorem 1"),
    "remanence.attacks.glm.closed_form:ClosedForm",
)
SCALER_MEAN = AttackInfo(
    "scaler-mean",
    "Takes n times a published mean, less the known records.",
    "a GLM behind a StandardScaler; all other training records",
    "weights",
    REMANENCE,
    "remanence.attacks.glm.scaler_mean:ScalerMean",
)
RETRAIN = AttackInfo(
    "retrain-and-compare",
    "Trains on every candidate and picks the one whose release is closest.",
    "a shortlist of candidates; all other training records",
    "weights, answers or one gradient",
    BALLE_2022.at("§II-D and §IV-A"),
    "remanence.attacks.retrain:RetrainAndCompare",
)
PRIOR_AWARE = AttackInfo(
    "prior-aware",
    "Picks the candidate whose gradients explain the privatised ones of a whole run best.",
    "DP-SGD's transcript; a shortlist of candidates; all other training records",
    "transcript",
    HAYES_2023.at("Algorithms 2 and 3, Appendix G corrected"),
    "remanence.attacks.transcripts.prior_aware:PriorAware",
)
GRADIENT_BASED = AttackInfo(
    "gradient-based",
    "Searches the record whose gradients fit the privatised ones of a whole run, by optimisation.",
    "DP-SGD's transcript; all other training records; no shortlist",
    "transcript",
    HAYES_2023.at("Equation 1 and Appendix D"),
    "remanence.attacks.transcripts.optimised:GradientBased",
)
ONE_RUN_CANARIES = AttackInfo(
    "one-run-canaries",
    "Tells which canaries were trained on, from all privatised gradients of one run at once.",
    "a recorded run with canaries; all other training records and their batches",
    "transcript",
    MAHLOUJIFAR_2024.at("with a linear estimate of all canaries at once"),
    "remanence.attacks.transcripts.one_run_canaries:OneRunCanaries",
)
EXCLUSIVE_NEURONS = AttackInfo(
    "exclusive-neurons",
    "Reads samples off the neurons that they alone activate, subtracts them from the gradient, and looks again.",
    "the gradient of one step on a fully connected ReLU network",
    "one gradient",
    PAN_2022.at("§5, with corrections"),
    "remanence.attacks.gradients.exclusive_neurons:ExclusiveNeurons",
)
LOW_RANK = AttackInfo(
    "low-rank",
    "Finds the sparse directions of the first layer's gradient, one per sample of the batch.",
    "the gradient of one step on a fully connected ReLU network",
    "one gradient",
    DIMITROV_2024.at("by ℓ₁ minimisation"),
    "remanence.attacks.gradients.low_rank:LowRank",
)
TOKEN_SPANS = AttackInfo(
    "token-spans",
    "Tests every token against the span of the first attention layer's gradient, and grows texts in the second's.",
    "the gradient of one step on a transformer that reads token ids, with fewer tokens than dimensions",
    "one gradient",
    PETROV_2024,
    "remanence.attacks.gradients.token_spans:TokenSpans",
)
PARALLEL_ROWS = AttackInfo(
    "parallel-rows",
    "Reads samples off rows of the first layer's update that are multiples of one another.",
    "an update of a fully connected ReLU network with a bias in its first layer, after any number of steps",
    "one gradient",
    PAN_2022.at("§5, for updates of several steps"),
    "remanence.attacks.gradients.parallel_rows:ParallelRows",
)
LINEAR_READER = AttackInfo(
    "linear-reader",
    "Trains shadow heads on pictures of its own, and one ridge regression per class from a head to the picture.",
    "a transfer-learned head; public pictures of the same kind; the training recipe",
    "weights",
    REMANENCE,
    "remanence.attacks.linear_reader:LinearReader",
)
RECONSTRUCTOR = AttackInfo(
    "reconstructor",
    "Trains shadow models on records of its own, and a network that draws the record from what is released.",
    "samples from the population; the training recipe; nothing else, or all other training records",
    "weights, answers or one gradient",
    MACIAZEK_2025.at("§3; Balle et al. 2022, §IV"),
    "remanence.attacks.reconstructor.attack:Reconstructor",
)
DLG = AttackInfo(
    "dlg",
    "Searches inputs and soft labels whose gradient is the one that was seen, by L-BFGS.",
    "a shared gradient or update of any network; the batch size",
    "one gradient",
    ZHU_2019,
    "remanence.attacks.gradients.matching:DLG",
    on_request=True,
)
IDLG = AttackInfo(
    "idlg",
    "The same, with labels read off the last bias first.",
    "a shared gradient or update of any network; the batch size",
    "one gradient",
    ZHAO_2020,
    "remanence.attacks.gradients.matching:IDLG",
    on_request=True,
)
INVERTING = AttackInfo(
    "inverting-gradients",
    "Searches smooth pictures whose gradient has the direction of the one that was seen, by signed Adam.",
    "a shared gradient or update of any network; the batch size",
    "one gradient",
    GEIPING_2020,
    "remanence.attacks.gradients.matching:InvertingGradients",
    on_request=True,
)
STORED = AttackInfo(
    "stored-in-object",
    "Looks for rows and values that a fitted object holds as they were: support vectors, quantiles, extremes.",
    "a fitted scikit-learn object that holds some; all other rows of its table",
    "the fitted object",
    REMANENCE,
    "remanence.attacks.tables.from_object:StoredInObject",
)
STATISTICS = AttackInfo(
    "published-statistics",
    "Takes what the known rows lack to the means, sums and counts that scalers, imputers and classifiers hold.",
    "a fitted scikit-learn object that holds some; all other rows of its table",
    "the fitted object",
    REMANENCE,
    "remanence.attacks.tables.from_object:PublishedStatistics",
)
PIPELINE = AttackInfo(
    "pipeline-equations",
    "Solves a linear model's optimality condition and carries the solution back through its pipeline, into words.",
    "a linear model at its optimum, alone or behind transformers; all other rows of its table",
    "the fitted object",
    BALLE_2022.at("Theorem 1, with a pipeline in front"),
    "remanence.attacks.tables.from_object:PipelineEquations",
)
LEAVES = AttackInfo(
    "tree-leaves",
    "Follows the missing row through the nodes of trees, whose thresholds lie halfway between two rows.",
    "decision trees, forests or boosted trees; all other rows of their table",
    "the fitted object",
    REMANENCE,
    "remanence.attacks.tables.from_object:TreeLeaves",
)
WHOLE_OBJECT = AttackInfo(
    "whole-object",
    "Puts together all that a fitted object holds about a row, the surest first.",
    "a fitted scikit-learn object; all other rows of its table",
    "the fitted object",
    REMANENCE,
    "remanence.attacks.tables.from_object:WholeObject",
)
_TEXTS = "a language model; the text before each secret"
_PROMPTED = "continuations"
GREEDY_DECODING = AttackInfo(
    "greedy-decoding",
    "Prompts the model once with the text before a secret and lets it go on with its likeliest tokens.",
    _TEXTS,
    _PROMPTED,
    CARLINI_2021,
    "remanence.attacks.texts.attacks:GreedyDecoding",
)
SAMPLING = AttackInfo(
    "sampling",
    "Prompts the model and samples, again and again; how often that takes is computed exactly.",
    _TEXTS,
    _PROMPTED,
    HAYES_2025.at("(n, p)-discoverable extraction"),
    "remanence.attacks.texts.attacks:Sampling",
)
TOP_K_SAMPLING = AttackInfo(
    "top-k-sampling",
    "The same among the 40 likeliest tokens.",
    _TEXTS,
    _PROMPTED,
    HAYES_2025.at("(n, p)-discoverable extraction"),
    "remanence.attacks.texts.attacks:TopKSampling",
)
NEAR_VERBATIM = AttackInfo(
    "near-verbatim",
    "Sampling, where a secret counts up to an edit of one token; a proven lower limit.",
    _TEXTS,
    _PROMPTED,
    REMANENCE,
    "remanence.attacks.texts.attacks:NearVerbatim",
    on_request=True,
)
TEMPLATE_SEARCH = AttackInfo(
    "template-search",
    "Tries all completions of the secret's form, likeliest first; the rank of the true one is computed exactly.",
    f"{_TEXTS}; its form",
    "answers",
    CARLINI_2019.at("exposure"),
    "remanence.attacks.texts.attacks:TemplateSearch",
    on_request=True,
)
OBLIVIOUS = AttackInfo(
    "oblivious",
    "Guesses the likeliest record without looking at the release.",
    "a shortlist or samples from the population",
    "nothing",
    BALLE_2022.at("§VII"),
    "remanence.attacks.oblivious:Oblivious",
)

CATALOGUE = {
    info.name: info
    for info in (
        CLOSED_FORM,
        SCALER_MEAN,
        PRIOR_AWARE,
        GRADIENT_BASED,
        ONE_RUN_CANARIES,
        RETRAIN,
        EXCLUSIVE_NEURONS,
        LOW_RANK,
        PARALLEL_ROWS,
        TOKEN_SPANS,
        DLG,
        IDLG,
        INVERTING,
        LINEAR_READER,
        RECONSTRUCTOR,
        STORED,
        STATISTICS,
        PIPELINE,
        LEAVES,
        WHOLE_OBJECT,
        GREEDY_DECODING,
        SAMPLING,
        TOP_K_SAMPLING,
        NEAR_VERBATIM,
        TEMPLATE_SEARCH,
        OBLIVIOUS,
    )
}


def load_attack(name: str) -> Attack:
    """The attack of this name, with its default settings; or the one that `path/to/file.py:Class` makes.

    Packages add theirs by an entry point of the group `remanence.attacks`.

    >>> load_attack("closed-form")
    ClosedForm()
    """
    from remanence.attacks.attack import Attack  # loads torch, which the list can do without

    if name in CATALOGUE:
        module, _, class_name = CATALOGUE[name].home.partition(":")
        return getattr(import_module(module), class_name)()
    path, colon, factory = name.rpartition(":")
    if colon:
        found = call_factory(Path(path), factory, "an attack")
    else:
        elsewhere = {entry.name: entry for entry in entry_points(group="remanence.attacks")}
        if name not in elsewhere:
            known = [*CATALOGUE, *elsewhere]
            close = get_close_matches(name, known, 1)
            raise InputError(
                f"There is no attack named {name!r}.",
                needs=f"{', '.join(known)}; or path/to/file.py:Class",
                got=name,
                hint=f"--attack {close[0]}" if close else "`remanence attacks` describes each",
            )
        found = elsewhere[name].load()()
    if not isinstance(found, Attack):
        raise InputError(
            f"{name} is no attack.",
            needs="a class that derives from remanence.Attack and needs no arguments",
            got=type(found).__name__,
            hint="docs/how-to/new-attack.md shows one",
        )
    return found
