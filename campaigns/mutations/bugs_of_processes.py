"""Bugs in what several processes share: whose coins, whose noise, whose ledger; and in data on disk."""

from __future__ import annotations

from .planting import Bug, bug

STEP, BATCHES = "engines/dpsgd/step.py", "engines/dpsgd/batches.py"
SHARING, FOLLOWING = "engines/dpsgd/sharing.py", "following.py"
_TESTS = "tests/engines/dpsgd/test_sharing.py"
_NOISE = f"{_TESTS}::test_noise_is_added_once_and_is_that_of_one_process"
_STORE = "tests/data/test_store.py"
_PROCESSES = "tests/methods/test_processes.py"
CRITICS, PANEL = "engines/critics/sharing.py", "engines/critics/panel.py"
_CRITICS = "tests/engines/critics/test_sharing.py"
_ANSWERS = f"{_CRITICS}::test_answers_of_the_same_weights_are_those_of_one_process"
_TEACHING = "tests/methods/teachers/test_teaching.py"
RECORDS, TEACHER = "engines/records.py", "engines/teacher/training.py"
_SUMS = "tests/engines/test_shared_sums.py"
_OWNERS = f"{_SUMS}::test_every_record_is_one_processs_and_nobodys_records_are_divided"
_GRADIENTS = f"{_SUMS}::test_gradients_of_a_teacher_add_up_at_the_weights_of_each_step"

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
        f"{_PROCESSES}::test_one_that_does_not_know_the_secret_is_noticed_by_all_others",
    ),
    bug(
        "a critic that learns from a subset of another process",
        CRITICS,
        "        return torch.nonzero(assignment % self.team.size == self.team.rank)[:, 0]\n",
        "        return torch.nonzero(assignment % self.team.size == 0)[:, 0]\n",
        f"{_CRITICS}::test_a_process_holds_the_records_of_its_own_subsets_and_no_others",
    ),
    bug(
        "a critic trained by two processes, on two subsets",
        CRITICS,
        "            return slice(*(max(0, -(-(place - rank) // size)) for place in (start, stop)))\n"
        "        return [critic // size for critic in critics if critic % size == rank]\n",
        "            return slice(start // size, -(-stop // size))\n"
        "        return [critic // size for critic in critics]\n",
        f"{_CRITICS}::test_every_critic_is_owned_by_exactly_one_process_and_found_there",
    ),
    bug(
        "every process draws subsets of its own",
        PANEL,
        "    assignment = told[:-1].long()\n",
        "    assignment = told[:-1].long()\n"
        "    if not run.team.leads:\n"
        "        assignment = torch.from_numpy(_partition(run, subsets).assignment)\n",
        f"{_CRITICS}::test_everybody_uses_the_subsets_that_the_leader_keeps",
    ),
    bug(
        "a critic of every process answers every query",
        PANEL,
        "        mine = torch.nonzero(routing % team.size == team.rank)[:, 0]\n",
        "        mine = torch.arange(len(routing), device=routing.device)\n",
        _ANSWERS,
    ),
    bug(
        "every process draws a routing of its own",
        PANEL,
        "        team, at_once = self._shard.team, self._shard.at_once(len(routing))\n",
        "        team, at_once = self._shard.team, self._shard.at_once(len(routing))\n"
        "        routing = routing if team.leads else self.draw_routing(len(routing))\n",
        _ANSWERS,
    ),
    bug(
        "noise by every process that shares critics",
        CRITICS,
        "            for tensor in (part, *counts):\n",
        "            if part.is_floating_point():\n"
        "                part += torch.randn(part.shape, device=part.device)\n"
        "            for tensor in (part, *counts):\n",
        _ANSWERS,
    ),
    bug(
        "a process that follows sanitizes its answers too",
        "methods/critics/gs_wgan.py",
        "        return CriticsHelp(critics, critics.own_answers)\n",
        "        mechanism = _answering(run, config)\n"
        "        return CriticsHelp(critics, lambda *asked: mechanism.answer(critics.own_answers(*asked)).value_dp)\n",
        "tests/methods/test_processes.py::test_the_certificate_does_not_know_how_many_processes_there_were[gs-wgan]",
    ),
    bug(
        "the work of a process tells how often its critics are asked",
        PANEL,
        "            places = torch.cat([asked, asked.new_zeros(at_once - len(asked))])\n",
        "            places = asked\n",
        f"{_CRITICS}::test_what_others_can_see_does_not_tell_who_is_asked",
    ),
    bug(
        "broken votes of other processes are forgotten",
        CRITICS,
        "            for tensor in (part, *counts):\n",
        "            for tensor in (part,):\n",
        f"{_TEACHING}::test_broken_votes_in_another_process_stop_the_run",
    ),
    bug(
        "what other processes counted is counted again at every question",
        CRITICS,
        "                if not self._team.leads:\n                    tensor.zero_()\n",
        "",
        f"{_TEACHING}::test_the_votes_of_all_processes_are_counted_once_each_without_noise",
    ),
    bug(
        "the votes of the first process alone",
        "methods/teachers/teaching.py",
        "        return self.ask(partial(lesson.tally, self), pool, *public, counts=counted)\n",
        "        self.ask(partial(lesson.tally, self), pool, *public, counts=counted)\n"
        "        return lesson.tally(self, pool, *public)\n",
        f"{_TEACHING}::test_the_votes_of_all_processes_are_counted_once_each_without_noise",
    ),
    bug(
        "noise by every process that sums over all its units",
        SHARING,
        "        total = self._own_sum()\n",
        "        total = self._own_sum()\n"
        "        deviation = self._mechanism.clip * self._mechanism.account.template.noise_multiplier\n"
        "        if not self._shared.alone:\n"
        "            total += deviation * torch.randn_like(total)\n",
        f"{_SUMS}::test_noise_is_added_once_and_is_that_of_one_process[embedding-2]",
    ),
    bug(
        "a record in the sums of two processes",
        RECORDS,
        "        return range(team.rank, len(data), team.size)\n",
        "        return range(len(data))\n",
        f"{_OWNERS}[2-labelled]",
    ),
    bug(
        "a person's records divided among processes",
        RECORDS,
        "    return np.flatnonzero(data.unit_of_record(unit) % team.size == team.rank)\n",
        "    return np.arange(team.rank, len(data), team.size)\n",
        f"{_OWNERS}[2-people]",
    ),
    bug(
        "a teacher is shown other units than were drawn",
        TEACHER,
        "        return torch.where(own, units_private // self._team.size, self._nobody)\n",
        "        return torch.where(own, units_private // 2, self._nobody).clamp(max=self._nobody)\n",
        f"{_GRADIENTS}[network-labelled-4]",
    ),
    bug(
        "a process sums a teacher's gradients at old weights",
        TEACHER,
        "    sharing = Sharing(None, [weights])\n",
        "    sharing = Sharing(None)\n",
        f"{_GRADIENTS}[linear-labelled-2]",
    ),
    bug(
        "central images with the coins of all records in every process",
        "methods/diffusion/central_images.py",
        "_rate(run), coins, run.team)",
        "_rate(run), coins)",
        f"{_SUMS}::test_central_images_add_up[2]",
    ),
    bug(
        "broken rows of a shared sum are forgotten",
        SHARING,
        "            self._shared.end(total, self._mechanism.counts_private(total.device))\n",
        "            self._shared.end(total, torch.zeros(2))\n",
        f"{_SUMS}::test_broken_features_in_another_process_stop_the_run",
    ),
    bug(
        "parts of other work are added up with a step's",
        SHARING,
        "        if self._word != self._team.words:\n",
        "        if self._word > self._team.words:\n",
        f"{_SUMS}::test_work_that_another_came_between_is_begun_again",
    ),
    bug(
        "an earlier proof of the secret is believed again",
        "distributed.py",
        "        if not torch.equal(numbers[self.rank], own):\n",
        "        if not torch.equal(own, own):\n",
        f"{_PROCESSES}::test_a_leader_that_plays_an_earlier_proof_again_is_not_believed",
    ),
    bug(
        "processes of one machine on the network that the environment names",
        "distributed.py",
        "secret, size, gone) as team:\n",
        'secret, int(os.environ.get("LOCAL_WORLD_SIZE", size)), gone) as team:\n',
        f"{_PROCESSES}::test_processes_of_one_machine_stay_on_it_whatever_the_environment_says[LOCAL_WORLD_SIZE]",
    ),
)
