"""Which of its texts a fine-tuned language model gives away: every secret plays the target."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, wilcoxon
from torch import Tensor

from remanence.auditing import AuditResult, audit
from remanence.bounds.bound import Bound
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.checks import exactly_one, whole
from remanence.core.errors import Comparison, Criterion, Error
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.priors import Uninformed
from remanence.core.records import Records
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.claims import PrivacyTest
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.texts.attacks import Asked, Prompting, Sampling, TextAttack
from remanence.texts.canaries import Claim, Planted, TextCanaries
from remanence.texts.caveats import (
    ADAPTER_NAMES_ANOTHER_BASE,
    NO_BASE_MODEL,
    NO_UNSEEN_TEXTS,
    SECRETS_SHARE_TEXTS,
    TRAINING_NOT_SHOWN,
)
from remanence.texts.mechanism import FineTuning, LanguageModel, Secret
from remanence.texts.probabilities import (
    CHANCE,
    GREEDY,
    Decoding,
    finite,
    least_log_probability,
    log_probabilities,
)
from remanence.texts.reading import Finder, Source, read_texts

_AT_ONCE = 512  # secrets in a unit
_SURE = 1e-4  # the largest p-value at which texts and model are declared a mismatch
_SHOWN = 0.05  # the largest at which training counts as shown
_READ = 32  # texts that the tokenizer is tested on
_TESTED = 256  # texts that are compared with strangers to test for training
_INVENTED = 32  # strangers that the base model invents, token after token


def _tried(targets: Records, guesses: Records) -> Tensor:
    raise NotImplementedError("tries are computed by the game, not from records")


@final
@dataclass(frozen=True)
class Texts(AnyGame[FineTuning]):
    """A fine-tuned model, and every secret of its texts plays the target.

    A secret is recovered if it comes out within `tries`, and does not come out of the `base` model within as many:
    what the base already says is not a leak of the fine-tuning. The control are texts that the model was not trained on
    (`unseen`), by the same rule; without those, the secret of another record after the same prompt, or what the base
    model says there if no other record's secret differs. `planted` describes
    secrets that the auditor drew: how many were equally likely, whether a coin put them in, and what the
    training claims. A claim that is not refuted is neither a proof nor a ceiling.
    """

    door: ClassVar[str] = "texts"

    model: LanguageModel
    secrets: Sequence[Secret]
    base: LanguageModel | None = None
    unseen: Sequence[Secret] = ()
    tries: int = 100
    planted: Planted = Planted()  # noqa: RUF009
    bounds: tuple[Bound, ...] = ()
    mechanism: FineTuning = field(init=False, repr=False)
    criterion: Criterion = field(init=False, repr=False)
    default_trials: int = field(init=False, repr=False)  # every secret
    _asked: dict[object, Asked] = field(default_factory=dict, init=False, repr=False, compare=False)
    _said: dict[Secret, Secret] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole("tries", self.tries, hint="tries=100")
        if len(self.secrets) < 2:
            raise InputError(
                "There are too few secrets.",
                needs="at least 2: the control compares one with another",
                got=str(len(self.secrets)),
                hint="more records, or a rule that finds more in each",
            )
        if self.base is not None and self.base.vocabulary != self.model.vocabulary:
            raise MisfitError(
                "The base model has a different vocabulary.",
                needs=f"{self.model.vocabulary} tokens, as the fine-tuned model",
                got=str(self.base.vocabulary),
                hint="the model that the fine-tuning started from",
            )
        tries = Error(f"tries until it comes out with a chance of {CHANCE:g}", _tried)
        made = {
            "mechanism": FineTuning(self.model.name, None if self.base is None else self.base.name),
            "criterion": Criterion(tries, float(self.tries)),
            "default_trials": len(self.secrets),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def knowledge(self) -> Prompting:
        """The adversary knows the prompts."""
        return Prompting(self.mechanism, Uninformed(), None, drawn=self.planted.candidates is not None)

    def baseline(self, chances: int = 1) -> Baseline:
        """Exact for drawn secrets; otherwise uninformed, because secrets that the base model says do not count.

        A sampler that knows nothing of the training does best by spreading its mass evenly over as many candidates as
        still come out with a chance of one half within the tries; these are more than there are tries.
        """
        candidates = self.planted.candidates
        if candidates is None:
            return Uninformed().baseline(self.criterion)
        least = math.exp(least_log_probability(self.tries))
        covered = math.floor((1 + 1e-12) / least)
        share = min(1.0, covered / candidates)
        return Baseline(share, share, f"{covered} of {candidates:g} equally likely secrets")

    @property
    def words(self) -> Words:
        """Secrets that come out within some tries, or do not."""
        compared = ", and not out of the base model" if self.base is not None else ""
        tests = ("membership inference",) if self.planted.by_coin and self.unseen else ()
        return Words(
            "brought out",
            "secrets",
            counts=f"A secret counts if it comes out within {self.tries:,} tries{compared}.",
            less="Take the secrets out of the texts before training. The annex names the riskiest places.",
            tests=tests,
            python=f"audit_text(model, texts, tries={self.tries}, ...)",
        )

    @cached_property
    def _proven(self) -> tuple[PrivacyTest, dict[str, float]] | None:
        """The proof from canaries that a coin put in or left out. Their order is independent of the coins."""
        if not self.planted.by_coin or not self.unseen:
            return None
        coins = [*((secret, True) for secret in self.secrets), *((secret, False) for secret in self.unseen)]
        coins.sort(key=lambda each: (each[0].prompt, each[0].tokens))
        everyone, own = [secret for secret, _ in coins], torch.tensor([coin for _, coin in coins])
        spoken = self._ask(self.model, everyone).logs(GREEDY)[own] == 0
        return self.planted.said(torch.from_numpy(self._gains(everyone)), own, spoken)

    def measures(self) -> dict[str, float]:
        """The number of whole canaries, whatever the attack."""
        return {} if self._proven is None else dict(self._proven[1])

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """The canaries' bound on ε and the test of the claim, whatever the attack."""
        return () if self._proven is None else (self._proven[0],)

    def caveats(self) -> Iterator[Caveat]:
        """Caveats that hold for every attack."""
        yield ONE_RELEASE
        if self.base is None:
            yield NO_BASE_MODEL
        if not self.unseen:
            different = len(set(self._spelled[0]))
            seen = f"{len(self.secrets)} secrets, {different} different ones: labels, or a shared password?"
            yield replace(NO_UNSEEN_TEXTS, seen=seen if 2 * different <= len(self.secrets) else "")
        named = self.model.made_for
        if self.base is not None and PurePath(named).name not in ("", self.base.name):
            yield replace(ADAPTER_NAMES_ANOTHER_BASE, seen=f"It names {named}; the base is {self.base.name}.")
        if self._training_by_chance > _SHOWN:
            seen = f"p = {self._training_by_chance:.2g} for {len(self.secrets)} secrets."
            yield replace(TRAINING_NOT_SHOWN, seen=seen)
        texts = min(len({s.line for s in self.secrets}), len({(s.prompt, s.tokens) for s in self.secrets}))
        if texts < len(self.secrets):
            yield replace(
                SECRETS_SHARE_TEXTS, seen=f"{len(self.secrets)} secrets in {texts} different texts."
            )

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the secrets' tokens, and of the weights."""
        found = {"texts": _hash(self.secrets), "model": self.model.sha256}
        found |= {"unseen": _hash(self.unseen)} if self.unseen else {}
        found |= {"base": self.base.sha256} if self.base is not None else {}
        return {name: value for name, value in found.items() if value}

    def to(self, device: torch.device | str) -> Texts:
        """Itself: a model stays where it was loaded."""
        return self

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All secrets, or as many of them, drawn at random, as there are trials."""
        total = min(trials, len(self.secrets))
        models = [m for m in (self.model, self.base) if m is not None]
        own = [m.sha256 or m.logits for m in models]  # without a hash, the object itself is hashed
        return Work(total, _AT_ONCE, (self.fingerprints(), own, self.tries, total))

    def records(self, trials: int, draws: Draws) -> Tensor:
        """The secrets that play the target, by position in the list."""
        order = torch.randperm(len(self.secrets), generator=replace(draws, device="cpu").stream("targets"))
        return order[:trials].sort().values

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> TextAttack:
        """Nothing to prepare."""
        if not isinstance(attack, TextAttack):
            raise attack.refusal(got=self.knowledge, hint="sampling, greedy-decoding or near-verbatim")
        return attack

    def trials(self, prepared: TextAttack, draws: Draws, unit: Unit) -> Outcome:
        """How many tries each secret takes with this model and with its base; the same for strangers."""
        assert unit.records is not None
        chosen = [self.secrets[place] for place in unit.records.tolist()]
        strangers = list(self.unseen) if unit.number == 0 else []  # all at once: their number may differ
        if not self.unseen:
            generator = replace(draws, device="cpu").stream("control")
            strangers = self._strangers(unit.records.tolist(), generator)
        main, logs, without = self._play(prepared, chosen)
        control, others, _ = self._play(prepared, strangers)
        return Outcome(
            main=main,
            control=control,
            numbers={
                "line": torch.tensor([secret.line for secret in chosen]),
                "part": torch.tensor([secret.part for secret in chosen]),
                "log_probability": logs,
                "control_log_probability": others,
                **({} if without is None else {"base_log_probability": without}),
            },
            claims_labels=False,
        )

    def _play(self, attack: TextAttack, secrets: list[Secret]) -> tuple[Comparison, Tensor, Tensor | None]:
        """Tries with the model, if the base model needs more than allowed; log-probabilities of both."""
        tries, logs = attack.tries(self._ask(self.model, secrets))
        without = None
        if self.base is not None:
            asked = self._ask(self.base, secrets)
            needed, without = attack.tries(asked)
            # An adversary with the base model may sample from it.
            needed = torch.minimum(needed, Sampling().tries(asked)[0])
            tries = tries.where(needed > self.tries, torch.inf)
        errors = tries[:, None]
        return Comparison(errors, torch.ones_like(errors).bool(), errors <= self.tries), logs, without

    def _ask(self, model: LanguageModel, secrets: list[Secret]) -> Asked:
        """A reading is kept for the next attack."""
        key = id(model), tuple(secrets)
        if key not in self._asked:
            self._asked[key] = Asked(model, secrets)
        return self._asked[key]

    def _strangers(self, places: Sequence[int], generator: torch.Generator) -> list[Secret]:
        """After each prompt, a secret that no record has there: another record's, or the base model's continuation.

        A secret that follows several prompts, such as a shared key, is never a stranger, unless there is no base
        model.
        """
        spelled, taken = self._spelled
        owners = dict(zip(reversed(spelled), reversed(self.secrets), strict=True))
        prompts = Counter(text for known in taken.values() for text in known)
        others = [text for text in owners if prompts[text] == 1 or self.base is None][::-1]
        shift = int(torch.randint(1, max(2, len(others)), (), generator=generator))
        found, without = [], []
        for place, own in ((place, self.secrets[place]) for place in places):
            known = taken[own.prompt]
            turns = range(len(others)) if len(known) < len(others) else ()
            order = (others[(place + shift + turn) % len(others)] for turn in turns)
            other = next((owners[each] for each in order if _differs(each, known)), None)
            if other is None:
                without.append(own)
            else:
                found.append(replace(own, tokens=other.tokens[: self.model.context - len(own.prompt)]))
        if self.base is not None:
            invented = [self._invented(secret) for secret in without[:_INVENTED]]
            found += [s for s in invented if _differs(self.model.decode(s.tokens).strip(), taken[s.prompt])]
        return found

    @torch.no_grad()
    def _invented(self, secret: Secret) -> Secret:
        """The base model's continuation of a prompt, as long as the secret; deterministic."""
        if secret not in self._said:
            assert self.base is not None
            generator = torch.Generator().manual_seed(int(_hash([secret])[:15], 16))
            prompt = torch.tensor(secret.prompt, device=self.base.device)
            read, said = self.base.after(prompt[:-1]), prompt[-1:]
            for _ in secret.tokens:
                logs = finite(Decoding().log_law(read(said[None])[0, -1:]).T, self.base)[:, 0]
                said = torch.cat([said, torch.multinomial(logs.exp(), 1, generator=generator).to(said)])
            self._said[secret] = replace(secret, tokens=tuple(said[1:].tolist()))
        return self._said[secret]

    @cached_property
    def _spelled(self) -> tuple[list[str], dict[tuple[int, ...], set[str]]]:
        """Every secret as text, and all that follow the same prompt."""
        spelled = [self.model.decode(secret.tokens).strip() for secret in self.secrets]
        taken: dict[tuple[int, ...], set[str]] = {}
        for secret, text in zip(self.secrets, spelled, strict=True):
            taken.setdefault(secret.prompt, set()).add(text)
        return spelled, taken

    @cached_property
    def _training_by_chance(self) -> float:
        """The p-value of these gains for texts that were not trained on.

        Training lowers the loss of its texts, and by more than that of strangers. Without the base, the loss itself is
        compared. A secret after its own prompt is compared with the same secret after others, if available.
        """
        some = list(range(min(_TESTED, len(self.secrets))))
        strangers = list(self.unseen) or self._strangers(some, torch.Generator().manual_seed(0))
        own, others = self._gains(list(self.secrets)), self._gains(strangers)
        if not strangers or not own.any():
            return 1.0
        chances = [] if self.base is None else [_above_zero(own)]
        here, there = _by_secret(self.secrets, own), _by_secret(strangers, others)
        both = [] if self.unseen else sorted(here.keys() & there.keys())
        if 2 * len(both) > len(there):
            chances.append(_above_zero(np.array([here[each] - there[each] for each in both])))
        else:
            chances.append(float(mannwhitneyu(own, others, alternative="greater").pvalue))
        return max(chances)

    def _gains(self, secrets: list[Secret]) -> NDArray[np.float64]:
        """By how much each log-probability grew; the log-probabilities themselves where there is no base."""
        logs = self._ask(self.model, secrets).logs(Decoding())
        if self.base is not None:
            logs = logs - self._ask(self.base, secrets).logs(Decoding())
        return logs.nan_to_num(nan=0.0, neginf=-1e9).numpy()  # impossible before and after: no gain

    def fits(self) -> None:
        """Check that the models are causal, differ, and use these tokens, and that the texts look trained on."""
        self.model.require_causal()
        self._check_tokens()
        if not self.unseen and not self._strangers([0], torch.Generator().manual_seed(0)):
            raise InputError(
                "There is no control.",
                needs="secrets that differ, the base model, or texts that the model was not trained on",
                got=f"{len(self.secrets)} secrets with no other one to compare them with",
                hint="--base BASE_MODEL or --unseen held-out.jsonl",
            )
        if self.base is None:
            return
        self.base.require_causal()
        gains = self._gains(list(self.secrets))
        if not gains.any():
            raise MisfitError(
                "The fine-tuning changed nothing.",
                needs="a model that differs from its base",
                got=f"the same probability for all {len(gains)} secrets",
                hint="check that the adapter was trained, saved after training, and loaded",
            )
        if self.planted.by_coin:  # a private training may have learned nothing of its canaries
            return
        likelier = int((gains > 0).sum())
        if gains.mean() <= 0 and 2 * likelier <= len(gains):
            raise self._misfit(f"{likelier} of {len(gains)} likelier, by {gains.mean():.2g} nats on average")
        chance = 1.0
        if self.unseen:
            chance = float(mannwhitneyu(gains, self._gains(list(self.unseen)), alternative="less").pvalue)
        if chance < _SURE:
            raise self._misfit(f"a larger gain for unseen texts than for these (p = {chance:.1g})")

    def _misfit(self, got: str) -> MisfitError:
        named = self.model.made_for
        return MisfitError(
            "The model was probably not fine-tuned on these texts.",
            needs="texts that became likelier by the fine-tuning",
            got=got,
            hint="check which file is which: other texts, another base, or a training cut short?"
            + (f" The adapter names {named} as its base." if named else ""),
        )

    def _check_tokens(self) -> None:
        """With the right tokenizer, any model finds texts likelier than random tokens."""
        read = [s for s in self.secrets if len(s.prompt) >= 4][:_READ]
        if not read:
            return
        prompts = [Secret(secret.prompt[:1], secret.prompt[1:], secret.line) for secret in read]
        tokens = sum(len(prompt.tokens) for prompt in prompts)
        loss = -float(log_probabilities(self.model, prompts, [Decoding()]).sum()) / tokens
        if not loss < math.log(self.model.vocabulary):
            raise MisfitError(
                "The model cannot read these texts.",
                needs=f"a loss below {math.log(self.model.vocabulary):.3g} per token, that of random tokens",
                got=f"{loss:.3g} on the prefixes",
                hint="the tokenizer that the model was trained with, and weights of a finished training",
            )


