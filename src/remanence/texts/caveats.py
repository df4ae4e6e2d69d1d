"""Reasons not to trust an audit of language models, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

NO_BASE_MODEL = Caveat(
    "no-base-model",
    "a language model is audited without the base model that its fine-tuning started from.",
    "Secrets that the base model already knows from its own training count as leaks of the fine-tuning.",
    "Name the base model, or audit the adapter, whose base is known.",
)
SECRETS_SHARE_TEXTS = Caveat(
    "secrets-share-texts",
    "some texts hold more than one secret, or occur more than once.",
    "Secrets of one text tend to come out together. The interval treats each as an independent observation, so it "
    "is narrower than for as many separate texts.",
    "Read the counts as counts for this file, or keep one secret per text.",
)
NO_UNSEEN_TEXTS = Caveat(
    "no-unseen-texts",
    "a language model is audited without similar texts that it was not trained on.",
    "The control is another record's secret after the same prompt, or what the base model says there if no other "
    "record's secret differs or belongs to one prompt alone. A secret that the model would also say without training "
    "on it may count as recovered: a label that many texts share, which the model has learned to predict, counts "
    "like a password that they share. A secret that it says after any prompt counts on both sides.",
    "Keep some texts out of training and pass them as unseen texts, with their own secrets.",
)
TRAINING_NOT_SHOWN = Caveat(
    "training-not-shown",
    "nothing shows that the model was fine-tuned on these texts: training makes its texts likelier, and more so than "
    "texts that it did not see.",
    "If these are other texts, or the fine-tuning started from another base, the audit says nothing about "
    "the training texts. A short or private training looks the same.",
    "Check the files. If they are right, the training learned too little from these texts to show.",
)
ADAPTER_NAMES_ANOTHER_BASE = Caveat(
    "adapter-names-another-base",
    "an adapter's adapter_config.json names another base model than the one given.",
    "On another base, an adapter gives away less than on its own. A renamed folder is harmless.",
    "Pass the base model that the adapter was trained on.",
)
