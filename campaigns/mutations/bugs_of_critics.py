"""Bugs around critics, routing, federations, runs and releases."""

from __future__ import annotations

from .planting import Bug, Patch, bug

BANK, PANEL, GS_WGAN = "engines/critics/bank.py", "engines/critics/panel.py", "methods/critics/gs_wgan.py"
FREQUENCIES, MECHANISMS = "engines/critics/frequencies.py", "privacy/mechanisms.py"
API, CLIENT, FLEET = "api.py", "federated/client.py", "federated/fleet.py"
_CONFORMANCE = "tests/methods/test_conformance.py"
_REPLAY, _FOLDER = "tests/methods/test_replay.py", "tests/runs/test_folder.py"
_INDEPENDENCE = "tests/benchmarks/test_independence.py::test_one_changed_record_moves_one_critic_and_one_gradient"
_TURNS = "tests/methods/critics/test_routed_turns.py"
_BANK_TESTS = "tests/engines/critics/test_bank.py"
_LOW = "tests/methods/critics/test_low_frequencies.py"
_SANITIZED = "    answers_dp = answering.answer(basis.project(rows_private), block=block).value_dp / answering.clip\n"
_TURN = (
    "    critics.train_scheduled(drawn.pool)\n"
    "    return drawn, critics.answer(drawn.pool, critics.draw_routing(settings.queries_per_step))\n"
)

