"""People as units: all images of a person are drawn, reduced and clipped together, and hang on nobody else."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig
from understudy.engines.critics.panel import Critics
from understudy.engines.dpsgd.gradients import FlatParameters
from understudy.engines.records import Examples, People, Records, people_in_chunks
from understudy.engines.teacher.config import PrivateTeacherConfig
from understudy.engines.teacher.training import SoftmaxRows, softmax_gradients, train_teacher
from understudy.errors import InputError
from understudy.files import read_tensors
from understudy.privacy.events import Event, NoSampling, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianSum
from understudy.privacy.randomness.streams import Randomness

from ..helpers.cases import CLASSES
from ..helpers.data import of_people, without_person
from .dpsgd.networks import clip_slowly, rows_one_at_a_time
from .dpsgd.steps import ALMOST_NONE, CLIP, CPU, STILL, Public, Watched, close, make_event, make_run, make_step
from .embeddings import as_bytes, embedded

FALSE_ALARM = 1e-6
MOST = 4  # images of a person in a step
SIZES = (1, 2, 4, 3)  # of people who stay, so few that all their images are shown
NOMINAL = 10  # declared people; nothing follows how many there are
REMOVED = [1, 5, 100]  # images of the person who goes
somebody = pytest.mark.parametrize("images", REMOVED)


def with_somebody(images: int) -> tuple[ImageDataset, ImageDataset]:
    """Four people and a fifth with so many images, in the middle of the numbers; and the same without the fifth."""
    data = of_people((*SIZES[:2], images, *SIZES[2:]), nominal=NOMINAL)
    return data, without_person(data, 2)


def table(sizes: tuple[int, ...], shown: int = MOST) -> People:
    return People.of(of_people(sizes), CPU, shown)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


# Which images of a person are shown


@pytest.mark.parametrize("shown", [1, 3, MOST, 200])
def test_no_more_images_of_a_person_are_shown_than_the_cap_and_each_once(shown):
    people = table((1, 2, 5, 100), shown)
    chosen, weights = people.draw(torch.arange(4), seeded())
    assert chosen.shape == weights.shape == (4, shown), "a public shape, whatever people have"
    for person, (records, parts) in enumerate(zip(chosen, weights, strict=True)):
        counted = records[parts > 0].tolist()
        size = int(people.sizes[person])
        assert len(set(counted)) == len(counted) == min(shown, size)
        assert set(counted) <= set(people.records_of(person).tolist())
        assert set(records[parts == 0].tolist()) <= {people.nobody}
        assert parts[parts > 0].tolist() == pytest.approx([1 / len(counted)] * len(counted))
        assert float(parts.sum()) == pytest.approx(1.0)


def subsets_reject(chosen: Tensor, images: int) -> bool:
    """Chi-square of all sets of two among ``images`` records being equally likely, two-sided."""
    pairs = chosen.sort(dim=1).values
    found = torch.bincount(pairs[:, 0] * images + pairs[:, 1], minlength=images**2).reshape(images, images)
    found = found[torch.triu(torch.ones_like(found), 1) > 0].double()
    expected = len(chosen) / len(found)
    law = stats.chi2(len(found) - 1)
    statistic = float((found - expected).square().sum() / expected)
    return bool(found.sum() != len(chosen) or min(law.sf(statistic), law.cdf(statistic)) < FALSE_ALARM / 2)


def test_images_of_a_person_are_drawn_uniformly_without_repetition_and_afresh():
    """False-alarm rate 1e-6; always the first, or with repetition, is rejected."""
    people, draws, random = table((6, 3), 2), 3000, seeded()
    own = people.records_of(0)
    chosen = people.draw(torch.zeros(draws, dtype=torch.long), random)[0]
    places = (chosen[:, :, None] == own).int().argmax(dim=2)
    assert not subsets_reject(places, 6)
    assert subsets_reject(torch.tensor([[0, 1]]).expand(draws, 2), 6)
    assert subsets_reject(torch.randint(6, (draws, 2), generator=random), 6)


def test_the_table_of_people_holds_every_record_once_and_nobody_at_its_end():
    data = of_people((3, 1, 7))
    people = People.of(data, CPU, MOST)
    assert data.people is not None
    for person in range(3):
        own = people.records_of(person)
        assert sorted(own.tolist()) == np.flatnonzero(data.people == person).tolist()
    assert people.sizes.tolist() == [3, 1, 7, 0]
    records = Records(data, CPU, torch.float32, MOST)
    assert records.filler == 3
    shown = records.gather(torch.tensor([1, 3]), seeded())
    assert shown.present.tolist() == [True, False]
    assert shown.weights is not None
    assert shown.weights.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_chunk_of_people_never_divides_one():
    data = of_people((3, 2, 9, 1, 1, 1, 4))
    assert data.people is not None
    for most_records, most_people in ((4, 100), (1, 100), (100, 2), (100, 100)):
        seen: list[int] = []
        for records, owners, people in people_in_chunks(data, most_records, most_people):
            whom = data.people[records]
            assert len(records) == sum(int((data.people == person).sum()) for person in set(whom.tolist()))
            assert sorted(set(owners.tolist())) == list(range(people))
            assert people == 1 or (people <= most_people and len(records) <= most_records)
            assert len({(int(a), int(b)) for a, b in zip(owners, whom, strict=True)}) == people
            seen += sorted(set(whom.tolist()))
        assert sorted(seen) == list(range(7))
    assert list(people_in_chunks(of_people(()), 10, 10)) == []


# One step of DP-SGD


def pulled(examples: Examples, random: torch.Generator) -> Any:
    """A loss that pulls hard, and by the label in another direction."""
    assert examples.labels is not None
    pulls = 40.0 * (examples.labels.double() - 0.7).float()
    return (examples.images,), lambda outputs: pulls * outputs.square().sum(dim=1)


def small_network() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, stride=2, padding=1), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    )


def person_event(rate: float = 1.0, **changes: Any) -> Event:
    return make_event(
        unit="person", sampling=PoissonSampling(rate=rate), **{"noise_multiplier": ALMOST_NONE, **changes}
    )


def step_of(folder: Path, data: ImageDataset, **changes: Any) -> Watched:
    """A step in which, unless told otherwise, everybody takes part, and that releases the exact sum."""
    settings = {"batch": NOMINAL, "event": person_event(), "companions": None, "objective": pulled, **STILL, **changes}
    settings = {"randomness": Randomness(5), "images_per_person": MOST, **settings}
    return make_step(folder, data, network=small_network(), **settings)


def units_shown(watched: Watched) -> list[tuple[tuple[bytes, int], ...]]:
    """What is shown of each person that counts, in no order: images to the bit, and their labels."""
    found = []
    for some in watched.shown:
        assert some.weights is not None, "units are people"
        count = len(some.images) // MOST
        parts = (some.images, some.labels, some.weights, some.present)
        images, labels, weights, present = (part.unflatten(0, (count, MOST)) for part in parts if part is not None)
        for unit in range(count):
            if present[unit, 0]:
                own = (weights[unit] > 0).nonzero().flatten().tolist()
                rows = [(images[unit, place].numpy().tobytes(), int(labels[unit, place])) for place in own]
                assert set(weights[unit, own].tolist()) == {float(np.float32(1) / np.float32(len(own)))}
                found.append(tuple(sorted(rows)))
    return sorted(found)


def exact_addends(watched: Watched) -> dict[tuple[tuple[bytes, int], ...], Tensor]:
    """By automatic differentiation in double precision: the mean over a person's images, then clipped."""
    addends = {}
    for unit in units_shown(watched):
        total = FlatParameters(copy.deepcopy(watched.network)).zeros().double()
        for image, label in unit:
            pixels = torch.from_numpy(np.frombuffer(image, dtype=np.float32).copy()).view(1, 1, 8, 8).double()
            pull = 40.0 * (label - 0.7)
            rows = rows_one_at_a_time(watched.network, (pixels,), lambda out, p=pull: p * out.square().sum(dim=1))
            total += rows[0] / len(unit)
        addends[unit] = clip_slowly(total[None], CLIP)[0]
    return addends


