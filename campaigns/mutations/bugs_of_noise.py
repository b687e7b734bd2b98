"""Bugs in clipping, noise, sampling and spending: what every method rests on."""

from __future__ import annotations

from .planting import Bug, Patch, bug

MECHANISMS, VOTES = "privacy/mechanisms.py", "privacy/mechanisms.py"
STEP, BATCHES = "engines/dpsgd/step.py", "engines/dpsgd/batches.py"
_AUDITED = "tests/audit/test_mechanism_audits.py::test_a_true_claim_is_confirmed_by_many_trials"

BUGS: tuple[Bug, ...] = (
    bug(
        "no clip",
        MECHANISMS,
        "    return torch.where(too_long, shortened, rows)\n",
        "    return rows\n",
        "tests/privacy/test_mechanisms.py::test_no_row_is_longer_than_the_bound_whatever_it_held",
    ),
    bug(
        "no clip of gradients in DP-SGD",
        MECHANISMS,
        "        factors = torch.where(norms > bound, bound / norms.clamp(min=bound), 1.0)\n",
        "        factors = torch.ones_like(norms)\n",
        f"{_AUDITED}[dpgan, default]",
        by_audit=True,
    ),
    bug(
        "clip of the batch mean",
        MECHANISMS,
        "        clipped = self._clip(rows_private).to(total.dtype)\n",
        "        clipped = rows_private - rows_private.mean(0) + self._clip(rows_private.mean(0, keepdim=True))\n"
        "        clipped = clipped.to(total.dtype)\n",
        "tests/privacy/test_mechanisms.py::test_one_more_unit_moves_an_exact_sum_by_at_most_the_clip_bound",
    ),
    bug(
        "clip of the batch mean in DP-SGD",
        STEP,
        "            factors = self._mechanism.clip_factors(norms_private, examples.present)\n",
        "            mean = norms_private.mean().expand_as(norms_private)\n"
        "            factors = self._mechanism.clip_factors(mean, examples.present)\n",
        "tests/engines/dpsgd/test_step.py::test_the_sum_is_that_of_one_example_at_a_time",
    ),
    bug(
        "norms in bf16",
        MECHANISMS,
        "    length = torch.linalg.vector_norm(unit_rows, dim=1, keepdim=True, dtype=torch.float64)",
        "    length = torch.linalg.vector_norm(unit_rows.bfloat16(), dim=1, keepdim=True).double()",
        "tests/privacy/test_mechanisms.py::test_no_row_is_longer_than_the_bound_whatever_it_held",
    ),
    bug(
        "a row that is not finite is left in",
        MECHANISMS,
        "    rows = torch.where(finite, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))\n",
        "",
        "tests/privacy/test_mechanisms.py",
    ),
    bug(
        "noise of deviation C instead of 2C",
        MECHANISMS,
        "        event = self.account.spend(len(rows_private), block)\n"
        "        deviation = 2 * self.clip * event.noise_multiplier\n",
        "        event = self.account.spend(len(rows_private), block)\n"
        "        deviation = self.clip * event.noise_multiplier\n",
        f"{_AUDITED}[gs-wgan, without an embedding]",
        by_audit=True,
    ),
    bug(
        "noise of deviation C instead of 2C on blocks",
        MECHANISMS,
        "        event = self.account.spend(1, block)\n        deviation = 2 * self.clip * event.noise_multiplier\n",
        "        event = self.account.spend(1, block)\n        deviation = self.clip * event.noise_multiplier\n",
        "tests/privacy/test_blocks.py::test_noise_has_twice_the_bound_times_the_multiplier_as_deviation",
    ),
    bug(
        "noise halved",
        MECHANISMS,
        ".draw(exact.shape), alpha=deviation)",
        ".draw(exact.shape), alpha=deviation / 2)",
        f"{_AUDITED}[dp-merf, default]",
        by_audit=True,
    ),
    bug(
        "noise 10 % too small",
        MECHANISMS,
        ".draw(exact.shape), alpha=deviation)",
        ".draw(exact.shape), alpha=deviation * 0.9)",
        "tests/statistical/test_noise.py::test_a_sum_gets_noise_of_deviation_clip_times_multiplier",
    ),
    bug(
        "one noise vector for all rows",
        MECHANISMS,
        ".draw(exact.shape), alpha=deviation)",
        ".draw(exact.shape[-1:]), alpha=deviation)",
        f"{_AUDITED}[datalens, default]",
        by_audit=True,
    ),
    bug(
        "noise once per epoch",
        STEP,
        "        if self._mechanism is not None:\n            update_dp = ",
        "        if self._mechanism is not None and not self._waiting:\n            update_dp = ",
        "tests/engines/dpsgd/test_step.py::test_every_step_is_on_record_before_its_noise_exists",
    ),
    bug(
        "noise added before the clip",
        MECHANISMS,
        "        deviation = 2 * self.clip * event.noise_multiplier\n"
        "        return Sanitized(self._noisy(self._clip(rows_private), deviation).float(), event)\n",
        "        deviation = 2 * self.clip * event.noise_multiplier\n"
        "        return Sanitized(self._clip(self._noisy(rows_private, deviation)).float(), event)\n",
        "tests/statistical/test_noise.py::test_an_answer_gets_noise_of_deviation_twice_clip_times_multiplier",
    ),
    bug(
        "noise in single precision",
        MECHANISMS,
        ".draw(exact.shape), alpha=deviation)",
        ".draw(exact.shape).float(), alpha=deviation).float()",
        "tests/privacy/test_mechanisms.py::test_noise_is_drawn_and_added_in_double_precision",
    ),
    bug(
        "noise reused after a resume",
        MECHANISMS,
        "            self._streams[exact.device] = self._randomness.noise(exact.device)\n",
        "            self._streams[exact.device] = type(self._randomness)(1).noise(exact.device)\n",
        "tests/methods/test_conformance.py::"
        "test_an_interrupted_run_resumes_to_the_end_at_the_planned_price_with_fresh_noise[dpgan]",
    ),
    bug(
        "votes with half their sensitivity",
        VOTES,
        "        self.top, self.reach = top, 2 * math.sqrt(top)\n",
        "        self.top, self.reach = top, math.sqrt(top)\n",
        f"{_AUDITED}[datalens, default]",
        by_audit=True,
    ),
    bug(
        "checks for consensus with too little noise",
        VOTES,
        "        self.reach = math.sqrt(coordinates)\n\n    def peaks",
        "        self.reach = 1.0\n\n    def peaks",
        "tests/privacy/test_vote_mechanisms.py::test_the_noise_has_the_promised_scale_and_law",
    ),
    bug(
        "shuffled epochs accounted as Poisson",
        BATCHES,
        "        taken = self._coins.flip((steps, own), self._rate)\n",
        "        order = torch.randperm(own)\n"
        "        batch = max(1, round(self._rate * own))\n"
        "        taken = torch.zeros((steps, own), dtype=torch.bool, device=order.device)\n"
        "        for step in range(steps if own else 0):\n"
        "            taken[step, order[torch.arange(step * batch, (step + 1) * batch) % own]] = True\n",
        "tests/engines/dpsgd/test_batches.py::test_sizes_follow_the_binomial_law",
    ),
    bug(
        "a sampling rate above the accounted one",
        BATCHES,
        "        taken = self._coins.flip((steps, own), self._rate)\n",
        "        taken = self._coins.flip((steps, own), min(1.0, 1.5 * self._rate))\n",
        f"{_AUDITED}[dp-cgan, default]",
        by_audit=True,
    ),
    Bug(
        "division by the drawn size",
        (
            Patch(
                STEP,
                "        self._total.zero_()\n        indices_private, size_private, _ = ",
                "        self._total.zero_()\n        self._drawn = self._waiting[-1][1]\n"
                "        indices_private, size_private, _ = ",
            ),
            Patch(STEP, "update_dp / (self._options.batch + self._public)", "update_dp / (self._drawn + self._public)"),
        ),
        "tests/engines/dpsgd/test_step.py::"
        "test_the_update_is_the_sum_and_noise_over_the_expected_batch_and_the_companions",
    ),
    bug(
        "fake labels from the real batch",
        STEP,
        "            examples = examples.followed_by(self._companions.render(*drawn).grouped(self._together))\n",
        "            own = examples.labels\n"
        "            if own is not None and len(own):\n"
        "                drawn = (drawn[0], own[torch.arange(len(drawn[1])) % len(own)])\n"
        "            examples = examples.followed_by(self._companions.render(*drawn).grouped(self._together))\n",
        "tests/methods/adversarial/test_discriminator.py::"
        "test_the_sum_is_that_of_all_reals_and_of_exactly_as_many_fakes_as_expected_reals",
    ),
    bug(
        "spending recorded after the value exists",
        MECHANISMS,
        "        event = self.account.spend(1, block)\n"
        "        return Sanitized(self._noisy(total, self.clip * event.noise_multiplier), event)\n",
        "        value_dp = self._noisy(total, self.clip * self.account.template.noise_multiplier)\n"
        "        return Sanitized(value_dp, self.account.spend(1, block))\n",
        "tests/engines/dpsgd/test_step.py::test_every_step_is_on_record_before_its_noise_exists",
    ),
    bug(
        "one execution past the plan",
        "privacy/ledger.py",
        "        if count > self.remaining:\n",
        "        if count > self.remaining + 1:\n",
        "tests/privacy/test_ledger.py::test_spending_past_the_plan_is_refused_and_not_recorded",
    ),
    bug(
        "a run that stops early is charged for what it did",
        "privacy/ledger.py",
        "        return self.template.charged(planned=self.planned, executed=self.reserved)\n",
        "        return self.template.charged(planned=min(self.planned, self.reserved or 1), executed=self.reserved)\n",
        "tests/privacy/test_ledger.py::test_a_run_is_charged_for_its_plan_even_if_it_stops_early",
    ),
)