BUGS: tuple[Bug, ...] = (
    bug(
        "a query that moves spectral-norm state",
        BANK,
        "        stacked.set_images(images)\n        return stacked, ",
        "        stacked.set_images(images)\n"
        "        self.vectors[index] = torch.cat(estimate(self.layout, flat, vectors, training=True).left, 1)\n"
        "        return stacked, ",
        f"{_BANK_TESTS}::test_queries_change_no_byte_and_training_after_them_is_the_same",
    ),
    bug(
        "answers in grouped instead of query order",
        PANEL,
        "        return self.bank.query(pool.images, pool.labels, routing).flatten(1)\n",
        "        order = routing.argsort(stable=True)\n"
        "        labels = None if pool.labels is None else pool.labels[order]\n"
        "        return self.bank.query(pool.images[order], labels, routing[order]).flatten(1)\n",
        f"{_TURNS}::test_answers_come_in_the_order_of_the_images",
    ),
    bug(
        "a gradient scaler shared by critics",
        BANK,
        "        self._adam(rows, gradients)\n",
        "        self._adam(rows, gradients / gradients.norm().clamp(min=1e-3))\n",
        f"{_BANK_TESTS}::test_one_image_changes_one_critic_and_no_bit_of_the_others",
    ),
    bug(
        "a mean over all critics of a block in their training",
        BANK,
        "        self._adam(rows, gradients)\n",
        "        self._adam(rows, gradients + 1e-6 * gradients.mean(dim=0))\n",
        _INDEPENDENCE,
    ),
    bug(
        "a mean over all generators of a block in the warm start",
        "engines/critics/warm_start.py",
        "            makers.step(raw, bank.input_gradients(block, raw.detach().clamp(0, 1), labels))\n",
        "            slopes = bank.input_gradients(block, raw.detach().clamp(0, 1), labels)\n"
        "            makers.step(raw, slopes - slopes.mean(dim=0))\n",
        _INDEPENDENCE,
    ),
    bug(
        "training on routed images",
        GS_WGAN,
        _TURN,
        "    routing = critics.draw_routing(settings.queries_per_step)\n"
        "    shown = routing.argsort()[: settings.queries_per_step // 2]\n"
        "    labels = None if drawn.pool.labels is None else drawn.pool.labels[shown]\n"
        "    critics.train_scheduled(type(drawn.pool)(drawn.pool.images[shown], labels))\n"
        "    return drawn, critics.answer(drawn.pool, routing)\n",
        f"{_TURNS}::test_no_critic_learns_anything_from_the_routing",
    ),
    bug(
        "critic updated when drawn",
        GS_WGAN,
        _TURN,
        "    routing = critics.draw_routing(settings.queries_per_step)\n"
        "    critics.train(sorted(set(routing.tolist())), drawn.pool)\n"
        "    return drawn, critics.answer(drawn.pool, routing)\n",
        f"{_TURNS}::test_no_critic_learns_anything_from_the_routing",
    ),
    bug(
        "shared draw accounted as independent",
        GS_WGAN,
        _TURN,
        "    critics.train_scheduled(drawn.pool)\n"
        "    return drawn, critics.answer(drawn.pool, critics.draw_routing(1).expand(settings.queries_per_step))\n",
        f"{_TURNS}::test_every_image_has_a_draw_of_its_own",
    ),
    bug(
        "one draw for all queries about an image",
        GS_WGAN,
        _TURN,
        "    critics.train_scheduled(drawn.pool)\n"
        "    routing = critics.draw_routing(settings.images_per_step).repeat_interleave(settings.queries_per_point)\n"
        "    return drawn, critics.answer(drawn.pool, routing)\n",
        f"{_LOW}::test_every_query_has_a_draw_of_its_own_and_an_image_has_several",
    ),
    bug(
        "an average of raw answers accounted as one answer",
        GS_WGAN,
        _SANITIZED,
        "    rows_private = rows_private.view(images, -1, rows_private.shape[1]).mean(dim=1)\n" + _SANITIZED,
        f"{_LOW}::test_every_query_of_an_image_is_clipped_for_itself_before_any_average",
    ),
    Bug(
        "frequencies taken after the clip by a map that is not orthonormal",
        (
            Patch(
                GS_WGAN,
                _SANITIZED,
                "    from understudy.privacy.mechanisms import clip_rows\n\n"
                "    answering._clip = lambda rows: basis.project(clip_rows(rows, answering.clip))\n"
                "    answers_dp = answering.answer(rows_private, block=block).value_dp / answering.clip\n",
            ),
            Patch(FREQUENCIES, "(math.pi / size)) * math.sqrt(2 / size)\n", "(math.pi / size))\n"),
        ),
        f"{_LOW}::test_any_two_answers_are_at_most_two_bounds_apart_whatever_the_gradients_hold",
    ),
    bug(
        "less noise in every value because there are fewer",
        MECHANISMS,
        "        event = self.account.spend(len(rows_private), block)\n"
        "        deviation = 2 * self.clip * event.noise_multiplier\n",
        "        event = self.account.spend(len(rows_private), block)\n"
        "        deviation = 2 * self.clip * event.noise_multiplier * min(1.0, rows_private.shape[1] ** 0.5 / 28)\n",
        f"{_LOW}::test_noise_has_its_full_deviation_in_every_kept_frequency_and_none_elsewhere",
    ),
    bug(
        "a basis that follows the private answers",
        FREQUENCIES,
        "        images = rows_private.double().view(-1, *self.shape)\n",
        "        images = rows_private.double().view(-1, *self.shape)\n"
        "        self._down = self._down[(self._down @ images).abs().sum(dim=(0, 1, 3)).argsort(descending=True)]\n",
        "tests/engines/critics/test_frequencies.py::test_a_basis_stays_the_same_whatever_went_through_it",
    ),
    bug(
        "routing over the scheduled instead of all critics",
        PANEL,
        "        drawn = uniform_integers(count, self.subsets, self._randomness.bits)\n",
        "        drawn = uniform_integers(count, min(self.subsets, self.settings.per_step), self._randomness.bits)\n",
        "tests/methods/critics/test_gs_wgan.py::TestRouting::test_each_query_is_routed_uniformly_over_all_critics",
    ),
    bug(
        "routing over some instead of all clients",
        "federated/routing.py",
        "uniform_integers(self.limits.queries, self.limits.clients, self._bits)",
        "uniform_integers(self.limits.queries, max(1, self.limits.clients - 1), self._bits)",
        "tests/federated/test_routing.py::test_queries_go_to_all_enrolled_clients_alike",
    ),
    bug(
        "records dealt out in equal parts",
        "data/partition.py",
        "        return cls(uniform_integers(units, subsets, bits)[unit_of_record], subsets, unit)\n",
        "        order = np.argsort(uniform_integers(units, 2**32, bits), kind='stable')\n"
        "        return cls((order % subsets)[unit_of_record], subsets, unit)\n",
        "tests/statistical/test_partition.py::test_records_follow_the_law",
    ),
    bug(
        "BatchNorm in a critic",
        "models/dpgan.py",
        "        self.head = nn.Conv2d(channels[-1], 1, sizes[-1])\n",
        "        self.layers.append(nn.BatchNorm2d(channels[-1]))\n"
        "        self.head = nn.Conv2d(channels[-1], 1, sizes[-1])\n",
        f"{_CONFORMANCE}::test_it_spends_what_it_planned_within_the_budget[labelled-dpgan]",
    ),
    bug(
        "a lost answer dropped",
        FLEET,
        "        self._check_alive(expected)\n        return torch.from_numpy(rows_dp)\n",
        "        for client in expected:\n"
        "            rows_dp[asked.routed.queries_of(client)] = 0\n"
        "        self._check_alive(expected)\n        return torch.from_numpy(rows_dp)\n",
        "tests/federated/test_fleet.py::test_an_answer_that_does_not_count_is_zero_plus_full_noise_and_the_rest_goes_on",
    ),
    bug(
        "same seed for two clients",
        CLIENT,
        "        self._mechanism = self._open_ledger(randomness or Randomness())\n",
        "        self._mechanism = self._open_ledger(randomness or Randomness(contract.limits.clients))\n",
        "tests/federated/test_own_noise.py::test_two_clients_never_share_their_noise",
    ),
    bug(
        "a repeated question answered with fresh noise",
        CLIENT,
        "        if self._answered_before(question.round):\n",
        "        if False:\n",
        "tests/federated/test_client.py",
    ),
    bug(
        "the nominal size checked against the true one",
        API,
        "    check_memory(method.memory_of_device(plan, options.team.size), device)\n",
        "    check_memory(method.memory_of_device(plan, options.team.size), device)\n"
        "    if len(data) > data.domain.nominal_records:\n"
        "        raise InputError('records: more than were declared; declare more')\n",
        f"{_CONFORMANCE}::test_the_declared_number_of_records_is_never_compared_with_the_true_one[20-dp-merf]",
    ),
    bug(
        "a sampling rate from the true number of records",
        "engines/dpsgd/step.py",
        "    rate = sampling_rate(options.batch, run.data.domain.nominal_units)\n",
        "    rate = sampling_rate(min(options.batch, len(run.data)), len(run.data))\n",
        f"{_CONFORMANCE}::test_the_declared_number_of_records_is_never_compared_with_the_true_one[20-dpgan]",
    ),
    bug(
        "ledger reset on resume",
        API,
        '        ledger = Ledger.open(folder.ledger)\n        ledger.note("resumed")\n',
        "        folder.ledger.unlink()\n"
        '        ledger = Ledger.create(folder.ledger)\n        ledger.note("resumed")\n',
        f"{_CONFORMANCE}::test_an_interrupted_run_resumes_to_the_end_at_the_planned_price_with_fresh_noise[dpgan]",
    ),
    bug(
        "T+1 steps",
        "runs/loop.py",
        "        while step < total:\n",
        "        while step < total + (self._start == 0):\n",
        f"{_CONFORMANCE}::test_progress_shows_values_that_were_declared_public_and_no_others[labelled-dp-merf]",
    ),
    bug(
        "real images in the progress of a run",
        "runs/run.py",
        '        line = {"step": step, **values}\n',
        '        line = {"step": step, **values}\n        line["example"] = self.data.images[:1].tolist()\n',
        f"{_CONFORMANCE}::test_progress_shows_values_that_were_declared_public_and_no_others[labelled-dp-merf]",
    ),
    bug(
        "the time of each step in the public progress",
        "runs/run.py",
        '        line = {"step": step, **values}\n',
        '        line = {"step": step, "seconds": round(progress.seconds, 3), **values}\n',
        f"{_REPLAY}::test_the_public_files_of_a_run_do_not_tell_records_from_four_times_as_many[dp-merf]",
    ),
    bug(
        "the time of day in a certificate",
        "release/release.py",
        '        "created": datetime.now(UTC).date().isoformat(),',
        '        "created": datetime.now(UTC).isoformat(timespec="seconds"),',
        f"{_REPLAY}::test_the_public_files_of_a_run_do_not_tell_records_from_four_times_as_many[dp-merf]",
    ),
    bug(
        "a fingerprint of the data that everybody can read",
        "runs/description.py",
        "    write_text(folder.fingerprint, data.fingerprint(), private=True)",
        "    write_text(folder.fingerprint, data.fingerprint())",
        f"{_FOLDER}::test_nobody_could_read_a_private_file_at_any_moment",
    ),
    bug(
        "diagnostics that everybody can read",
        "runs/run.py",
        '        with open_private(self.files.diagnostics, "a") as file:\n',
        '        with self.files.diagnostics.open("a") as file:\n',
        f"{_CONFORMANCE}::test_the_private_folder_is_for_its_owner_alone[dpgan]",
    ),
    bug(
        "private files that are closed after they were open",
        "files.py",
        "        descriptor = os.open(name, flags, _OWNER_ONLY_FILE)\n",
        "        descriptor = os.open(name, flags, 0o666)\n",
        f"{_FOLDER}::test_nobody_could_read_a_private_file_at_any_moment",
    ),
    bug(
        "an old private folder that stays open",
        "files.py",
        "    make_folder(path, what)\n    close_to_others(path, what)\n",
        "    make_folder(path, what)\n",
        f"{_FOLDER}::test_resuming_closes_what_an_earlier_version_left_open",
    ),
    bug(
        "real images in the pictures of a release",
        API,
        "    return certify(method, run.files, description, run.ledger, generator, run.reason)\n",
        "    done = certify(method, run.files, description, run.ledger, generator, run.reason)\n"
        "    from PIL import Image\n\n"
        '    Image.fromarray(run.data.images[0, 0]).save(run.files.release / "samples.png")\n'
        "    return done\n",
        f"{_CONFORMANCE}::test_the_sample_grid_of_a_release_is_made_of_generated_images[dp-merf]",
    ),
    bug(
        "label histogram taken from the data",
        "engines/embedding/means.py",
        "    return NoisyMeans.from_total(total_dp, embedding.size_share, run.plan.domain.nominal_units)\n",
        "    means = NoisyMeans.from_total(total_dp, embedding.size_share, run.plan.domain.nominal_units)\n"
        "    if run.data.labels is None:\n"
        "        return means\n"
        "    counts = torch.bincount(torch.from_numpy(run.data.labels), minlength=len(total_dp)).float()\n"
        "    return NoisyMeans(means.means_dp, counts / counts.sum().clamp(min=1))\n",
        "tests/methods/test_replay.py::test_neighbours_with_the_same_sanitized_values_run_alike[dp-merf]",
    ),
    bug(
        "features of a record that are rounded by who comes along",
        "engines/embedding/means.py",
        "mechanism.accumulate(total, _features(embedding, images_private, micro_batch), labels_private)",
        "mechanism.accumulate(total, embedding(images_private), labels_private)",
        "tests/engines/test_embedding.py::test_without_a_record_no_bit_of_what_others_add_changes",
    ),
    bug(
        "critics in the release",
        "release/release.py",
        "    release.save(folder.release, allow_seeded=True, without_guarantee=True)\n",
        "    release.save(folder.release, allow_seeded=True, without_guarantee=True)\n"
        "    import shutil\n\n"
        '    for kept in folder.private.glob("checkpoint-*"):\n'
        "        shutil.copy(kept, folder.release / kept.name)\n",
        f"{_CONFORMANCE}::test_its_release_verifies_and_holds_the_allowed_files_only[labelled-gs-wgan]",
    ),
    bug(
        "a learning rate that follows private gradients",
        "engines/dpsgd/step.py",
        "        self.optimizer.step(update_dp / (self._options.batch + self._public))\n",
        "        update_dp = update_dp / (1e-3 + float(self._total.norm()))\n"
        "        self.optimizer.step(update_dp / (self._options.batch + self._public))\n",
        "tests/methods/test_replay.py::test_neighbours_with_the_same_sanitized_values_run_alike[dpgan]",
    ),
    bug(
        "an early stop that follows the true number of records",
        GS_WGAN,
        "            drawn, rows_private = turn(learner, critics, config.method)\n",
        "            drawn, rows_private = turn(learner, critics, config.method)\n"
        "            if len(run.data) % 2:\n"
        "                progress.save(step)\n"
        "                break\n",
        "tests/methods/test_replay.py::test_neighbours_with_the_same_sanitized_values_run_alike[gs-wgan]",
    ),
)