@somebody
@pytest.mark.parametrize("micro_batch", [1, 9, 2000])
def test_without_a_person_a_step_shows_the_same_of_all_others_and_moves_by_at_most_the_bound(
    images, micro_batch, tmp_path
):
    with_person, without = (
        step_of(tmp_path / str(number), data, runtime={"micro_batch": micro_batch})
        for number, data in enumerate(with_somebody(images))
    )
    for watched in (with_person, without):
        watched.take()
        assert close(watched.sums[0], torch.stack(list(exact_addends(watched).values())).sum(dim=0))
    gone = set(units_shown(with_person)) - set(units_shown(without))
    assert len(gone) == len(units_shown(with_person)) - len(units_shown(without)) == 1
    assert len(next(iter(gone))) == min(images, MOST)
    moved = float((with_person.sums[0] - without.sums[0]).norm())
    assert 0.9 * CLIP < moved <= CLIP * (1 + 1e-5), "he pulls harder than the bound allows"


def test_a_person_is_clipped_as_one_however_many_images_pull(tmp_path):
    """Clipped each for itself, four images that pull in one direction would count as four people."""
    data = of_people((MOST,))
    alike = ImageDataset(data.name, data.domain, data.images[[0] * MOST], data.labels, people=data.people)
    watched = step_of(tmp_path, alike)
    watched.take()
    assert float(watched.sums[0].norm()) == pytest.approx(CLIP, rel=1e-3)


