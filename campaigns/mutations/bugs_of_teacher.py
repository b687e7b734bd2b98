"""Bugs in the private teacher beside a generator."""

from __future__ import annotations

from .planting import Bug, bug

TRAINING, SCATTERING, PLANS = "engines/teacher/training.py", "models/scattering.py", "methods/base.py"
PATCHES = "models/patches.py"
_TESTS = "tests/engines/teacher/test_training.py"
_AUDIT = "tests/audit/test_mechanism_audits.py::test_a_true_claim_is_confirmed_and_partly_reached"

_STEP = (
    "    while mechanism.account.remaining:\n"
    "        total_dp = mechanism.release(gradients.take(), block=block).value_dp\n"
)
_EXACT = "        exact = gradients.take()\n"


BUGS: tuple[Bug, ...] = (
    bug(
        "the teacher's norm without the one of the bias",
        TRAINING,
        "(squares + 1).sqrt(), torch.nan)",
        "squares.sqrt(), torch.nan)",
        f"{_TESTS}::test_the_bias_counts_in_the_norm",
    ),
    bug(
        "the teacher clips the mean instead of each record",
        TRAINING,
        "mechanism.clip_factors(norms, lengths != 0)",
        "mechanism.clip_factors(norms.nanmean().expand_as(norms), lengths != 0)",
        f"{_TESTS}::test_no_record_moves_the_sum_by_more_than_the_bound",
    ),
    bug(
        "the teacher measures records too short",
        TRAINING,
        "(squares + 1).sqrt(), torch.nan)",
        "(squares / 4 + 1).sqrt(), torch.nan)",
        f"{_AUDIT}[dp-merf, with a teacher]",
        by_audit=True,
    ),
    bug(
        "a broken record of the teacher takes the others out",
        TRAINING,
        "errors = torch.where(factors > 0, errors * factors, 0.0)\n",
        "errors = errors * factors * factors.min().sign()\n",
        f"{_TESTS}::test_a_broken_record_takes_out_itself_alone",
    ),
    bug(
        "scattering features normalised over the batch",
        SCATTERING,
        "            maps.reshape(len(images), self.maps, *self.grid), self.groups",
        "            (maps - maps.mean(dim=0)).reshape(len(images), self.maps, *self.grid), self.groups",
        "tests/models/test_scattering.py::test_an_images_features_do_not_hang_on_what_is_beside_it",
    ),
    bug(
        "patch features normalised over the batch",
        PATCHES,
        "functional.group_norm(found, 1",
        "functional.group_norm(found - found.mean(dim=0), 1",
        "tests/models/test_patches.py::test_an_images_features_do_not_hang_on_what_is_beside_it",
    ),
    bug(
        "patch features that are rounded by how images lie in memory",
        PATCHES,
        "images.float().clone(memory_format=torch.contiguous_format)",
        "images.float()",
        "tests/models/test_patches.py::test_how_an_image_lies_in_memory_does_not_count",
    ),
    bug(
        "filters of patches centred on the records",
        TRAINING,
        "        _share_filters(run, teacher)\n        learn =",
        "        for offsets in (teacher.features.state_dict().get('offsets', torch.zeros(1)),):\n"
        "            offsets.sub_(float(run.data.images.mean()) / 255)\n"
        "        _share_filters(run, teacher)\n        learn =",
        f"{_TESTS}::test_filters_are_the_same_whatever_the_records_are",
    ),
    bug(
        "the teacher's features centred over all records",
        TRAINING,
        "        self.people = None\n",
        "        self.features[:-1] -= self.features[:-1].mean(dim=0)\n        self.people = None\n",
        f"{_TESTS}::test_features_of_a_record_are_those_of_its_image_alone",
    ),
    bug(
        "no noise in the teacher's first step",
        TRAINING,
        _STEP,
        "    while mechanism.account.remaining:\n"
        f"{_EXACT}"
        "        total_dp = mechanism.release(exact, block=block).value_dp if steps else exact\n"
        "        if not steps:\n"
        "            mechanism.account.spend(1, block)\n",
        f"{_TESTS}::test_every_step_has_noise_of_the_planned_deviation",
    ),
    bug(
        "the teacher's step over the true number of records",
        TRAINING,
        "(total_dp / run.plan.domain.nominal_units).float()",
        "(total_dp / max(1, len(run.data))).float()",
        f"{_TESTS}::test_a_step_is_divided_by_the_declared_number_of_records",
    ),
    bug(
        "the teacher's event is missing from the plan",
        PLANS,
        "for event in (*events(noise_multiplier), *teacher))",
        "for event in events(noise_multiplier))",
        "tests/methods/test_teacher.py::test_every_central_method_plans_its_own_events_and_then_the_teachers[dp-merf]",
    ),
    bug(
        "a resumed teacher takes lost steps again without spending",
        TRAINING,
        _STEP,
        "    while steps < event.count:\n"
        f"{_EXACT}"
        "        if mechanism.account.remaining:\n"
        "            total_dp = mechanism.release(exact, block=block).value_dp\n"
        "        else:\n"
        "            total_dp = mechanism._noisy(exact, lesson.clip * event.noise_multiplier)\n",
        f"{_TESTS}::test_what_was_reserved_when_it_was_killed_stays_spent[linear]",
    ),
    bug(
        "a teacher whose steps are not on record is taken over",
        TRAINING,
        'if kept is not None and int(kept["steps"]) > account.reserved:',
        'if kept is not None and int(kept["steps"]) < 0:',
        f"{_TESTS}::test_a_state_that_the_ledger_does_not_account_for_is_refused",
    ),
    bug(
        "a teacher that is gone is trained anew",
        TRAINING,
        "    if kept is None and not account.remaining:\n",
        "    if kept is None and not account.remaining and not path.parent.exists():\n",
        f"{_TESTS}::test_a_teacher_that_was_paid_for_and_is_gone_is_not_trained_again",
    ),
    bug(
        "a batch of a network teacher drawn at another rate than is accounted",
        TRAINING,
        "    batch = round(sampling.rate * run.plan.domain.nominal_units)\n",
        "    batch = min(len(run.data), 2 * round(sampling.rate * run.plan.domain.nominal_units))\n",
        f"{_TESTS}::test_every_execution_of_a_network_is_a_step_on_a_batch_of_the_accounted_rate",
    ),
)
