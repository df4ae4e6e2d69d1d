"""Fine-tuned language models and adapters: the exact odds of a secret."""