def _above_zero(values: NDArray[np.float64]) -> float:
    """The p-value of values this large under a law symmetric about zero."""
    return float(wilcoxon(values, alternative="greater").pvalue) if values.any() else 1.0  # pyright: ignore[reportAttributeAccessIssue]


def _by_secret(secrets: Sequence[Secret], gains: NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """The mean gain of each different secret: records that share one are a single observation."""
    found: dict[tuple[int, ...], list[float]] = {}
    for secret, gain in zip(secrets, gains.tolist(), strict=True):
        found.setdefault(secret.tokens, []).append(gain)
    return {tokens: float(np.mean(each)) for tokens, each in found.items()}


def _differs(text: str, known: Collection[str]) -> bool:
    """Whether a secret is none of these, nor the beginning of one, nor begins with one.

    >>> _differs("4829", {"4830"}), _differs("4829", {"48"}), _differs("48", {"4829"})
    (True, False, False)
    """
    return bool(text) and not any(text.startswith(own) or own.startswith(text) for own in known)


def _hash(secrets: Sequence[Secret]) -> str:
    return hashlib.sha256(repr([(s.prompt, s.tokens) for s in secrets]).encode()).hexdigest()


def text_game(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    find: Finder | None = None,
    tries: int = 100,
    claim: Claim | None = None,
) -> Texts:
    """The game behind `audit_text`, for `audit` with your own attacks, bounds and run.

    Canaries come with their control, those that were left out, and the exact rate of a guess.
    """
    if isinstance(texts, TextCanaries):
        if unseen is not None:
            hint = "leave unseen texts out: they are the canaries that were left out"
            exactly_one({"canaries": texts, "unseen texts": unseen}, hint)
        drawn = None if texts.candidates is None else texts.candidates / texts.cuts(model)
        planted = Planted(drawn, by_coin=True, claim=claim)
        texts, unseen = texts.inserted, texts.left_out
    else:
        planted = Planted(claim=claim)
    secrets = tuple(read_texts(texts, model, find))
    others = () if unseen is None else tuple(read_texts(unseen, model, find))
    both = {(s.prompt, s.tokens) for s in secrets} & {(s.prompt, s.tokens) for s in others}
    if both:
        raise InputError(
            "Some unseen texts are training texts.",
            needs="texts that the model was not trained on: a control that leaks hides a leak",
            got=f"{len(both)} that are on both sides",
            hint="take them out of the unseen texts",
        )
    return Texts(model, secrets, base, others, tries, planted)


def audit_text(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    find: Finder | None = None,
    tries: int = 100,
    claim: Claim | None = None,
    policy: Policy | None = None,
) -> AuditResult:
    """Which secrets of its texts come out of a fine-tuned model within this many tries, and not out of its base.

    `texts` and `unseen` (of the same kind, not trained on) are files with a JSON record per line or lists of such
    records, and `texts` may be canaries; `find` finds the secrets of plain texts (`Numbers`, `Windows`). A secret
    counts if the tries bring it out with a chance of one half. Canaries limit ε from below, and refute a `claim` that
    cannot be true.

    >>> from remanence.texts.tiny import tiny_pair
    >>> base, model, mine, unseen = tiny_pair()
    >>> audit_text(model, mine, base=base, unseen=unseen).verdict
    <Verdict.EXPOSED: 'EXPOSED'>
    """
    game = text_game(model, texts, base=base, unseen=unseen, find=find, tries=tries, claim=claim)
    return audit(game, policy=policy, target=model.name)
