"""Small models of many families, with random weights, and a tokenizer that was trained on a few words."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS = [
    "The code of Ada Byron is 482913.",
    "Patient Bruno Brandt has the access code 019283.",
    "Zoë paid 12 € to Ines.",
]

_SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8,
}  # fmt: skip
_OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
FAMILIES = {
    "gpt2": _OLD,
    "gptj": {**_OLD, "rotary_dim": 4},
    "gpt_neo": {"hidden_size": 32, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4,
                "window_size": 8, "max_position_embeddings": 64, "intermediate_size": 64},
    "gpt_neox": _SIZES,
    "llama": _SIZES,
    "mistral": {**_SIZES, "sliding_window": 8},
    "mixtral": {**_SIZES, "num_local_experts": 4, "sliding_window": 8},
    "qwen2": {**_SIZES, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": _SIZES,
    "gemma": _SIZES,
    "gemma2": {**_SIZES, "sliding_window": 8},
    "gemma3_text": {**_SIZES, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "phi": _SIZES,
    "phi3": _SIZES,
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": False,
               "max_position_embeddings": 64},
    "mamba": {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
    "olmo2": _SIZES,
    "stablelm": _SIZES,
}  # fmt: skip


def tokenizer(*, opening=True):
    """Byte pairs that join spaces with words and digits with digits, as most do."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(WORDS * 3, trainer)
    if opening:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **ends)


def saved(folder, family, *, seed=0, dtype=torch.float32):
    """A model of a family with random weights that say something, in a folder with its tokenizer."""
    words, given = tokenizer(), FAMILIES[family]
    torch.manual_seed(seed)
    tokens = {"vocab_size": len(words) + 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **tokens, **given))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)
    model.to(dtype).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
