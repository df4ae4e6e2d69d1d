"""Texts from the gradient of a transformer that the test makes itself: exact, to the last token, or not at all."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from networks import VOCABULARY, Tiny
from one_update import foreign_update
from remanence import InputError
from remanence.core.releases import Gradient
from remanence.results.verdict import Policy
from remanence.updates.captured import Captured
from remanence.updates.declared import Declared, LocalTraining, Noise
from remanence.updates.guard import reason_to_withhold
from remanence.updates.inspection import Subject, inspect, open_update
from remanence.updates.inspection import read as read_subject
from remanence.updates.opening import Update, belongs, recognise, rounding_of_difference
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import SharedGradient
from remanence.updates.texts.model import Projections, text_model
from remanence.updates.texts.naming import name_sequences, rows_that_moved, tokens_in_batch
from remanence.updates.texts.reader import read_texts, recompute, verify_texts

LENGTH = 10
FLOAT32 = 1.2e-7


def texts(count, seed=0, length=LENGTH):
    return torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def slopes(model, loss):
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def update(model, rows, labels=None, *, prompt=0, **options):
    """The gradient of a mean over tokens behind a prompt, each the label of those before it, or of a classifier's."""
    if labels is not None:
        return slopes(model, cross_entropy(model(rows), labels, **options))
    answers = [model(row[None])[0, prompt:-1] for row in rows]
    wanted = [row[prompt + 1 :] for row in rows]
    return slopes(model, cross_entropy(torch.cat(answers), torch.cat(wanted), **options))


def assert_named(found, ids):
    """All of these texts are proven, and no others."""
    assert found.explains_all
    assert sorted(found.sequences) == sorted(tuple(row.tolist()) for row in ids)