def test_coins_are_flipped_for_people_and_not_for_images(tmp_path):
    """All images of a person come together; people come as often as their rate says (false-alarm rate 1e-6)."""
    sizes, steps, rate = (MOST, 2, 1, MOST), 100, 0.5
    event = person_event(rate, count=steps)
    watched = step_of(tmp_path, of_people(sizes), batch=round(rate * NOMINAL), event=event)
    seen = []
    for _ in range(steps):
        watched.take()
        units = units_shown(watched)
        assert len(set(units)) == len(units)
        seen.append(sorted(len(unit) for unit in units))
    came = sum(map(len, seen))
    law = stats.binom(steps * len(sizes), rate)
    assert law.ppf(FALSE_ALARM / 2) <= came <= law.isf(FALSE_ALARM / 2)
    assert all(set(each) <= set(sizes) for each in seen), "nobody comes with a part of their images"


def test_the_divisor_is_the_declared_one_whoever_and_how_many_come(tmp_path):
    for number, sizes in enumerate([(3, 2), (3, 2, 100, 1)]):
        watched = step_of(tmp_path / str(number), of_people(sizes))
        assert float((watched.take() - watched.sums[0] / NOMINAL).abs().max()) < 1e-7


def test_the_rate_is_held_against_people(tmp_path):
    with pytest.raises(InputError, match=r"steps sample with a Poisson rate of 0\.6"):
        step_of(tmp_path, of_people(SIZES), batch=6, event=person_event(6 / 40))


def test_companions_are_as_many_rows_as_people_and_count_as_units(tmp_path):
    companions = Public(count=3)
    watched = step_of(tmp_path, of_people(SIZES), companions=companions)
    update = watched.take()
    rows = torch.cat([some.signs for some in watched.shown])
    assert (rows < 0).sum() == 3 * MOST
    assert float((update - watched.sums[0] / (NOMINAL + 3)).abs().max()) < 1e-7


def test_with_one_image_of_each_a_step_goes_on_as_with_records(tmp_path):
    """Beside companions too, which are then no groups."""
    watched = step_of(tmp_path, of_people((5, 1, 9)), images_per_person=1, companions=Public(count=2))
    watched.take()
    signs = torch.cat([some.signs[some.present] for some in watched.shown])
    assert (int((signs > 0).sum()), int((signs < 0).sum())) == (3, 2)
    assert all(some.weights is None and some.images.dim() == 4 for some in watched.shown)


def test_nobody_at_all_is_a_step_of_noise(tmp_path):
    event = person_event(noise_multiplier=2.0)
    watched = step_of(tmp_path, of_people(()), event=event)
    watched.take()
    assert units_shown(watched) == []
    law = stats.chi2(watched.sums[0].numel())
    statistic = float((watched.sums[0] / (2.0 * CLIP)).square().sum())
    assert law.ppf(FALSE_ALARM / 2) < statistic < law.isf(FALSE_ALARM / 2)


# Mean embeddings


@somebody
@pytest.mark.parametrize("micro_batch", [4, 7, 2000])
def test_without_a_person_no_bit_of_what_others_add_to_an_embedding_changes(images, micro_batch, tmp_path, rows_added):
    totals, rows = [], []
    for number, data in enumerate(with_somebody(images)):
        totals.append(embedded(tmp_path / str(number), data, micro_batch=micro_batch))
        rows.append(as_bytes(rows_added))
        rows_added.clear()
    assert [len(each) for each in rows] == [5, 4]
    assert set(rows[1]) < set(rows[0])
    moved = float((totals[0] - totals[1]).norm())
    assert moved <= 1 + 1e-7
    assert moved > 0.9, "one image has norm one, and more are longer than the bound"


def test_a_person_in_several_classes_is_clipped_jointly(tmp_path):
    """Class by class, somebody in three classes would move the sum by sqrt(3) C."""
    data = of_people((30,))
    assert data.labels is not None
    assert len(set(data.labels.tolist())) == CLASSES == 3
    total = embedded(tmp_path, data)
    assert float(total.norm()) == pytest.approx(1.0, abs=1e-6)
    assert (total.norm(dim=1) > 0.2).all(), "of every class a part"


