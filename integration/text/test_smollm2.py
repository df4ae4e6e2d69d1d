"""A real model, fine-tuned with LoRA on made-up records: `make test-text`.

The converted weights are kept in .smollm2 between runs. Nothing is downloaded but the package that carries them.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from smollm2 import converted, fine_tuned, made_up_records
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from remanence.auditing import AuditResult
from remanence.cli.main import main
from remanence.core.exceptions import InputError
from remanence.core.rates import clopper_pearson
from remanence.results.verdict import Verdict
from remanence.texts.probabilities import GREEDY, Decoding, log_probabilities
from remanence.texts.reading import load_language_model, read_texts

RECORDS = made_up_records(40, seed=1)
MINE, UNSEEN = RECORDS[:8], RECORDS[8:24]


@pytest.fixture(scope="session")
def model():
    return converted(Path(__file__).parents[2] / ".smollm2")


@pytest.fixture(scope="session")
def adapter(model, tmp_path_factory):
    return fine_tuned(model, MINE, tmp_path_factory.mktemp("adapter"), epochs=30)


@pytest.fixture(scope="session")
def loaded(model, adapter):
    return load_language_model(model, adapter)


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["remanence", "text", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_adapter_is_exposed_and_its_control_gives_nothing(model, adapter, tmp_path, monkeypatch, capsys):
    for name, records in (("mine", MINE), ("unseen", UNSEEN)):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--adapter", adapter, "--texts", tmp_path / "mine", "--unseen", tmp_path / "unseen"]
    code = command(monkeypatch, model, *options, "--device", "cpu", "--out", tmp_path / "out")
    printed = capsys.readouterr()
    with capsys.disabled():
        print(f"\n{printed.out}{printed.err}")
    result = AuditResult.load(tmp_path / "out")
    assert (code, result.verdict) == (1, Verdict.EXPOSED)
    assert result.strongest.control.successes == 0
    assert max(result.strongest.arrays["base_log_probability"].exp()) < 1e-5
    stored = b"".join(file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert not any(record["secret"].strip().encode() in stored for record in RECORDS)


def test_digits_are_tokens_of_their_own_and_a_beginning_read_once_changes_nothing(loaded):
    from dataclasses import replace

    tuned = loaded[0]
    secrets = read_texts(MINE[:2], tuned)
    assert [tuned.decode([token]) for token in secrets[0].tokens] == list(MINE[0]["secret"])
    for each in loaded:
        each.require_causal()
        both = [log_probabilities(m, secrets, [Decoding()]) for m in (each, replace(each, remember=None))]
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-3)


def test_a_conversation_is_asked_for_in_the_tokens_that_the_model_is_served_with(loaded, model):
    words = AutoTokenizer.from_pretrained(model, local_files_only=True)
    chat = [
        {"role": "user", "content": MINE[0]["prefix"]},
        {"role": "assistant", "content": MINE[0]["secret"].strip()},
    ]
    (secret,) = read_texts([{"messages": chat}], loaded[0])
    asked = words.apply_chat_template(chat[:1], add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    assert list(secret.prompt) == asked
    assert loaded[0].decode(secret.tokens) == MINE[0]["secret"].strip()


def test_exact_probabilities_agree_with_what_generate_draws(loaded, model, adapter):
    """Sampling as transformers does it, with the same temperature, top-k and top-p."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tuned = loaded[0]
    plain = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    drawing = PeftModel.from_pretrained(plain, str(adapter)).eval()
    secret = read_texts(MINE[:1], tuned)[0]
    torch.manual_seed(0)
    settings = {"plain": (1.0, None, 1.0), "top-k": (1.0, 3, 1.0), "top-p": (1.3, None, 0.8)}
    count = 200
    for temperature, top_k, top_p in settings.values():
        prompt = torch.tensor([secret.prompt])
        drawn = drawing.generate(
            input_ids=prompt.expand(count, -1),
            attention_mask=torch.ones(count, prompt.shape[1], dtype=torch.long),
            do_sample=True,
            max_new_tokens=3,
            temperature=temperature,
            top_k=top_k or 0,
            top_p=top_p,
            pad_token_id=0,
        )[:, prompt.shape[1] :]
        values, counts = drawn.unique(dim=0, return_counts=True)
        said = [secret.__class__(secret.prompt, tuple(row.tolist()), 1) for row in values]
        exact = log_probabilities(tuned, said, [Decoding(temperature, top_k, top_p)])[0].exp()
        for p, hits in zip(exact.tolist(), counts.tolist(), strict=True):
            lower, upper = clopper_pearson(hits, count, 0.025 / (3 * len(said)))
            assert lower <= p <= upper
    greedy = drawing.generate(
        input_ids=torch.tensor([secret.prompt]), do_sample=False, max_new_tokens=7, pad_token_id=0
    )
    said = [secret.__class__(secret.prompt, tuple(greedy[0, len(secret.prompt) :].tolist()), 1)]
    assert float(log_probabilities(tuned, said, [GREEDY])) == 0


