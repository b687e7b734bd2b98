"""Bugs where a unit is a person with all images."""

from __future__ import annotations

from .planting import Bug, Patch, bug

STEP, RECORDS, MEANS = "engines/dpsgd/step.py", "engines/records.py", "engines/embedding/means.py"
TEACHER, BASE, CHECKS = "engines/teacher/training.py", "methods/base.py", "release/checks.py"
_ENGINES, _METHODS = "tests/engines/test_people.py", "tests/methods/test_people.py"

_ENGINE = "PerExampleGradients(network, self._flat, step_precision(run), options.rows * self._together)"
_WEIGH = (
    "            factors = self._mechanism.clip_factors(norms_private, examples.present)\n"
    "            self._note(norms_private, factors, examples.present)\n"
)
_TOGETHER = '        self._together = options.images_per_person if run.plan.domain.unit == "person" else 1\n'

BUGS: tuple[Bug, ...] = (
    bug(
        "a partition that assigns images of people",
        "engines/critics/panel.py",
        "unit=run.plan.domain.unit",
        'unit="record"',
        f"{_ENGINES}::test_a_person_is_in_one_subset_and_leaves_all_others_as_they_were",
    ),
    bug(
        "the cap of images of a person read from the data",
        RECORDS,
        "sizes.to(device), shown)",
        "sizes.to(device), max(1, int(sizes.max())))",
        f"{_ENGINES}::test_no_more_images_of_a_person_are_shown_than_the_cap_and_each_once",
    ),
    Bug(
        "a clip of each image of a person in a step",
        (
            Patch(STEP, _ENGINE, _ENGINE.replace(" * self._together", "")),
            Patch(
                STEP,
                _WEIGH,
                "            present = examples.present.repeat_interleave(self._together)\n"
                "            factors = self._mechanism.clip_factors(norms_private, present)\n"
                "            self._note(norms_private, factors, present)\n",
            ),
        ),
        f"{_ENGINES}::test_a_person_is_clipped_as_one_however_many_images_pull",
    ),
    bug(
        "a clip of each image of a person in a teacher",
        TEACHER,
        "        if records.people is not None:\n",
        "        if records.people is None:\n",
        f"{_ENGINES}::test_without_a_person_no_bit_of_what_others_teach_changes",
    ),
    bug(
        "a clip of each class of a person in an embedding",
        MEANS,
        "        mechanism.accumulate(total.view(-1), sums.view(people, -1))\n",
        "        mechanism.accumulate(total, sums, torch.arange(people * classes) % classes)\n",
        f"{_ENGINES}::test_a_person_in_several_classes_is_clipped_jointly",
    ),
    Bug(
        "a coin for each image of a person",
        (
            Patch(STEP, _TOGETHER, "        self._together = 1\n"),
            Patch(
                RECORDS,
                '        self.people = None if data.domain.unit == "record" else ',
                "        self.people = None and ",
            ),
        ),
        f"{_ENGINES}::test_coins_are_flipped_for_people_and_not_for_images",
    ),
    bug(
        "the rate of people held against records",
        STEP,
        "run.data.domain.nominal_units)\n",
        "run.data.domain.nominal_records)\n",
        f"{_ENGINES}::test_the_rate_is_held_against_people",
    ),
    bug(
        "people accounted at the rate of their images",
        BASE,
        "sampling_rate(self.batch or 1, domain.nominal_units)",
        "sampling_rate(self.batch or 1, domain.nominal_records)",
        f"{_METHODS}::test_people_cost_what_as_many_records_cost[dpgan]",
    ),
    bug(
        "a step divided by the number of people there are",
        STEP,
        "update_dp / (self._options.batch + self._public)",
        "update_dp / (max(1, self._records.filler) + self._public)",
        f"{_ENGINES}::test_the_divisor_is_the_declared_one_whoever_and_how_many_come",
    ),
    bug(
        "a teacher of people divided by records",
        TEACHER,
        "(total_dp / run.plan.domain.nominal_units)",
        "(total_dp / run.plan.domain.nominal_records)",
        f"{_ENGINES}::test_a_teacher_is_divided_by_the_declared_number_of_people",
    ),
    bug(
        "features of a person that are rounded by who comes along",
        MEANS,
        "max(0, micro_batch - len(images_private))",
        "0",
        f"{_ENGINES}::test_without_a_person_no_bit_of_what_others_add_to_an_embedding_changes",
    ),
    bug(
        "events that say record for people",
        BASE,
        "    return event if domain.nominal_people is None else",
        "    return event if domain.nominal_people is not None else",
        f"{_METHODS}::test_a_run_on_people_trains_verifies_and_says_person[dp-merf]",
    ),
    bug(
        "verify pays for people with events of records",
        CHECKS,
        '    told = {"count", "planned", "executed", "purpose"}\n',
        '    told = {"count", "planned", "executed", "purpose", "unit"}\n',
        f"{_METHODS}::test_people_in_the_config_and_records_in_the_events_are_refused",
    ),
    bug(
        "delta for people held against records",
        CHECKS,
        '"person": domain.nominal_people}',
        '"person": domain.nominal_records}',
        f"{_METHODS}::test_delta_is_held_against_the_number_of_people",
    ),
    bug(
        "people in a certificate of schema 1",
        "privacy/certificate.py",
        "        if self.schema_version < schema_for(self.guarantees, self.events):\n",
        "        if self.schema_version < 1:\n",
        f"{_METHODS}::test_a_certificate_of_schema_1_knows_no_people",
    ),
    bug(
        "an annotator of records for a generator of people",
        "methods/annotation.py",
        "    if any(event.unit != domain.unit for event in certificate.events):\n",
        '    if any(event.unit == "client" for event in certificate.events):\n',
        f"{_METHODS}::test_an_annotator_of_another_unit_is_refused",
    ),
    bug(
        "a method for records that takes people",
        BASE,
        "    if not method.protects_people:\n",
        "    if method.federated:\n",
        f"{_METHODS}::test_a_method_that_does_not_protect_people_refuses_them_in_one_sentence",
    ),
    bug(
        "canaries of an audit that are one person together",
        "audit/canaries.py",
        "len(data) + taken]",
        "len(data) + 0 * taken]",
        f"{_METHODS}::test_a_canary_is_a_person_of_its_own",
    ),
    bug(
        "one name among numbers that renumbers everybody's class",
        "data/columns.py",
        "    if 0 < len(numbers) < len(found):\n",
        "    if len(numbers) > len(found):\n",
        "tests/data/test_people.py::test_one_record_cannot_renumber_the_classes_of_all_others",
    ),
    bug(
        "one person who is two for a blank",
        "data/columns.py",
        'unicodedata.normalize("NFC", str(value).strip())',
        'unicodedata.normalize("NFC", str(value))',
        "tests/data/test_people.py::test_one_person_who_is_written_in_several_ways_is_one_person",
    ),
    bug(
        "a quote that swallows the rows of others",
        "data/tables.py",
        """                if any("\\n" in str(cell) or "\\r" in str(cell) for cell in row.values()):\n""",
        "                if None in row:\n",
        "tests/data/test_tables.py::test_a_quote_that_is_not_closed_swallows_nobody",
    ),
    bug(
        "a file of one person that takes others out of the data",
        "data/sources.py",
        "        if len(of_splits) < len(found):\n",
        "        if len(of_splits) > len(found):\n",
        "tests/data/test_tables.py::test_a_file_beside_those_of_splits_is_not_passed_over",
    ),
    bug(
        "a path that makes one person of all",
        "data/tables.py",
        '            if PurePath(path).is_absolute() or ".." in folders:\n',
        '            if ".." in folders:\n',
        "tests/data/test_tables.py::test_a_path_that_does_not_say_its_folders_says_nobody",
    ),
)