def test_an_embedding_of_nobody_is_noise_alone(tmp_path, rows_added):
    assert float(embedded(tmp_path, of_people(())).norm()) < 1e-6
    assert rows_added == []


# Critics and voters


@somebody
def test_a_person_is_in_one_subset_and_leaves_all_others_as_they_were(images, tmp_path):
    """With the same draws: people are numbered in order, and who goes is the last."""
    data = of_people((*SIZES, images), nominal=NOMINAL)
    held = []
    for number, each in enumerate((data, without_person(data, 4))):
        run = make_run(tmp_path / str(number), each, person_event())
        run.randomness = Randomness(8)
        critics = Critics.of_run(run, 3, CriticsConfig(width=8, batch=4))
        held.append([sorted(image.numpy().tobytes() for image in critics.records_private(k)[0]) for k in range(3)])
    changed = [k for k in range(3) if held[0][k] != held[1][k]]
    assert len(changed) == 1
    assert len(held[0][changed[0]]) - len(held[1][changed[0]]) == images
    assert data.people is not None
    for person in range(5):
        own = {image.tobytes() for image in data.images[data.people == person]}
        assert sum(bool(own & set(subset)) for subset in held[0]) == 1


# The teacher


def lesson(data: ImageDataset) -> tuple[SoftmaxRows, Tensor]:
    """Features of pixels, and weights that are wrong about many."""
    features = torch.from_numpy(data.images).flatten(1).float() / 64
    assert data.labels is not None
    weights = 0.05 * torch.randn(CLASSES, 65, generator=torch.Generator().manual_seed(6))
    return SoftmaxRows(features, torch.from_numpy(data.labels), People.of(data, CPU, MOST)), weights


def taught(folder: Path, data: ImageDataset, clip: float = CLIP) -> Tensor:
    folder.mkdir(exist_ok=True)
    mechanism = GaussianSum(Ledger.create(folder / "ledger.jsonl"), Randomness(), clip=clip, event=person_event())
    rows, weights = lesson(data)
    return softmax_gradients(mechanism, weights, rows)


@somebody
def test_without_a_person_no_bit_of_what_others_teach_changes(images, tmp_path, rows_added):
    sums, rows = [], []
    for number, data in enumerate(with_somebody(images)):
        sums.append(taught(tmp_path / str(number), data))
        rows.append(as_bytes(rows_added))
        rows_added.clear()
    assert [len(each) for each in rows] == [5, 4]
    assert set(rows[1]) < set(rows[0])
    assert 0.9 * CLIP < float((sums[0] - sums[1]).norm()) <= CLIP * (1 + 1e-7)


def test_a_persons_gradient_is_the_mean_of_all_their_images_and_then_clipped(tmp_path):
    """Not of rank one: its norm is that of the sum of outer products, bias included."""
    data = of_people((7,))
    (rows, weights), whole = lesson(data), taught(tmp_path / "whole", data, clip=1e6)
    features = torch.cat([rows.features, torch.ones(7, 1)], dim=1).double()
    errors = (features @ weights.double().T).softmax(dim=1) - torch.nn.functional.one_hot(rows.labels, CLASSES)
    inner = ((features @ features.T) * (errors @ errors.T)).sum()
    assert float(whole.norm()) == pytest.approx(math.sqrt(float(inner)) / 7, rel=1e-5)
    clipped = taught(tmp_path / "clipped", data, clip=0.1)
    assert torch.allclose(clipped, whole * 0.1 / whole.norm(), rtol=1e-3)
    assert torch.equal(taught(tmp_path / "nobody", of_people(())), torch.zeros(CLASSES, 65).double())


def test_a_teacher_is_divided_by_the_declared_number_of_people(tmp_path):
    """Whatever number of records is declared, and whoever is there."""
    config = PrivateTeacherConfig(scales=2, directions=2, learning_rate=1.0)
    event, velocities = person_event().model_copy(update={"sampling": NoSampling(), "count": 1}), []
    data = of_people(SIZES)
    for place, (people, records) in enumerate([(NOMINAL, 40), (NOMINAL, 4000), (2 * NOMINAL, 40)]):
        declared = {"nominal_people": people, "nominal_records": records}
        domain = Domain.model_validate(data.domain.model_dump() | declared)
        given = ImageDataset("people", domain, data.images, data.labels, people=data.people)
        run = make_run(tmp_path / str(place), given, event)
        train_teacher(run, config, event, CLIP)
        velocities.append(read_tensors(run.files.teacher)[0]["velocity"])
    assert torch.allclose(velocities[0], velocities[1], atol=1e-7)
    assert torch.allclose(velocities[0], 2 * velocities[2], atol=1e-7)
    assert float(velocities[0].norm()) > 0.01
