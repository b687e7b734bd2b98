"""The bank is K separate critics: same values, gradients and training, and nothing passes between them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sequential_critic import critic_loss, critic_of, pack
from understudy.engines.critics.bank import AdamConfig, CriticBank, CriticBankConfig, CriticBankOptions
from understudy.errors import InputError
from understudy.models.critic import Critic, CriticBatch, CriticConfig, CriticLossConfig

SHAPES = [((1, 8, 8), None), ((1, 8, 8), 3), ((1, 28, 28), 10), ((1, 28, 28), None), ((3, 32, 32), 4), ((3, 9, 13), 2)]
CRITICS, BATCH = 3, 4
ALL = slice(0, CRITICS)


def make_bank(shape=(1, 8, 8), classes=3, active=None, critics=CRITICS, **runtime):
    config = CriticBankConfig(
        critic=CriticConfig(shape=shape, classes=classes, width=8), critics=critics, adam=AdamConfig(learning_rate=1e-3)
    )
    generator = torch.Generator().manual_seed(5)
    return CriticBank(config, CriticBankOptions(**runtime), active=active, generator=generator)


def make_batch(seed, shape=(1, 8, 8), classes=3, critics=CRITICS):
    generator = torch.Generator().manual_seed(seed)

    def images():
        return torch.rand(critics, BATCH, *shape, generator=generator)

    def labels():
        return torch.randint(0, classes, (critics, BATCH), generator=generator) if classes else None

    return CriticBatch(images(), images(), labels(), labels(), torch.rand(critics, BATCH, generator=generator))


def fields(batch):
    return (batch.real_images, batch.fake_images, batch.real_labels, batch.fake_labels, batch.mix)


def row_of(batch, row):
    return CriticBatch(*(field[row] if field is not None else None for field in fields(batch)))


def snapshot(bank):
    return {name: tensor.clone() for name, tensor in bank.state().items()}


def same_bytes(first, second, rows=slice(None)):
    return all(torch.equal(first[name][rows], second[name][rows]) for name in first)


@pytest.mark.parametrize(("shape", "classes"), SHAPES)
def test_bank_equals_separate_critics_over_twenty_adam_steps(shape, classes):
    bank = make_bank(shape, classes)
    critics = [critic_of(bank, row) for row in range(CRITICS)]
    optimisers = [torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9)) for critic in critics]
    for step in range(20):
        batch = make_batch(step, shape, classes)
        report = bank.train_step(ALL, batch)
        for row, (critic, optimiser) in enumerate(zip(critics, optimisers, strict=True)):
            optimiser.zero_grad()
            loss = critic_loss(critic, row_of(batch, row), CriticLossConfig())
            loss.backward()
            optimiser.step()
            assert report.loss[row].item() == pytest.approx(loss.item(), abs=1e-4, rel=1e-4)
    for row, critic in enumerate(critics):
        parameters, vectors = pack(bank.layout, critic)
        torch.testing.assert_close(bank.parameters[row], parameters, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(bank.vectors[row], vectors, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("shape", "classes"), SHAPES)
def test_parameter_gradients_equal_autograd(shape, classes, monkeypatch):
    bank, seen = make_bank(shape, classes), []
    critics = [critic_of(bank, row) for row in range(CRITICS)]
    monkeypatch.setattr(bank, "_adam", lambda rows, gradients: seen.append(gradients.clone()))
    batch = make_batch(1, shape, classes)
    report = bank.train_step(ALL, batch)
    for row, critic in enumerate(critics):
        critic_loss(critic, row_of(batch, row), CriticLossConfig(penalty=10.0)).backward()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.copy_(parameter.grad)
        torch.testing.assert_close(seen[0][row], pack(bank.layout, critic)[0], atol=1e-5, rtol=1e-4)
    assert report.penalty.min() > 0


@settings(max_examples=15, deadline=None)
@given(
    st.integers(8, 20), st.integers(8, 20), st.sampled_from([1, 3]), st.sampled_from([None, 2]), st.integers(0, 10**6)
)
def test_any_size_gives_the_gradients_of_autograd(height, width, channels, classes, seed):
    shape = (channels, height, width)
    bank = make_bank(shape, classes, critics=2)
    critics = [critic_of(bank, row) for row in range(2)]
    batch = make_batch(seed, shape, classes, critics=2)
    report = bank.train_step(slice(0, 2), batch)
    for row, critic in enumerate(critics):
        loss = critic_loss(critic, row_of(batch, row), CriticLossConfig())
        assert report.loss[row].item() == pytest.approx(loss.item(), abs=1e-4, rel=1e-4)
        moment = bank.first_moment[row] / 0.5  # Adam's first moment after one step is half the gradient
        loss.backward()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.copy_(parameter.grad)
        torch.testing.assert_close(moment, pack(bank.layout, critic)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("shape", "classes"), SHAPES)
def test_queries_equal_each_critics_autograd_in_query_order(shape, classes):
    bank = make_bank(shape, classes)
    bank.train_step(ALL, make_batch(0, shape, classes))
    images = torch.rand(7, *shape)
    labels = torch.randint(0, classes, (7,)) if classes else None
    routing = torch.tensor([2, 0, 1, 1, 2, 0, 2])
    answers = bank.query(images, labels, routing)
    assert answers.dtype == torch.float32
    for position, row in enumerate(routing.tolist()):
        critic = critic_of(bank, row).eval()
        image = images[position : position + 1].clone().requires_grad_()
        score = critic(image, labels[position : position + 1] if classes else None)
        (expected,) = torch.autograd.grad(-score.sum(), image)
        torch.testing.assert_close(answers[position], expected[0], atol=1e-5, rtol=1e-4)


def test_queries_change_no_byte_and_training_after_them_is_the_same():
    asked, left_alone = make_bank(), make_bank()
    for bank in (asked, left_alone):
        bank.train_step(ALL, make_batch(0))
    before = snapshot(asked)
    for seed in range(3):
        batch = make_batch(seed)
        asked.query(batch.fake_images[0], batch.fake_labels[0], torch.tensor([0, 2, 2, 1]))
        asked.input_gradients(ALL, batch.fake_images, batch.fake_labels)
    assert same_bytes(before, asked.state())
    for bank in (asked, left_alone):
        bank.train_step(ALL, make_batch(1))
    assert same_bytes(asked.state(), left_alone.state())


def test_one_image_changes_one_critic_and_no_bit_of_the_others():
    bank, neighbour = make_bank(), make_bank()
    for step in range(3):
        batch = make_batch(step)
        bank.train_step(ALL, batch)
        batch.real_images[1, 0] = 1 - batch.real_images[1, 0]
        batch.real_labels[1, 0] = (batch.real_labels[1, 0] + 1) % 3
        neighbour.train_step(ALL, batch)
    assert same_bytes(bank.state(), neighbour.state(), [0, 2])
    assert not torch.equal(bank.parameters[1], neighbour.parameters[1])


def test_an_inactive_critic_is_never_changed_and_answers_zero():
    bank = make_bank(active=torch.tensor([True, False, True]))
    before = snapshot(bank)
    batch = make_batch(0)
    batch.real_images[1] = 0
    bank.train_step(ALL, batch)
    bank.train_step([1], row_slice(make_batch(1), [1]))
    assert same_bytes(before, bank.state(), [1])
    assert not torch.equal(before["parameters"][0], bank.parameters[0])
    answers = bank.query(torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))
    assert torch.equal(answers[1], torch.zeros(1, 8, 8))
    assert (answers[[0, 2]].flatten(1).norm(dim=1) > 0).all()


def row_slice(batch, rows):
    return CriticBatch(*(field[rows] if field is not None else None for field in fields(batch)))


def test_any_subset_by_index_equals_the_slice_and_leaves_the_rest():
    by_slice, by_index = make_bank(critics=5), make_bank(critics=5)
    batch = make_batch(0)
    by_slice.train_step(slice(1, 4), batch)
    by_index.train_step([3, 1, 2], row_slice(batch, [2, 0, 1]))
    for name, tensor in by_slice.state().items():
        torch.testing.assert_close(tensor, by_index.state()[name], atol=1e-6, rtol=1e-5)
    untouched = make_bank(critics=5)
    assert same_bytes(untouched.state(), by_index.state(), [0, 4])
    by_index.train_step([4, 0], make_batch(1, critics=2))
    assert by_index.steps.tolist() == [1, 1, 1, 1, 1]


def test_chunked_equals_unchunked():
    whole, chunked = make_bank(critics=5), make_bank(critics=5, chunk=2)
    for step in range(3):
        batch = make_batch(step, critics=5)
        reports = [bank.train_step(slice(0, 5), batch) for bank in (whole, chunked)]
        torch.testing.assert_close(reports[0].loss, reports[1].loss)
    for name, tensor in whole.state().items():
        torch.testing.assert_close(tensor, chunked.state()[name], atol=1e-6, rtol=1e-5)
    images, labels, routing = torch.rand(9, 1, 8, 8), torch.randint(0, 3, (9,)), torch.randint(0, 5, (9,))
    torch.testing.assert_close(whole.query(images, labels, routing), chunked.query(images, labels, routing))


def test_shared_fakes_equal_the_same_fakes_for_each():
    shared, own = make_bank(), make_bank()
    batch = make_batch(0)
    pool, labels = batch.fake_images[0], batch.fake_labels[0]
    shared.train_step(ALL, CriticBatch(batch.real_images, pool, batch.real_labels, labels, batch.mix))
    copies = (torch.stack([pool] * CRITICS), torch.stack([labels] * CRITICS))
    own.train_step(ALL, CriticBatch(batch.real_images, copies[0], batch.real_labels, copies[1], batch.mix))
    assert same_bytes(shared.state(), own.state())


def test_state_round_trip_continues_the_same(tmp_path):
    bank, other = make_bank(), make_bank(active=torch.tensor([True, True, False]))
    bank.train_step(ALL, make_batch(0))
    save_file(bank.state(), tmp_path / "bank.safetensors")
    other.load_state(load_file(tmp_path / "bank.safetensors"))
    for each in (bank, other):
        each.train_step(ALL, make_batch(1))
    assert same_bytes(bank.state(), other.state())
    with pytest.raises(InputError, match="wrong checkpoint"):
        make_bank(critics=4).load_state(bank.state())


def test_bf16_stays_close():
    full, half = make_bank((1, 28, 28), 10), make_bank((1, 28, 28), 10, precision="bf16")
    batch = make_batch(0, (1, 28, 28), 10)
    images, labels = batch.fake_images[0], batch.fake_labels[0]
    answers = [bank.query(images, labels, torch.tensor([0, 1, 2, 0])) for bank in (full, half)]
    assert (answers[0] - answers[1]).norm() < 0.05 * answers[0].norm()
    reports = [bank.train_step(ALL, batch) for bank in (full, half)]
    torch.testing.assert_close(reports[0].loss, reports[1].loss, atol=0.05, rtol=0.02)
    for row in range(CRITICS):
        cosine = torch.cosine_similarity(full.first_moment[row], half.first_moment[row], dim=0)
        assert cosine > 0.99


def test_wrong_batches_and_repeated_critics_are_refused():
    bank = make_bank()
    with pytest.raises(InputError, match="one row per critic"):
        bank.train_step(slice(0, 2), make_batch(0))
    with pytest.raises(InputError, match="twice"):
        bank.train_step([0, 0, 1], make_batch(0))


def test_the_critic_of_the_seed_has_its_size():
    critic = Critic(CriticConfig(shape=(1, 28, 28), classes=10))
    assert sum(parameter.numel() for parameter in critic.parameters()) == 1_071_105


def test_evaluation_leaves_the_spectral_vectors():
    critic = Critic(CriticConfig(shape=(1, 8, 8), width=8))
    before = [norm.left.clone() for norm in critic.norms]
    critic.eval()(torch.rand(2, 1, 8, 8))
    assert all(torch.equal(norm.left, vector) for norm, vector in zip(critic.norms, before, strict=True))
    critic.train()(torch.rand(2, 1, 8, 8))
    assert not torch.equal(critic.norms[0].left, before[0])