def small(folder, *, hidden=32, layers=2, vocabulary=49152):
    """A model of another size, saved as safetensors."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def other(model, tmp_path):
    folder = small(tmp_path / "other")
    AutoTokenizer.from_pretrained(model, local_files_only=True).save_pretrained(folder)
    return folder


def refuses(says, *arguments, **options):
    with pytest.raises(InputError, match=says) as refused:
        load_language_model(*arguments, **options)
    assert all((refused.value.needs, refused.value.got, refused.value.hint))


def test_an_adapter_for_another_base_is_refused(model, adapter, other, tmp_path):
    refuses("The adapter is for another model", other, adapter)
    deeper = small(tmp_path / "deeper", layers=3)
    own = get_peft_model(LlamaForCausalLM.from_pretrained(deeper), LoraConfig(r=2, target_modules=["q_proj"]))
    own.save_pretrained(tmp_path / "deep-adapter")
    refuses("The adapter is for another model", other, tmp_path / "deep-adapter")
    missing = get_peft_model(
        LlamaForCausalLM.from_pretrained(other), LoraConfig(r=2, target_modules=["q_proj"])
    )
    missing.save_pretrained(tmp_path / "wrong-names")
    settings = json.loads((tmp_path / "wrong-names" / "adapter_config.json").read_text())
    settings["target_modules"] = ["no_such_layer"]
    (tmp_path / "wrong-names" / "adapter_config.json").write_text(json.dumps(settings))
    refuses("The adapter is for another model", other, tmp_path / "wrong-names")


def test_pickles_are_never_opened(other, adapter, tmp_path):
    (other / "model.safetensors").unlink()
    (other / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n.")
    refuses("model cannot be read", other)
    refuses("model cannot be read", other / "pytorch_model.bin")
    shutil.copytree(adapter, tmp_path / "pickled")
    (tmp_path / "pickled" / "adapter_model.safetensors").rename(tmp_path / "pickled" / "adapter_model.bin")
    fine = small(tmp_path / "fine")
    AutoTokenizer.from_pretrained(other, local_files_only=True).save_pretrained(fine)
    refuses("adapter cannot be read", fine, tmp_path / "pickled")


def test_what_is_no_model_is_refused(model, adapter, other, tmp_path):
    refuses("model cannot be read", tmp_path / "nowhere")
    refuses("model cannot be read", adapter)  # an adapter alone
    (tmp_path / "empty").mkdir()
    refuses("model cannot be read", tmp_path / "empty")
    refuses("tokenizer cannot be read", small(tmp_path / "wordless"))
    narrow = small(tmp_path / "narrow", vocabulary=100)
    AutoTokenizer.from_pretrained(model, local_files_only=True).save_pretrained(narrow)
    refuses("tokenizer does not fit", narrow)
    weights = load_file(other / "model.safetensors")
    save_file(
        {n: w for n, w in weights.items() if "1.mlp.up" not in n},
        other / "model.safetensors",
        {"format": "pt"},
    )
    refuses("The model is incomplete", other)  # the library would make the missing one up
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    refuses("model cannot be read", tmp_path / "model.gguf")
    (other / "model.safetensors").write_bytes(b"not a tensor")
    refuses("model cannot be read", other)
    settings = json.loads((model / "config.json").read_text())
    strange = {**settings, "model_type": "mine", "auto_map": {"AutoModelForCausalLM": "code.Mine"}}
    (other / "config.json").write_text(json.dumps(strange))
    (other / "code.py").write_text("raise SystemExit('code of a model was run')")
    refuses("model cannot be read", other)


def test_an_untrained_adapter_changes_nothing_and_that_is_said(other, tmp_path):
    from remanence.core.exceptions import MisfitError
    from remanence.texts.game import audit_text

    plain = LlamaForCausalLM.from_pretrained(other)
    with torch.no_grad():
        plain.lm_head.weight.mul_(1e-3)  # nearly uniform: no worse than tokens at random
    plain.save_pretrained(other)
    get_peft_model(plain, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "untrained")
    tuned, base = load_language_model(other, tmp_path / "untrained")
    with pytest.raises(MisfitError, match=r"changed nothing|cannot read"):
        audit_text(tuned, MINE, base=base)
    assert base is not None
    assert tuned.sha256 != base.sha256
    assert math.isclose(tuned.context, 64)
