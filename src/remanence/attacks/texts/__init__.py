"""What an adversary does with a language model: let it go on, and search the completions of a template."""
