"""Bugs in what several processes share: whose coins, whose noise, whose ledger; and in data on disk."""

from __future__ import annotations

from .planting import Bug, bug

STEP, BATCHES = "engines/dpsgd/step.py", "engines/dpsgd/batches.py"
SHARING, FOLLOWING = "engines/dpsgd/sharing.py", "following.py"
_TESTS = "tests/engines/dpsgd/test_sharing.py"
_NOISE = f"{_TESTS}::test_noise_is_added_once_and_is_that_of_one_process"
_STORE = "tests/data/test_store.py"

BUGS: tuple[Bug, ...] = (
    bug(
        "noise by every process",
        STEP,
        "        self._shared.end(self._total, self._seen_private, *broken)\n",
        "        deviation = self._options.clip * self._mechanism.account.template.noise_multiplier\n"
        "        self._total.add_(deviation * torch.randn_like(self._total))\n"
        "        self._shared.end(self._total, self._seen_private, *broken)\n",
        f"{_NOISE}[2]",
    ),
    bug(
        "noise by no process of several",
        STEP,
        "        if self._mechanism is not None:\n            update_dp = ",
        "        if self._mechanism is not None and self._shared.alone:\n            update_dp = ",
        f"{_NOISE}[2]",
    ),
    bug(
        "noise divided among processes by their number",
        STEP,
        "        self.optimizer.step(update_dp / (self._options.batch + self._public))\n",
        "        update_dp = self._total + (update_dp - self._total) * self._shared.part_of(1.0)\n"
        "        self.optimizer.step(update_dp / (self._options.batch + self._public))\n",
        f"{_NOISE}[2]",
    ),
    bug(
        "a unit owned by two processes",
        BATCHES,
        "            record = record * self._team.size + self._team.rank\n",
        "            record = record * self._team.size\n",
        f"{_TESTS}::test_every_unit_is_owned_by_exactly_one_process",
    ),
    bug(
        "every process draws the coins of all units",
        BATCHES,
        "        own = len(range(self._team.rank, self._records, self._team.size))\n",
        "        own = self._records\n",
        f"{_TESTS}::test_every_unit_is_owned_by_exactly_one_process",
    ),
    bug(
        "a rate divided among processes",
        BATCHES,
        "        taken = self._coins.flip((steps, own), self._rate)\n",
        "        taken = self._coins.flip((steps, own), self._rate / self._team.size)\n",
        f"{_TESTS}::test_a_unit_takes_part_with_the_accounted_rate_whoever_owns_it[2]",
    ),
    bug(
        "processes with one seed are not refused",
        FOLLOWING,
        "    if len(set(found)) < len(found):\n",
        "    if len(set(found)) < 1:\n",
        f"{_TESTS}::test_two_processes_that_draw_the_same_numbers_are_refused",
    ),
    bug(
        "one seed for all processes",
        "privacy/randomness/streams.py",
        "    if seed is None or rank == 0:\n        return seed\n",
        "    if seed is None or rank >= 0:\n        return seed\n",
        f"{_TESTS}::test_processes_draw_coins_of_their_own",
    ),
    bug(
        "processes with other data are not refused",
        FOLLOWING,
        "    if others:\n",
        "    if others and others[0] == 0:\n",
        f"{_TESTS}::test_processes_with_other_data_are_refused",
    ),
    bug(
        "a process that follows can spend",
        "privacy/ledger.py",
        '        if json.loads(line)["kind"] != "plan":\n',
        '        if json.loads(line)["kind"] == "none":\n',
        f"{_TESTS}::test_a_process_that_follows_cannot_spend_and_so_cannot_release",
    ),
    bug(
        "broken gradients of other processes are forgotten",
        SHARING,
        "        together = torch.cat([count.double() for count in counts])\n        self._team.total(together)\n",
        "        together = torch.cat([count.double() for count in counts])\n"
        "        self._team.total(together.clone())\n",
        f"{_TESTS}::test_broken_gradients_in_another_process_stop_the_run",
    ),
    bug(
        "a changed image of a store is not noticed",
        "data/store.py",
        "        self._confirm(np.unique(numbers // self._block))\n",
        "",
        f"{_STORE}::test_an_image_that_was_changed_is_noticed_when_its_block_is_first_read",
    ),
    bug(
        "the fingerprint of a store without its people",
        "data/store.py",
        '    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))\n',
        '    text = json.dumps({**facts, "columns": {}}, sort_keys=True, separators=(",", ":"))\n',
        f"{_STORE}::test_two_stores_have_one_fingerprint_exactly_if_they_hold_the_same",
    ),
    bug(
        "a process that does not know the secret of the others gets their sums",
        "distributed.py",
        "        if not known or not hmac.compare_digest(bytes(answer.tolist()), proofs[0]):\n",
        "        if not known and self.size == 0:\n",
        "tests/methods/test_processes.py::test_one_that_does_not_know_the_secret_is_noticed_by_all_others",
    ),
)
