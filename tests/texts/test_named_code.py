"""A folder may not choose code: settings that name a module or a kernel are refused before a library sees them."""

import pytest

from remanence.scale.reading import UnusableFileError
from remanence.texts.reading import refuse_named_code


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evil"},
        {"peft_type": "LORA", "megatron_config": {"a": 1}},
        {"peft_type": "LORA", "megatron_core": "evil"},
        {"model_type": "llama", "_attn_implementation": "somebody/kernel"},
        {"model_type": "llama", "attn_implementation": {"text": "somebody/kernel"}},
    ],
)
def test_settings_that_name_code_are_refused(settings):
    with pytest.raises(UnusableFileError, match="names code"):
        refuse_named_code(settings)


def test_settings_as_libraries_write_them_are_read():
    refuse_named_code({"peft_type": "LORA", "megatron_config": None, "megatron_core": "megatron.core"})
    refuse_named_code({"model_type": "llama", "_attn_implementation": "sdpa"})
