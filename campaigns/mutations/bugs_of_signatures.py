"""Bugs in keys and signatures: what lets a release be vouched for by the wrong one, or by nobody."""

from __future__ import annotations

from .planting import Bug, bug

SIGNING = "release/signing.py"
_TESTS = "tests/release/test_signing.py"

BUGS: tuple[Bug, ...] = (
    bug(
        "a signature that may leave a file out",
        SIGNING,
        "    if sorted(map(str, (name for name, _, _ in stated))) != sorted(folders.ALLOWED_FILES):\n",
        "    if not {name for name, _, _ in stated} <= set(folders.ALLOWED_FILES):\n",
        f"{_TESTS}::test_a_signature_that_leaves_a_file_out_is_refused_though_the_tool_accepts_it",
    ),
    bug(
        "a file that is not compared with its signature",
        SIGNING,
        "    for name in folders.ALLOWED_FILES:\n        path = place / name\n",
        "    for name in (folders.WEIGHTS, folders.CONFIG, folders.CERTIFICATE):\n        path = place / name\n",
        f"{_TESTS}::test_every_file_is_covered_with_or_without_the_key",
    ),
    bug(
        "any key will do",
        SIGNING,
        "    _check_with(trusted, fingerprint, place, path)\n",
        "",
        f"{_TESTS}::test_another_key_is_refused",
    ),
    bug(
        "the name of a key taken for its signature",
        SIGNING,
        "        config.verify(place, path)\n",
        "        del config\n",
        f"{_TESTS}::test_a_stranger_who_names_the_owners_key_is_refused",
    ),
    bug(
        "a missing signature passes where a key is given",
        SIGNING,
        "        if trusted is not None:\n",
        "        if trusted is not None and named:\n",
        f"{_TESTS}::test_a_missing_signature_is_refused_where_a_key_is_given",
    ),
    bug(
        "a signature that was taken away goes unnoticed",
        SIGNING,
        "        if named:\n",
        "        if named and trusted:\n",
        f"{_TESTS}::test_a_signature_that_was_taken_away_is_missed_by_the_model_card",
    ),
    bug(
        "a model card that names another key",
        SIGNING,
        "    if others := named - {fingerprint}:\n",
        "    if others := named - named:\n",
        f"{_TESTS}::test_a_model_card_that_names_another_key_is_refused",
    ),
    bug(
        "a refused signature beside a verified claim",
        "release/verify.py",
        "    if signature.state in (signing.VALID, signing.REFUSED):\n",
        "    if signature.state == signing.VALID:\n",
        f"{_TESTS}::test_another_key_is_refused",
    ),
    bug(
        "a signature that was not checked called valid",
        SIGNING,
        "        return Signature(NOT_CHECKED, fingerprint, words)\n",
        "        return Signature(VALID, fingerprint, words)\n",
        f"{_TESTS}::test_without_a_key_a_signature_is_not_said_to_be_checked",
    ),
    bug(
        "a second reading of a signature",
        SIGNING,
        '        bundle.keys() == {"mediaType", "verificationMaterial", "dsseEnvelope"}\n',
        '        bundle.keys() >= {"mediaType", "verificationMaterial", "dsseEnvelope"}\n',
        f"{_TESTS}::test_hostile_signatures_get_a_verdict[a field under another name]",
    ),
    bug(
        "a private key left to the umask",
        SIGNING,
        "        _write_new(pair[0], _private_pem(key, passphrase), 0o600)\n",
        "        pair[0].write_bytes(_private_pem(key, passphrase))\n",
        f"{_TESTS}::test_a_private_key_is_for_its_owner_alone_whatever_the_umask",
    ),
    bug(
        "a key that takes the place of another",
        SIGNING,
        "        if os.path.lexists(path):\n",
        "        if path.exists():\n",
        f"{_TESTS}::test_a_key_is_never_overwritten",
    ),
    bug(
        "a model card that does not name the key",
        "release/release.py",
        "            write_text(place / folders.MODEL_CARD, model_card(self, key.fingerprint if key else None))\n",
        "            write_text(place / folders.MODEL_CARD, model_card(self))\n",
        f"{_TESTS}::test_the_model_card_names_the_key_and_a_copy_without_it_says_so",
    ),
    bug(
        "files signed before all are there",
        "release/release.py",
        "            write_bytes(place / folders.SAMPLES, grid_png(self))\n            if key is not None:\n"
        "                signing.sign(place, Path(folder).resolve().name, key)\n",
        "            if key is not None:\n                signing.sign(place, Path(folder).resolve().name, key)\n"
        "            write_bytes(place / folders.SAMPLES, grid_png(self))\n",
        f"{_TESTS}::test_a_signed_release_has_a_sixth_file_and_is_verified_with_the_key",
    ),
)