def stepped(model, gradient, rate=0.1):
    """The weights before and after a step."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    return before, {name: before[name] - rate * value for name, value in gradient.items()}


def audited_update(model, update, longest=12):
    declared, reader = Declared(), recognise(model)
    subject = Subject(model, reader, [belongs(reader, model, update, declared)], declared)
    return inspect(subject, policy=Policy(), target="a test", longest=longest)


def read(model, gradient):
    return read_texts(text_model(model), gradient, precision=FLOAT32, longest=16)


@pytest.mark.parametrize(("tied", "positions", "factor"), [
    (False, True, 1.0), (True, True, 0.03), (False, False, 1.0),
])  # fmt: skip
def test_every_text_comes_back_with_its_last_token(tied, positions, factor):
    model = Tiny(tied=tied, positions=positions).eval()
    assert text_model(model).has_positions == positions
    ids = texts(4)
    assert_named(read(model, {name: factor * value for name, value in update(model, ids).items()}), ids)


@pytest.mark.parametrize("tied", [False, True])
def test_a_dozen_texts_that_end_with_tokens_of_their_own_come_back(tied):
    model, ids = Tiny(tied=tied).eval(), texts(12, length=5, seed=1)
    assert_named(read(model, update(model, ids)), ids)


def test_the_first_token_is_found_though_queries_have_no_gradient_for_it():
    model = Tiny().eval()
    ids = texts(2, seed=3)
    gradient = update(model, ids)
    text = text_model(model)
    everything = tokens_in_batch(text, gradient, precision=FLOAT32, length=1)[0].tolist()
    assert set(ids[:, 0].tolist()) <= set(everything)
    queries = type(text.first)(text.first.names[:1], text.first.transposed)
    alone = type(text)(model, text.vocabulary, queries, text.second, True, True)
    missed = tokens_in_batch(alone, gradient, precision=FLOAT32, length=1)[0].tolist()
    assert not set(ids[:, 0].tolist()) & set(missed)


@pytest.mark.parametrize(("labels", "seed", "length", "smoothing"), [
    ([3], 4, 10, 0.0), ([3], 4, 10, 0.1), ([3, 1], 1, 7, 0.0), ([3, 1], 2, 7, 0.0),
])  # fmt: skip
def test_an_encoder_gives_one_or_two_texts_with_their_labels_smoothed_or_not(labels, seed, length, smoothing):
    model, ids = Tiny(classes=5).eval(), texts(len(labels), seed=seed, length=length)
    assert not text_model(model).is_causal
    found = read(model, update(model, ids, torch.tensor(labels), label_smoothing=smoothing))
    assert found.explains_all
    named = zip(found.sequences, found.labels, strict=True)
    assert sorted(named) == sorted(zip(map(tuple, ids.tolist()), labels, strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["noise", "shuffled", "stale"])
def test_an_update_that_is_not_the_models_proves_no_text(kind, seed):
    model, ids = Tiny().eval(), texts(3, seed=seed)
    loss = lambda said, ids: cross_entropy(said[:, :-1].flatten(0, 1), ids[:, 1:].flatten())  # noqa: E731
    assert read(model, foreign_update(kind, model, ids, ids, loss=loss)).count == 0


@pytest.mark.parametrize("tied", [False, True])
def test_more_tokens_than_dimensions_prove_no_text_and_the_audit_says_that_none_was_tested(tied):
    model, ids = Tiny(size=32, tied=tied).eval(), texts(8)
    gradient = update(model, ids)
    found = read(model, gradient)
    assert (found.sequences, found.explains_all) == ((), False)
    # An embedding of its own gives its tokens away all the same.
    assert found.tokens == (0 if tied else len(ids[:, :-1].unique()))
    for sent, is_crowded in ((gradient, True), (update(model, ids[:2]), False)):
        stacked = Gradient({name: value[None] for name, value in sent.items()})
        raised = Captured(SharedGradient(model, (16,)), stacked).caveats()
        assert ("update-crowded" in [caveat.id for caveat in raised]) == is_crowded


def test_tokens_that_count_a_hundred_thousand_times_less_are_found_beside_others():
    model = Tiny(tied=True, positions=False).eval()
    loud, quiet = texts(2, seed=7), texts(2, seed=8)
    parts = update(model, loud), update(model, quiet)
    gradient = {name: value + 1e-5 * parts[1][name] for name, value in parts[0].items()}
    found = set(tokens_in_batch(text_model(model), gradient, precision=FLOAT32, length=1)[0].tolist())
    assert found == set(torch.cat([loud, quiet])[:, :-1].flatten().tolist())


def test_a_client_whose_kernels_add_up_in_another_order_hides_no_text():
    # Forward passes of two shapes on one GPU were 40 rounding errors apart at the second layer.
    model, ids = Tiny().eval(), texts(4)
    generator = torch.Generator().manual_seed(0)

    def otherwise(_, __, made):
        noise = torch.randn(made.shape, generator=generator)
        return made + 40 * FLOAT32 * made.norm(dim=-1, keepdim=True) * noise / noise.norm(
            dim=-1, keepdim=True
        )

    handle = model.blocks[0].register_forward_hook(otherwise)
    gradient = update(model, ids)
    handle.remove()
    found, _ = name_sequences(text_model(model), gradient, precision=FLOAT32, longest=16)
    assert sorted(tuple(one.tolist()) for one in found) == sorted(map(tuple, ids[:, :-1].tolist()))


def test_a_layer_whose_sums_were_rounded_more_than_its_numbers_keeps_its_rank():
    model, ids = Tiny().eval(), texts(3)
    gradient, text = update(model, ids), text_model(model)
    generator = torch.Generator().manual_seed(0)
    names = text.second.weights(gradient)
    rows = torch.cat([gradient[name] for name in names])
    sizes = (
        FLOAT32 * float(rows.norm()) * torch.logspace(1, -3, 32)
    )  # fading into the rounding of single numbers
    left, right = (
        torch.linalg.qr(torch.randn(size, 32, generator=generator)).Q for size in (len(rows), rows.shape[1])
    )
    gradient |= dict(zip(names, (rows + (left * sizes) @ right.mT).split(64), strict=True))
    assert text.span(text.second, gradient, FLOAT32).rank == ids[:, :-1].numel()


def test_a_padding_token_whose_embedding_is_zero_is_no_text():
    # Zero lies in every span, and a text of it leaves no trace: it must not be claimed along with the others.
    model, ids = Tiny(tied=True, positions=False).eval(), texts(3, seed=2, length=7).clamp(min=1)
    with torch.no_grad():
        model.embedding.weight[0] = 0
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    gradient = update(model, ids)
    given = [*ids[:, :-1], torch.tensor([0])]
    assert_named(read(model, gradient), ids)
    assert_named(verify_texts(text_model(model), gradient, given, rounding=Rounding(FLOAT32)), ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_hides_no_text(dtype):
    model, ids = Tiny(size=128).eval(), texts(2, seed=9)
    gradient = {name: (512 * value).to(dtype).double() for name, value in update(model, ids).items()}
    assert_named(read_texts(text_model(model), gradient, precision=torch.finfo(dtype).eps, longest=16), ids)


def test_rows_of_a_matrix_that_makes_the_logits_too_tell_no_tokens():
    model, ids = Tiny(tied=True), texts(2)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    # Most rows move by less than the weights' rounding, and those that are left are not the batch's alone.
    sent = {name: weights[name] - (weights[name] - 0.1 * part) for name, part in update(model, ids).items()}
    assert 0 < sent["embedding.weight"].any(1).sum() < VOCABULARY / 2
    found = audited_update(model, Update(sent, rounding_of_difference(weights)), longest=16)
    assert found.strongest.proven == 2
    assert found.subject["tokens"]["number"] <= len(ids.unique())


def test_tokens_are_called_certain_only_where_texts_are_proven():
    tied, untied, ids = Tiny(tied=True, positions=False).eval(), Tiny(size=32).eval(), texts(2, seed=1)
    plain = update(tied, ids)
    # Two updates at different weights, as several local steps make them: tokens that are not there may fit.
    before, after = stepped(tied, plain, 0.5)
    tied.load_state_dict(after)
    twice = {name: value + plain[name] for name, value in update(tied, ids).items()}
    tied.load_state_dict(before)
    # Noise that has a few rows of the embedding: no token of them was ever in a batch.
    torch.manual_seed(0)
    noise = {name: torch.randn_like(value) for name, value in untied.named_parameters()}
    noise[f"{text_model(untied).embedding}.weight"][5:] = 0.0
    for model, gradient, certain in ((tied, plain, True), (tied, twice, False), (untied, noise, False)):
        found = audited_update(model, Update(gradient, Rounding(FLOAT32)))
        assert found.subject["tokens"]["certain"] == certain


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_a_declared_weight_decay_is_taken_out_of_one_step_and_hides_no_text(decay):
    model, ids = Tiny().eval(), texts(2, seed=1)
    held = dict(model.named_parameters())
    sent = {name: value + decay * held[name].detach() for name, value in update(model, ids).items()}
    declared = Declared(LocalTraining(weight_decay=decay))
    (proof,) = read_subject(open_update(model, sent, declared))
    assert_named(proof, ids)
    assert read_subject(open_update(model, sent, Declared()))[0].count == 0, "nobody declared it"
    with pytest.raises(InputError, match="--weight-decay without --learning-rate"):
        open_update(model, stepped(model, sent)[1], declared, is_after=True)


LONG, SHORT = texts(1, seed=1)[0], texts(1, seed=2, length=7)[0]
WEIGHTS = 1 + torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("rows", "options", "proven", "size"), [
    ([LONG, SHORT], {"prompt": 4}, [LONG, SHORT], 2),
    # Weights of tokens, and another text that ends earlier, look the same: then the number of texts is open.
    ([LONG, SHORT], {"weight": WEIGHTS}, [LONG, SHORT], None),
    ([LONG, LONG[:6]], {}, [LONG], None),
    ([LONG, SHORT], {"label_smoothing": 0.1}, [], None),
])  # fmt: skip
def test_prompts_and_weights_hide_no_text_and_smoothed_labels_keep_them_from_being_claimed(
    tied, rows, options, proven, size
):
    model = Tiny(tied=tied).eval()
    found = read(model, update(model, rows, **options))
    if proven:
        assert_named(found, proven)
    else:
        assert (found.count, found.similarity > 0.99) == (0, True)
        assert {tuple(row.tolist()) for row in rows} <= set(found.sequences)
    assert found.batch_size == size


def test_what_a_text_counts_follows_its_share():
    model, ids = Tiny().eval(), texts(3, seed=1)
    named = [(row, None) for row in ids]
    text, gradient = text_model(model), update(model, ids[:2])
    shares = tuple(share * torch.ones(LENGTH - 1) for share in (1.0, 1.0, 1e-6))
    found = recompute(text, gradient, named, shares, Rounding(FLOAT32))
    assert found.held.left < 1e-4
    assert min(found.counts[:2]) > 0.1
    assert found.counts[2] < 1e-4


def test_a_model_with_few_positions_is_read_no_further_than_it_can_read():
    model, ids = Tiny().eval(), texts(2, length=32)  # as many as it has positions
    assert text_model(model).longest == 32
    sent = stepped(model, update(model, ids[:, :10]))
    assert reason_to_withhold(model, *sent, Declared(LocalTraining(1, 0.1))) == "2 texts can be read off it"
    longer = texts(1, length=33)  # a token more: only a label, as where inputs and labels are cut apart
    loss = cross_entropy(model(longer[:, :-1]).flatten(0, 1), longer[:, 1:].flatten())
    for row, gradient in ((ids[0], update(model, ids[:1])), (longer[0], slopes(model, loss))):
        found = read_texts(text_model(model), gradient, precision=FLOAT32, longest=64)
        assert (found.sequences, found.count) == ((tuple(row.tolist()),), 1)


class Adapted(nn.Module):
    """A frozen layer with a LoRA adapter beside it, as PEFT makes them."""

    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base.requires_grad_(requires_grad=False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_b(self.lora_a(x))


def with_adapters(rank, *, trained):
    model = Tiny().eval().requires_grad_(requires_grad=False)
    torch.manual_seed(1)
    for block in model.blocks:
        block.queries, block.values = Adapted(block.queries, rank), Adapted(block.values, rank)
        for layer in (block.queries, block.values):
            nn.init.normal_(layer.lora_b.weight, std=0.1 * trained)
    return model


@pytest.mark.parametrize(("trained", "prompt"), [(True, 0), (True, 3), (False, 0)])
def test_a_lora_update_gives_whole_texts_and_prompts_once_its_rank_exceeds_their_tokens(trained, prompt):
    # Trained adapters: the first matrices of two projections span 2 × 16 dimensions. Fresh ones: A x, in 32.
    model, ids = with_adapters(16 if trained else 32, trained=trained), texts(2, seed=5, length=8)
    gradient = update(model, ids, prompt=prompt)
    assert all(("lora_a" in name or "lora_b" in name) for name in gradient)
    assert_named(read(model, gradient), ids)


@pytest.mark.parametrize("trained", [True, False])
def test_a_lora_update_of_a_small_rank_hides_its_tokens_and_claims_none(trained):
    model = with_adapters(4, trained=trained)
    found = read(model, update(model, texts(3, seed=6)))
    assert (found.tokens, found.count) == (0, 0)


@pytest.mark.parametrize("sure", [1.2, 1.8])
def test_a_text_that_ends_with_tokens_the_model_is_sure_of_comes_back_to_its_end(sure):
    # What is sure has hardly any gradient, so that its place is not seen in the span. Its trace in the rest tells.
    model, ids = Tiny().eval(), texts(2, seed=3)
    text = text_model(model)
    with torch.no_grad():
        model.head.weight[ids[0, -1]] += sure * text_end(model, ids[:1, :-1])
    gradient = update(model, ids)
    for missing in (1, 2):  # the last token is solved for; one more is the model's own
        proposed = [ids[0, :-missing], ids[1, :-1]]
        assert_named(verify_texts(text, gradient, proposed, rounding=Rounding(FLOAT32)), ids)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_an_embedding_tells_its_tokens_after_steps_of_any_optimiser(decay):
    model, ids = Tiny().eval(), texts(2, seed=1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}

    def slopes_at(weights):
        model.load_state_dict(weights)
        return update(model, ids)

    moved = LocalTraining(5, 1e-3, weight_decay=decay, optimizer="adamw").along(before, slopes_at)
    model.load_state_dict(before)
    found = rows_that_moved(text_model(model), moved)
    assert found is not None
    assert found.tolist() == ids[:, :-1].unique().tolist()


@pytest.mark.parametrize(("declared", "why", "got"), [
    (Declared(LocalTraining(3, 0.1)), "one step of SGD", "3 steps of sgd"),
    (Declared(LocalTraining(1, 0.1, optimizer="adam")), "one step of SGD", "1 steps of adam"),
    (Declared(batch_size=2, noise=Noise(1.0, 1.0)), "cannot be tested", "a network that reads texts"),
])  # fmt: skip
def test_declared_steps_and_noise_that_cannot_be_tested_are_refused(declared, why, got):
    model = Tiny().eval()
    with pytest.raises(InputError, match=why) as refused:
        open_update(model, update(model, texts(2)), declared)
    assert refused.value.got == got


def text_end(model, ids):
    """What the output layer reads at the last place, as a direction."""
    seen = []
    handle = model.head.register_forward_pre_hook(lambda _, read: seen.append(read[0][0, -1]))
    model(ids)
    handle.remove()
    return seen[0] / seen[0].norm()


@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_every_layer_of_an_update_and_of_its_control_is_taken_apart_once(monkeypatch, factor):
    made, taken = Projections.decomposed, []

    def counted(which, *arguments, **options):
        taken.append(which)
        return made(which, *arguments, **options)

    monkeypatch.setattr(Projections, "decomposed", counted)
    model, ids = Tiny().eval(), texts(2, seed=1)
    gradient = {name: factor * value for name, value in update(model, ids).items()}
    found = audited_update(model, Update(gradient, Rounding(FLOAT32)))
    assert (found.strongest.proven, found.strongest.control.successes) == (2, 0)
    layers = 3  # the two, and what reads the first attention
    assert len(taken) == 2 * layers, "each of the update, and of its control"
    assert any("sign was flipped" in note for note in found.subject["notes"]) == (factor < 0)


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, _):
        raise RuntimeError


@pytest.mark.parametrize(("model", "got"), [(Silent(), "RuntimeError"), (nn.Linear(3, 4), r"nn\.Embedding")])
def test_what_reads_numbers_or_fails_without_a_word_is_no_text_model(model, got):
    with pytest.raises(InputError, match=got):
        text_model(model)
