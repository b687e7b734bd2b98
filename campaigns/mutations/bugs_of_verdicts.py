"""Bugs in ``verify`` and in the reading of what it verifies: what lets a forged release be called verified."""

from __future__ import annotations

from .planting import Bug, bug

VERIFY, CHECKS, FILES = "release/verify.py", "release/checks.py", "files.py"
_TESTS = "tests/release/test_verify.py"
_MISSING = f"{_TESTS}::test_what_verified_needs_and_is_missing_makes_a_release_consistent_at_best"
_NUMBERS = f"{_TESTS}::test_whatever_the_numbers_are_there_is_one_verdict_with_and_without_json"
_READERS = f"{_TESTS}::test_a_certificate_that_two_readers_may_read_differently_is_refused"
_VIEWERS = "tests/federated/test_method.py::test_a_guarantee_that_was_left_out_or_put_first_is_missed"

BUGS: tuple[Bug, ...] = (
    bug(
        "an epsilon of many digits ends in a traceback",
        "privacy/certificate.py",
        "ROUND_CEILING, _WIDE)",
        "ROUND_CEILING)",
        _NUMBERS,
    ),
    bug(
        "a check that fails in an unexpected way ends in a traceback",
        CHECKS,
        '    except Exception as error:\n        return None, Check(name, False, f"it cannot',
        '    except KeyError as error:\n        return None, Check(name, False, f"it cannot',
        f"{_TESTS}::test_a_check_that_breaks_down_is_a_refusal",
    ),
    bug(
        "a certificate that is tied to no config is verified",
        VERIFY,
        '        return "consistent" if failed else "verified"\n',
        '        return "verified"\n',
        _MISSING,
    ),
    bug(
        "true sizes of classes ride along where no event told noisy ones",
        CHECKS,
        "if alone.label_weights is not None and not any(",
        "if alone.label_weights is None and not any(",
        "tests/methods/diffusion/test_dp_diffusion.py::test_how_common_classes_are_is_told_only_where_an_event_told_it",
    ),
    bug(
        "something rides along beside the generator of a release with a teacher",
        CHECKS,
        "    if held != planned.model_copy(update=found):",
        "    if held == planned:",
        "tests/methods/test_teacher.py::test_a_teacher_that_the_config_does_not_plan_is_not_verified",
    ),
    bug(
        "two U-Nets that nobody planned are verified in the place of a small generator",
        CHECKS,
        '!= getattr(planned, "base", planned):',
        '!= getattr(planned, "base", planned) and held.kind != "diffusion":',
        f"{_TESTS}::test_a_generator_of_another_kind_than_the_config_plans_is_refused",
    ),
    bug(
        "a release whose generator nobody planned is consistent once its config is tied to nothing",
        CHECKS,
        "    _check_generator(config.generator, _planned_generator(method, plan), plan.events)\n"
        "    if certificate.config_sha256 is None:\n"
        '        raise Missing("the certificate is not tied to a config, so no plan is compared")\n',
        "    if certificate.config_sha256 is None:\n"
        '        raise Missing("the certificate is not tied to a config, so no plan is compared")\n'
        "    _check_generator(config.generator, _planned_generator(method, plan), plan.events)\n",
        f"{_TESTS}::test_a_contradiction_refuses_a_release_whatever_else_is_missing",
    ),
    bug(
        "text rides along inside the header of the weights",
        "release/contents.py",
        "all(tuple(entry) == _OF_A_TENSOR",
        "all(tuple(entry)[:3] == _OF_A_TENSOR",
        "tests/release/test_release.py::test_text_beside_the_tensors_is_refused",
    ),
    bug(
        "the order of tensors in the header of the weights is a message",
        "release/contents.py",
        'told and sorted(header.values(), key=lambda entry: entry["data_offsets"]) == list(header.values())',
        "told",
        "tests/release/test_release.py::test_text_beside_the_tensors_is_refused",
    ),
    bug(
        "blanks between the words of certificate and config are a message",
        VERIFY,
        "    if not problems:\n        told =",
        "    if problems:\n        told =",
        f"{_TESTS}::test_a_file_that_is_not_laid_out_as_releases_are_is_refused",
    ),
    bug(
        "lists of numbers that nothing uses ride along in a config",
        "configs.py",
        "Lengths = Annotated[tuple[Positive, ...], Field(max_length=100)]",
        "Lengths = Annotated[tuple[Positive, ...], Field(min_length=1)]",
        f"{_TESTS}::test_a_config_has_no_room_for_lists_of_numbers_that_nothing_uses",
    ),
    bug(
        "numbers of any size are what was found of a teacher",
        "models/generator.py",
        "    drawn_weight: Annotated[float, Field(ge=0, le=1e3)] = 0.0\n",
        "    drawn_weight: Annotated[float, Field(ge=0, le=1e9)] = 0.0\n",
        "tests/methods/test_teacher.py::test_what_was_found_of_a_teacher_is_within_reason",
    ),
    bug(
        "words between the words of the header of the weights are passed over",
        "release/contents.py",
        'text.rstrip(" ") != shortest or ',
        "",
        "tests/release/test_release.py::test_text_beside_the_tensors_is_refused",
    ),
    bug(
        "text rides along as the device of a run",
        "methods/config.py",
        '    if "runtime" in stated:\n',
        '    if "runtimes" in stated:\n',
        f"{_TESTS}::test_where_a_run_was_computed_is_nothing_that_a_release_says",
    ),
    bug(
        "any delta will do", CHECKS, "    if guarantee.delta * units > 1:\n", "    if guarantee.delta > 1:\n", _MISSING
    ),
    bug(
        "a large delta goes without a remark",
        CHECKS,
        "_LARGE_DELTA = 0.1 ",
        "_LARGE_DELTA = 1.0 ",
        f"{_TESTS}::test_a_delta_up_to_one_over_the_records_is_verified_with_a_plain_remark_above_a_tenth",
    ),
    bug(
        "a certificate may claim to cover everything",
        CHECKS,
        "    missing = [item for item in required if item not in certificate.not_covered]\n",
        "    missing = [item for item in certificate.not_covered if item not in certificate.not_covered]\n",
        _MISSING,
    ),
    bug(
        "the stamp of the trainer passes for a finding",
        VERIFY,
        '    return "no seed is stated"\n',
        '    return "drawn from the operating system"\n',
        f"{_TESTS}::test_a_seed_that_the_certificate_denies_is_a_statement_of_the_trainer",
    ),
    bug(
        "a guarantee against the server may be left out",
        CHECKS,
        "    left_out = [viewer for viewer in promise.viewers if viewer not in stated]\n",
        "    left_out = [viewer for viewer in promise.viewers[:1] if viewer not in stated]\n",
        _VIEWERS,
    ),
    bug(
        "events that nobody planned are accepted beside the planned ones",
        CHECKS,
        "    if len(certificate.events) > len(promise.events) or (further and not certificate.plan_raised):\n",
        "    if len(certificate.events) < len(promise.events):\n",
        f"{_TESTS}::test_a_changed_certificate_is_caught",
    ),
    bug(
        "a key that occurs twice",
        FILES,
        "        if key in found:\n",
        "        if key in found and key == value:\n",
        _READERS,
    ),
    bug(
        "text for a number, and true for 1",
        "configs.py",
        "    return kind.model_validate_json(json.dumps(raw), strict=True)\n",
        "    return kind.model_validate_json(json.dumps(raw))\n",
        _READERS,
    ),
    bug(
        "integers of any size",
        FILES,
        "    if len(digits) > _MOST_DIGITS or not -_LARGEST_INTEGER <= int(digits) <= _LARGEST_INTEGER:\n",
        "    if len(digits) > 4000:\n",
        _READERS,
    ),
)
