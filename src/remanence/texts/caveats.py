"""Reasons not to trust an audit of language models, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

NO_BASE_MODEL = Caveat(
    "no-base-model",
    "a language model is audited without the base model that its fine-tuning started from.",
    "What the base model says anyway, from its own training, counts as if the fine-tuning gave it away.",
    "Name the base model, or audit the adapter, whose base is known.",
)
SECRETS_SHARE_TEXTS = Caveat(
    "secrets-share-texts",
    "some texts hold more than one secret, or are there more than once.",
    "Secrets of one text tend to come out together. The interval treats each as an observation of its own, and is "
    "narrower than it would be for as many separate texts.",
    "Read the counts as those of this file, or keep one secret of each text.",
)
NO_UNSEEN_TEXTS = Caveat(
    "no-unseen-texts",
    "a language model is audited without similar texts that it was not trained on.",
    "The control is another record's secret after the same prompt, or what the base model says there if no other "
    "record's secret differs or belongs to one prompt alone. What the model would say of any such text may count as "
    "recovered, and a secret that it says after any prompt counts on both sides.",
    "Keep some texts out of the training and hand them in as unseen texts.",
)
TRAINING_NOT_SHOWN = Caveat(
    "training-not-shown",
    "nothing shows that the model was fine-tuned on these texts: training makes its texts likelier, and more so than "
    "texts that it did not see.",
    "If these are other texts, or the base is not the one that the fine-tuning began with, the audit says nothing of "
    "the texts that were trained on. A short or a private training looks the same.",
    "Check the files. If they are right, the training learned too little of these texts to tell them from others.",
)
ADAPTER_NAMES_ANOTHER_BASE = Caveat(
    "adapter-names-another-base",
    "an adapter names another base model in its adapter_config.json than the one that was handed in.",
    "On another base, an adapter gives away less than on its own. A folder that was merely renamed does no harm.",
    "Hand in the base model that the adapter was trained on.",
)
