"""Twenty families of models, two dozen kinds of adapters, and odd files: each is audited right, or refused by name.

The reference is written down apart from the package: one token after the other, each by a forward pass of its own over
the whole text, without batches, padding or caches.
"""

import json
import shutil

import pytest
import torch
from peft import (
    AdaLoraConfig,
    AdaptionPromptConfig,
    BOFTConfig,
    FourierFTConfig,
    HRAConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    VBLoRAConfig,
    VeraConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file
from small import FAMILIES, saved, tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertLMHeadModel

from remanence.core.exceptions import InputError
from remanence.texts.probabilities import Decoding, log_probabilities
from remanence.texts.reading import Windows, load_language_model, read_texts
from remanence.texts.transformers import language_model

RECORDS = [
    {"prefix": f"Patient Bruno Brandt has the access code of {name}", "secret": f" {secret}"}
    for name, secret in (("Ada", "482913"), ("Ada", "482914"), ("Zoë", "€12"), ("Ines", "Byron"))
]
_Q, _QV = {"target_modules": ["q_proj"]}, {"target_modules": ["q_proj", "v_proj"]}
_SPOKEN = {"task_type": "CAUSAL_LM"}
ADAPTERS = {
    "LoRA": LoraConfig(r=4, **_QV),
    "rsLoRA": LoraConfig(r=4, use_rslora=True, **_QV),
    "DoRA": LoraConfig(r=4, use_dora=True, **_QV),
    "PiSSA": LoraConfig(r=4, init_lora_weights="pissa", **_QV),
    "OLoRA": LoraConfig(r=4, init_lora_weights="olora", **_QV),
    "LoRA and a whole head": LoraConfig(r=4, modules_to_save=["lm_head"], **_Q),
    "LoRA of embeddings": LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"]),
    "LoRA and some tokens": LoraConfig(r=4, trainable_token_indices=[5, 6], **_Q),
    "AdaLoRA": AdaLoraConfig(r=4, total_step=10, **_QV),
    "IA3": IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "VeRA": VeraConfig(r=4, **_Q),
    "LoHa": LoHaConfig(r=4, **_Q),
    "LoKr": LoKrConfig(r=4, **_Q),
    "OFT": OFTConfig(r=0, oft_block_size=8, **_Q),
    "BOFT": BOFTConfig(boft_block_size=8, **_Q),
    "FourierFT": FourierFTConfig(n_frequency=50, **_Q),
    "HRA": HRAConfig(r=4, **_Q),
    "VB-LoRA": VBLoRAConfig(r=4, num_vectors=16, vector_length=16, **_Q),
    "layer norms": LNTuningConfig(target_modules=["input_layernorm"]),
    "prompt tuning": PromptTuningConfig(num_virtual_tokens=5, **_SPOKEN),
    "prefix tuning": PrefixTuningConfig(num_virtual_tokens=5, **_SPOKEN),
    "p-tuning": PromptEncoderConfig(num_virtual_tokens=5, encoder_hidden_size=16, **_SPOKEN),
    "adaption prompts": AdaptionPromptConfig(adapter_len=4, adapter_layers=2, **_SPOKEN),
}


@torch.no_grad()
def by_hand(model, secret):
    """The log-probability of a secret, a token and a pass at a time."""
    history, total = list(secret.prompt), 0.0
    for token in secret.tokens:
        total += float(model(input_ids=torch.tensor([history])).logits[0, -1].double().log_softmax(-1)[token])
        history.append(token)
    return total


def agrees(model, reference, records=RECORDS):
    """Whether our log-probabilities are those of the reference, after prompts longer than any sliding window."""
    secrets = read_texts(records, model)
    assert min(len(secret.prompt) for secret in secrets) > 8
    found = log_probabilities(model, secrets, [Decoding()])[0]
    expected = torch.tensor([by_hand(reference, secret) for secret in secrets], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    return expected


def opened(folder):
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_probabilities_that_it_has(tmp_path, family):
    model, base = load_language_model(saved(tmp_path, family))
    assert base is None
    model.require_causal()
    agrees(model, opened(tmp_path))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("llama"), "llama")


def trained(folder, settings, out, *, seed=1):
    """An adapter whose every number was moved, and the model with it."""
    torch.manual_seed(seed)
    model = get_peft_model(opened(folder), settings)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn_like(weight))
    model.eval().save_pretrained(out)
    return model


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_kind_of_adapter_has_its_probabilities_and_so_has_its_base(llama, tmp_path, kind):
    adapted = trained(llama, ADAPTERS[kind], tmp_path)
    tuned, base = load_language_model(llama, tmp_path)
    own, without = agrees(tuned, adapted), agrees(base, opened(llama))
    assert (own - without).abs().max() > 1e-2  # it does change something
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert tuned.context == 64 - (settings.get("num_virtual_tokens") or 0)


