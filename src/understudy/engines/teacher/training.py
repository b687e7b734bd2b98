"""How a teacher learns: noisy gradient descent on features of all records, or DP-SGD on Poisson batches of them.

The gradient of a softmax layer for one record is an outer product, (p - e(y)) (phi, 1)^T, of what its answer is wrong
by and its features with a one for the bias. So its norm is the product of two norms, and the sum of clipped gradients
is one product of matrices: exact, and as quick as training without privacy.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from understudy.data.store import StoredImages
from understudy.engines.dpsgd.products import arithmetic
from understudy.engines.dpsgd.sharing import Assistance, SharedSum, Sharing
from understudy.engines.dpsgd.step import Inputs, PrivateStep, StepOptions, step_precision
from understudy.engines.records import Examples, People, Records, load_batch, own_records, selection_of
from understudy.engines.teacher.config import CLIP, IMAGES_PER_PERSON, MOMENTUM, PrivateTeacherConfig
from understudy.engines.teacher.patches import learn_filters
from understudy.errors import BudgetError, InputError
from understudy.files import read_tensors, write_tensors
from understudy.models.annotator import named_by
from understudy.models.generator import Generator, TeacherModelConfig
from understudy.models.patches import Patches
from understudy.models.scattering import Scattering
from understudy.models.teacher import Teacher
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Account
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

if TYPE_CHECKING:
    from understudy.data.domain import Domain
    from understudy.engines.dpsgd.gradients import Loss

TAUGHT = "teacher"  # as work that several processes share
_AVERAGED = 0.1  # of the steps: of more of them the mean would lag behind a teacher that is still learning
_KEPT = 20  # times that the state is written, and so the ledger
_HEAD, _FEATURES = "head.", "features."  # of the names of a network's weights, and of filters
_CACHED, _CACHED_ON_GPU = 2**19, 2**28  # numbers of features in one product
_CHUNK = 500  # images whose features are computed at a time
_REPORTS = 20  # while they are


def train_teacher(run: Run, config: PrivateTeacherConfig, event: Event, clip: float = CLIP) -> Teacher:
    """The teacher whose steps ``event`` of the plan pays for, trained now, or from where a stopped run left it.

    Privacy: all executions of one event, see ``softmax_gradients`` and ``PrivateStep``. The state that is kept is made
    of sanitized values. Steps that were recorded and whose result was lost are not taken again. Of several processes
    each computes features of its own units, and sums their gradients.
    """
    account, teacher = run.ledger.account(event), new_teacher(run.plan.domain, config).to(run.device)
    kept = _kept_state(run.files.teacher, account)
    if account.remaining:
        _make_ready(teacher, kept)
        lesson = _Lesson(run, teacher, config, event, clip)
        lesson.sharing.announce(run.team)  # now, so that all of them compute features at the same time
        _share_filters(run, teacher)
        learn = _linear_lesson if config.kind == "linear" else _network_lesson
        for state in learn(lesson, FeatureRecords(run, teacher.features), kept):
            state |= {f"{_FEATURES}{name}": value for name, value in teacher.features.state_dict().items()}
            write_tensors(run.files.teacher, state)
            run.prepare(teacher_taught=float(state["steps"] / event.count))
            kept = state
    assert kept is not None
    run.lost_steps += event.count - int(kept["steps"])
    _load(teacher, kept)
    return teacher.cpu().eval()


def assist_teacher(run: Run, told: Mapping[str, Any]) -> Assistance:
    """In a process that follows: the sums of a teacher's gradients over the units that it owns.

    Privacy: as ``train_teacher``; what is summed goes to the leader, who adds the noise and spends.
    """
    config, event = PrivateTeacherConfig.model_validate(told["teacher"]), Event.model_validate(told["event"])
    teacher = new_teacher(run.plan.domain, config).to(run.device)
    _share_filters(run, teacher)
    lesson, records = _Lesson(run, teacher, config, event, told["clip"]), FeatureRecords(run, teacher.features)
    if config.kind == "network":
        return _network_step(lesson, records)
    mechanism = GaussianSum(run.ledger, run.randomness, clip=lesson.clip, event=event)
    return _linear_sum(lesson, records, mechanism, torch.zeros(lesson.shape, device=run.device))


def _make_ready(teacher: Teacher, kept: Mapping[str, Tensor] | None) -> None:
    """Give patch features their filters: those of a stopped run, else new ones, from images of chance."""
    if kept is not None:
        _load_filters(teacher, kept)
    elif isinstance(teacher.features, Patches):
        learn_filters(teacher.features)


def _share_filters(run: Run, teacher: Teacher) -> None:
    """Put the leader's filters, which are public, into everybody's features."""
    for values in teacher.features.buffers() if run.team.size > 1 and teacher.features.state_dict() else ():
        run.team.give(values)


def with_teacher(teacher: Teacher | None, generator: Generator, config: PrivateTeacherConfig) -> Generator:
    """A generator with its teacher beside it, if there is one."""
    if teacher is None:
        return generator
    return named_by(teacher, generator.cpu(), model_config(config))


def kept_teacher(path: Path, domain: Domain, config: PrivateTeacherConfig) -> Teacher | None:
    """The teacher of an unfinished run as it stands; None where it has not begun to learn."""
    if not path.exists():
        return None
    teacher = new_teacher(domain, config)
    _load(teacher, read_tensors(path)[0])
    return teacher.eval()


def new_teacher(domain: Domain, config: PrivateTeacherConfig) -> Teacher:
    """A teacher that knows nothing yet."""
    return Teacher(domain.shape, domain.classes or 1, model_config(config))


def model_config(config: PrivateTeacherConfig) -> TeacherModelConfig:
    """What a release says of its teacher."""
    return TeacherModelConfig.model_validate(config.released())


def _kept_state(path: Path, account: Account) -> dict[str, Tensor] | None:
    """What a stopped run has kept, if anything.

    Privacy: a state without its record, or a whole record without its state, is refused, as a single release is.
    """
    kept = read_tensors(path)[0] if path.exists() else None
    if kept is not None and int(kept["steps"]) > account.reserved:
        raise InputError(
            f"ledger: {path} exists, but the ledger does not hold the steps that made it; its spending is unknown, so "
            "the run cannot go on"
        )
    if kept is None and not account.remaining:
        raise BudgetError(f"budget: the result of {account.template.purpose!r} was paid for, but {path} is gone")
    return kept


# The records, as the teacher sees them


def _number_type(run: Run) -> torch.dtype:
    return torch.bfloat16 if step_precision(run) == "bf16" else torch.float32


def features_in_chunks(compute: Scattering | Patches, images_private: Tensor) -> Tensor:
    """Features of images, in half precision.

    Privacy: in full precision until then, and by kernels that repeat themselves; on a graphics card in pieces of one
    size (``in_pieces``), elsewhere they are the same in any company, as tests show. So no bit follows who is there too.
    """
    with arithmetic("fp32"):
        return torch.cat([compute(chunk).half() for chunk in images_private.split(_CHUNK)])


def _on_disk(folder: Path, shape: tuple[int, ...]) -> Tensor:
    """Zeros in half precision that need not fit into memory: a file without a name, which is gone with the process."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 2 * math.prod(shape))  # a full disk is an error now, and not a crash later
        return torch.from_numpy(np.memmap(file, np.float16, "r+", shape=shape))


