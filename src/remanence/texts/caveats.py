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
    "The control is another record's secret after the same prompt. What the model would say of any such text may "
    "count as recovered.",
    "Keep some texts out of the training and hand them in as unseen texts.",
)