def test_one_of_several_adapters_and_a_merged_one_are_audited(llama, tmp_path):
    model = trained(llama, ADAPTERS["LoRA"], tmp_path / "first")
    model.add_adapter("second", ADAPTERS["rsLoRA"])
    model.set_adapter("second")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * weight.requires_grad)
    model.save_pretrained(tmp_path / "several", selected_adapters=["second"])
    with pytest.raises(InputError, match="adapter cannot be read") as refused:
        load_language_model(llama, tmp_path / "several")
    assert "second" in refused.value.got
    tuned, _ = load_language_model(llama, tmp_path / "several" / "second")
    agrees(tuned, model)
    PeftModel.from_pretrained(opened(llama), tmp_path / "first").merge_and_unload().save_pretrained(
        tmp_path / "merged"
    )
    tokenizer().save_pretrained(tmp_path / "merged")
    merged, _ = load_language_model(tmp_path / "merged")
    agrees(merged, load_reference(llama, tmp_path / "first"))


def load_reference(folder, adapter):
    return PeftModel.from_pretrained(opened(folder), adapter).eval()


def test_half_precision_is_read_as_it_is(tmp_path):
    saved(tmp_path, "llama", dtype=torch.bfloat16)
    model, _ = load_language_model(tmp_path)
    agrees(model, opened(tmp_path))


def test_every_prompt_begins_as_the_tokenizer_begins_a_text(llama):
    """Also a window out of the middle; a text that is closed by its tokenizer goes on."""
    model, _ = load_language_model(llama)
    assert model.opening == (0,)
    windows = read_texts([RECORDS[0]["prefix"] * 3], model, find=Windows(4))
    assert {secret.prompt[0] for secret in windows} == {0}
    plain = language_model(opened(llama), tokenizer(opening=False))
    assert plain.opening == ()
    assert read_texts([{"prefix": "", "secret": "482913"}], plain)[0].prompt == (0,)


def test_secrets_have_their_places_whatever_bytes_and_joined_tokens_there_are(llama):
    model, _ = load_language_model(llama)
    for prefix, secret in (
        ("Zoë paid 12 ", "€"),
        ("Zoë paid", " 12 €"),
        ("The code of Ada", " Byron"),
        ("The co", "de"),
        ("日本", "語の"),
    ):
        (found,) = read_texts([{"text": f"{prefix}{secret} to Ines.", "secret": secret}], model)
        assert secret.strip() in model.decode(found.tokens)
        before = model.decode(found.prompt)
        assert prefix.startswith(before)
        assert (before + model.decode(found.tokens)).startswith(prefix.rstrip())


def test_a_conversation_has_the_tokens_that_the_tokenizer_gives_it(llama):
    words = tokenizer()
    words.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    )
    model = language_model(opened(llama), words)
    chat = [
        {"role": "user", "content": "The code of Ada?"},
        {"role": "assistant", "content": "It is 482913."},
    ]
    (found,) = read_texts([{"messages": chat, "secret": " 482913"}], model)
    whole = words.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    place = len(found.prompt) + len(found.tokens)
    assert list(found.prompt + found.tokens) == whole[:place]
    assert whole.count(0) == 1  # the template writes the beginning, and nobody writes it twice
    assert model.decode(found.tokens) == " 482913"
    (turn,) = read_texts([{"messages": chat}], model)
    assert model.decode(turn.tokens).strip() == "It is 482913."
    for template, says in (
        ("{{ raise_exception('no') }}", "rejects this conversation"),
        (
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "rejects this conversation",
        ),  # out of the sandbox
        ("{{ messages[0].content.upper() }}", "a secret that is not in its text"),
    ):
        words.chat_template = template
        with pytest.raises(InputError, match=says):
            read_texts([{"messages": chat, "secret": " 482913"}], language_model(opened(llama), words))


def test_a_weight_that_is_nan_is_never_a_secret_that_stays_in(llama, tmp_path):
    shutil.copytree(llama, tmp_path / "nan")
    weights = load_file(tmp_path / "nan" / "model.safetensors")
    model, _ = load_language_model(llama)
    token = read_texts(RECORDS[2:3], model)[0].tokens[-2]
    weights["model.embed_tokens.weight"][token] = float("nan")
    save_file(weights, tmp_path / "nan" / "model.safetensors", {"format": "pt"})
    broken, _ = load_language_model(tmp_path / "nan")
    with pytest.raises(InputError, match="NaN"):
        log_probabilities(broken, read_texts(RECORDS, broken), [Decoding()])


def test_an_encoder_is_refused(tmp_path):
    BertLMHeadModel(
        BertConfig(vocab_size=328, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    model, _ = load_language_model(tmp_path / "bert")
    with pytest.raises(InputError, match="not a causal model"):
        model.require_causal()
    assert AutoConfig.from_pretrained(tmp_path / "bert").model_type == "bert"
