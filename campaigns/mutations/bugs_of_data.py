"""Bugs in the reading of data: what publishes something that nobody declared, or ties records to each other."""

from __future__ import annotations

from .planting import Bug, bug

PICTURES, DICOM = "data/pictures.py", "data/dicom.py"
_FOLDER, _PEOPLE, _DICOM = "tests/data/test_folder.py", "tests/data/test_people.py", "tests/data/test_dicom.py"

BUGS: tuple[Bug, ...] = (
    bug(
        "images that differ from the first are left out as broken",
        PICTURES,
        "            stack.put(item.name, image)\n",
        "            try:\n"
        "                stack.put(item.name, image)\n"
        "            except InputError as error:\n"
        "                broken.take(error)\n"
        "                continue\n",
        f"{_FOLDER}::test_what_is_left_out_does_not_hang_on_other_records",
    ),
    bug(
        "any number of broken files is left out",
        PICTURES,
        "        if self.allowed is not None and len(self.found) > self.allowed:\n",
        "        if self.allowed is None:\n",
        f"{_FOLDER}::test_up_to_a_declared_number_of_broken_files_is_left_out",
    ),
    bug(
        "names of classes that were only found are published",
        "data/arrays.py",
        "        class_names=options.class_names if declared_classes is not None else None,\n",
        "        class_names=options.class_names or tuple(sorted({str(label) for label in labels or ()})) or None,\n",
        "tests/data/test_tables.py::test_the_order_of_names_that_nobody_declared_is_told_and_not_published",
    ),
    bug(
        "a record without a label takes the labels of all others away",
        PICTURES,
        "    if present and len(present) < len(values):\n",
        "    if len(present) < len(values):\n        return None\n    if not values:\n",
        "tests/data/test_webdataset.py::test_a_record_without_a_class_beside_others_is_no_silent_loss_of_all_classes",
    ),
    bug(
        "every element of a DICOM file is parsed",
        DICOM,
        "specific_tags=list(keywords))",
        "force=False)",
        f"{_DICOM}::test_no_element_of_a_patient_is_parsed",
    ),
    bug(
        "without a declared window the values of the image decide",
        DICOM,
        "        if bits > 8 or values.min() < 0 or values.max() > 255:\n",
        "        values = 255 * (values - values.min()) / max(1, np.ptp(values))\n        if bits == 0:\n",
        f"{_DICOM}::test_a_window_is_declared_and_not_taken_from_the_file",
    ),
    bug(
        "columns of a table that nobody asked for are read",
        "data/tables.py",
        "file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=reader.needed)",
        "file.iter_batches(batch_size=_ROWS_AT_ONCE)",
        "tests/data/test_tables.py::test_columns_that_nobody_asked_for_are_not_read",
    ),
    bug(
        "people are trained on by a method that does not protect them",
        "data/domain.py",
        "    if domain.nominal_people is not None:\n        raise InputError(",
        "    if domain.nominal_people == 0:\n        raise InputError(",
        f"{_PEOPLE}::test_a_method_that_does_not_protect_people_refuses_them",
    ),
    bug(
        "a person's images spread over subsets",
        "data/dataset.py",
        '        column = self.client_ids if unit == "client" else self.people\n',
        '        column = self.client_ids if unit == "client" else np.arange(len(self), dtype=np.int64)\n',
        f"{_PEOPLE}::test_a_person_with_all_records_is_a_unit",
    ),
    bug(
        "the declared number of people is the true one",
        "data/arrays.py",
        "        nominal_people=None if people is None else require_people(options),\n",
        "        nominal_people=None if people is None else require_people(options) and len(set(np.ravel(people))),\n",
        f"{_PEOPLE}::test_their_number_is_declared_and_published_and_never_compared",
    ),
)