def _images_per_person(run: Run) -> int:
    """As the run's config has it, where its method shows some images of a person too."""
    return getattr(run.plan.config.privacy, "images_per_person", None) or IMAGES_PER_PERSON


class FeatureRecords(Records):
    """Features of all private records, in half precision, with an empty record at the end.

    Those of a data store are kept on disk where the device is the processor. Of several processes each has those of the
    units that it owns, and is asked for units by the numbers that they have among all.

    Privacy: features are a function of one image and of nothing else; they are private, and so is how many there are.
    """

    def __init__(self, run: Run, compute: Scattering | Patches) -> None:
        self._team, unit = run.team, run.plan.domain.unit
        own = own_records(run.data, unit, run.team)
        count, self._type = len(own), _number_type(run)
        shape = (count + 1, compute.maps, *compute.grid)
        on_disk = isinstance(run.data.images, StoredImages) and run.device.type == "cpu"
        self.features: Tensor = (
            _on_disk(run.private, shape) if on_disk else torch.zeros(shape, dtype=torch.float16, device=run.device)
        )
        self.labels = torch.zeros(count + 1, dtype=torch.long, device=run.device)
        for part in range(_REPORTS):  # as many reports of the same values, however many records there are
            for start in range(part * count // _REPORTS, (part + 1) * count // _REPORTS, _CHUNK):
                chunk = slice(start, min((part + 1) * count // _REPORTS, start + _CHUNK))
                images_private, labels_private = load_batch(run.data, selection_of(own[chunk]), run.device)
                self.features[chunk] = features_in_chunks(compute, images_private)
                self.labels[chunk] = labels_private
            run.prepare(teacher_features=(part + 1) / _REPORTS)
        self.people = None
        if unit == "person":
            self.people = People.of(run.data, run.device, _images_per_person(run), run.team)
        self._nobody = count if self.people is None else len(self.people.sizes) - 1
        self.filler = self._nobody if run.team.size == 1 else len(np.unique(run.data.unit_of_record(unit)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record's features."""
        return tuple(self.features.shape[1:])

    def _places(self, units_private: Tensor) -> Tensor:
        """Where the units of this process are held; all others are nobody's."""
        if self._team.size == 1:
            return units_private
        own = (units_private % self._team.size == self._team.rank) & (units_private != self.filler)
        return torch.where(own, units_private // self._team.size, self._nobody)

    def _rows(self, records_private: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features and labels of some records."""
        features = self.features.index_select(0, records_private).to(self._type)
        return features, self.labels.index_select(0, records_private)


class SoftmaxRows:
    """Feature rows (N, D), their labels, and the length of each row with a one for the bias, NaN for a broken one.

    ``people`` says whom each row is of, where that is the unit.
    """

    def __init__(self, features: Tensor, labels: Tensor, people: People | None = None) -> None:
        finite = torch.cat([chunk.isfinite().all(dim=1) for chunk in features.split(_CHUNK)])
        self.features = features if bool(finite.all()) else torch.where(finite[:, None], features, 0.0)
        self.labels, self.people = labels, people
        squares = torch.cat([chunk.double().square().sum(dim=1) for chunk in self.features.split(_CHUNK)])
        self.lengths = torch.where(finite, (squares + 1).sqrt(), torch.nan)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and lengths, always equally many at a time; a row that fills up has no length."""
        count, width = self.features.shape
        at_once = max(1, (_CACHED_ON_GPU if self.features.is_cuda else _CACHED) // width)
        for start in range(0, count, at_once):
            chunk = slice(start, start + at_once)
            rows, labels, lengths = self.features[chunk].float(), self.labels[chunk], self.lengths[chunk]
            missing = at_once - len(rows)
            if missing:
                rows = torch.cat([rows, rows.new_zeros(missing, width)])
                labels = torch.cat([labels, labels.new_zeros(missing)])
                lengths = torch.cat([lengths, lengths.new_zeros(missing)])
            yield rows, labels, lengths

    def of_each_person(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and lengths of one person after the other."""
        assert self.people is not None
        for person in range(len(self.people.sizes) - 1):
            own = self.people.records_of(person)
            yield self.features[own].float(), self.labels[own], self.lengths[own]


def softmax_gradients(mechanism: GaussianSum, weights: Tensor, records: SoftmaxRows) -> Tensor:
    """The sum of all units' clipped gradients, (classes, D + 1), the bias last; in float64.

    Privacy: a record's gradient depends on that record and on the (sanitized) weights alone. Its norm is that of the
    error times that of the features *and the one of the bias*, so scaling the error by C / norm clips the whole outer
    product: adding or removing a record moves the sum by at most C (add-remove, sensitivity "C"). A record that is not
    finite adds nothing, whatever it holds. The sum is one of double precision: a removed record moves all later ones
    to other places, and single precision rounds by place, which adds up over many records. For people see
    ``_add_people``.
    """
    total = torch.zeros(weights.shape, dtype=torch.float64, device=weights.device)
    with arithmetic("fp32"):
        if records.people is not None:
            _add_people(mechanism, weights, records, total)
            return total
        for features, labels, lengths in records.chunks():
            errors = _errors(weights, features, labels)
            norms = torch.linalg.vector_norm(errors, dim=1, dtype=torch.float64) * lengths
            factors = mechanism.clip_factors(norms, lengths != 0)[:, None]
            errors = torch.where(factors > 0, errors * factors, 0.0)
            total[:, :-1].addmm_(errors.T, features.double())
            total[:, -1] += errors.sum(dim=0)
    return total


def _add_people(mechanism: GaussianSum, weights: Tensor, records: SoftmaxRows, total: Tensor) -> None:
    """Add every person's clipped gradient: the mean over all their records.

    Privacy: it is not of rank one, so it is formed and clipped as one row of all its numbers; it is computed from that
    person's records alone, and one that is not finite counts nothing. Adding or removing a person moves the sum by at
    most C.
    """
    for features, labels, lengths in records.of_each_person():
        errors = _errors(weights, features, labels) / max(1, len(labels))
        errors = torch.where(lengths.isfinite()[:, None], errors, 0.0)
        gradient = torch.cat([errors.T @ features, errors.sum(dim=0)[:, None]], dim=1)
        mechanism.accumulate(total.view(-1), gradient.view(1, -1))


def _errors(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """What the answers are wrong by (N, classes)."""
    answers = torch.addmm(weights[:, -1], features, weights[:, :-1].T).softmax(dim=1)
    return answers - one_hot(labels, len(weights))


# The two ways to learn: each yields its state whenever it should be kept, and at its end


@dataclass(frozen=True)
class _Lesson:
    run: Run
    teacher: Teacher
    config: PrivateTeacherConfig
    event: Event
    clip: float

    @property
    def block(self) -> int:
        """After so many steps the state is kept; the ledger is written as often."""
        return max(1, self.event.count // _KEPT)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights of a softmax layer with its bias."""
        return self.run.plan.domain.classes or 1, self.teacher.features.count + 1

    @property
    def sharing(self) -> Sharing:
        """For processes that help: what is taught, and how."""
        told = {"teacher": self.config.model_dump(mode="json"), "event": self.event.model_dump(mode="json")}
        return Sharing({**told, "clip": self.clip}, work=TAUGHT)


def _linear_sum(lesson: _Lesson, records: FeatureRecords, mechanism: GaussianSum, weights: Tensor) -> SharedSum:
    """The sum of clipped gradients at ``weights``, whatever they are then. Privacy: see ``softmax_gradients``."""
    rows = SoftmaxRows(records.features[:-1].flatten(1), records.labels[:-1], records.people)
    sharing = Sharing(None, [weights])
    return SharedSum(lesson.run.team, mechanism, lambda: softmax_gradients(mechanism, weights, rows), sharing)


def _linear_lesson(
    lesson: _Lesson, records: FeatureRecords, kept: Mapping[str, Tensor] | None
) -> Iterator[dict[str, Tensor]]:
    """Gradient descent with momentum on all records; the teacher is the mean of the weights of the last steps.

    Privacy: a step is one execution; it is divided by the declared number of units.
    """
    run, event = lesson.run, lesson.event
    mechanism = GaussianSum(run.ledger, run.randomness, clip=lesson.clip, event=event)
    block, names = lesson.block, ("weights", "velocity", "sum")
    begun = dict.fromkeys(names, torch.zeros(lesson.shape)) if kept is None else kept
    weights, velocity, later = (begun[name].to(run.device, copy=True) for name in names)
    gradients = _linear_sum(lesson, records, mechanism, weights)
    steps, summed = (0, 0) if kept is None else (int(kept["steps"]), int(kept["summed"]))
    while mechanism.account.remaining:
        total_dp = mechanism.release(gradients.take(), block=block).value_dp
        velocity = MOMENTUM * velocity + (total_dp / run.plan.domain.nominal_units).float()
        weights.sub_((lesson.config.learning_rate or 1.0) * velocity)
        steps += 1
        if steps > (1 - _AVERAGED) * event.count:
            later, summed = later + weights, summed + 1
        if steps % block == 0 or not mechanism.account.remaining:
            mechanism.check_finite()
            counts = {"steps": torch.tensor(steps), "summed": torch.tensor(summed)}
            yield {"weights": weights, "velocity": velocity, "sum": later, **counts}


def _network_lesson(
    lesson: _Lesson, records: FeatureRecords, kept: Mapping[str, Tensor] | None
) -> Iterator[dict[str, Tensor]]:
    """DP-SGD on Poisson batches of features.

    Privacy: all private reads are those of ``PrivateStep``.
    """
    teacher, stepping = lesson.teacher, _network_step(lesson, records)
    if kept is not None:
        _load(teacher, kept)
        stepping.optimizer.load_state_dict({name: kept[name] for name in ("first", "second", "steps")})
    while stepping.remaining:
        stepping.take()
        steps = stepping.optimizer.steps
        if steps % lesson.block == 0 or not stepping.remaining:
            stepping.check_finite()
            moments = {name: torch.as_tensor(value) for name, value in stepping.optimizer.state_dict().items()}
            yield {**{f"{_HEAD}{name}": value for name, value in teacher.head.state_dict().items()}, **moments}


def _network_step(lesson: _Lesson, records: FeatureRecords) -> PrivateStep:
    """The step of a network. Privacy: at the rate that is accounted."""
    run, sampling = lesson.run, lesson.event.sampling
    assert isinstance(sampling, PoissonSampling)
    batch = round(sampling.rate * run.plan.domain.nominal_units)
    rate = lesson.config.learning_rate or 1e-3
    options = StepOptions(batch, lesson.clip, rate, images_per_person=_images_per_person(run))
    sharing = Sharing(None)
    return PrivateStep(run, lesson.teacher.head, _naming, options, lesson.event, records=records, sharing=sharing)


def _naming(records_private: Examples, random: torch.Generator) -> tuple[Inputs, Loss]:
    """The head is shown features; its loss is the cross-entropy of each record's label."""
    labels = records_private.labels
    assert labels is not None, "checked by the plan"
    return (records_private.images,), lambda logits: cross_entropy(logits, labels, reduction="none")


def _load(teacher: Teacher, kept: Mapping[str, Tensor]) -> None:
    """Put what was kept into the head of a teacher."""
    if "weights" in kept:
        weights = kept["sum"] / kept["summed"] if kept["summed"] else kept["weights"]
        head = {"weight": weights[:, :-1], "bias": weights[:, -1]}
    else:
        head = {name.removeprefix(_HEAD): value for name, value in kept.items() if name.startswith(_HEAD)}
    teacher.head.load_state_dict(head)
    _load_filters(teacher, kept)


def _load_filters(teacher: Teacher, kept: Mapping[str, Tensor]) -> None:
    """Put what was kept of filters into features; those of scattering have none."""
    filters = {name.removeprefix(_FEATURES): value for name, value in kept.items() if name.startswith(_FEATURES)}
    teacher.features.load_state_dict(filters)
