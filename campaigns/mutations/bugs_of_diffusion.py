"""Bugs in units of several rows and in diffusion models."""

from __future__ import annotations

from .planting import Bug, Patch, bug

STEP, LAYERS = "engines/dpsgd/step.py", "engines/dpsgd/layers.py"
DENOISING, CENTRAL = "methods/diffusion/denoising.py", "methods/diffusion/central_images.py"
LEARNER = "methods/diffusion/learner.py"
METHOD = "methods/diffusion/dp_diffusion.py"
_UNITS = "tests/engines/dpsgd/test_units.py"
_LOSS = "tests/methods/diffusion/test_denoising.py"
_CENTRAL = "tests/methods/diffusion/test_central_images.py"

_ENGINE = "PerExampleGradients(network, self._flat, step_precision(run), options.rows * self._together)"
_WEIGH = (
    "            factors = self._mechanism.clip_factors(norms_private, examples.present)\n"
    "            self._note(norms_private, factors, examples.present)\n"
)


def _parts(rows: str, times: str) -> tuple[Patch, ...]:
    """The engine is told of units of ``rows`` rows, so there are ``times`` as many."""
    counted = (
        f"            present = examples.present.repeat_interleave({times})\n"
        "            factors = self._mechanism.clip_factors(norms_private, present)\n"
        "            self._note(norms_private, factors, present)\n"
    )
    return (Patch(STEP, _ENGINE, _ENGINE.replace("options.rows", rows)), Patch(STEP, _WEIGH, counted))


BUGS: tuple[Bug, ...] = (
    Bug(
        "clip of each noise draw instead of the unit",
        _parts("1", "self._options.rows"),
        f"{_UNITS}::test_equal_rows_of_a_unit_are_clipped_to_the_bound_together",
    ),
    Bug(
        "the rows of a unit split over two micro-batches",
        _parts("max(1, options.rows // 2)", "2 if self._options.rows > 1 else 1"),
        f"{_UNITS}::test_a_step_sums_units_that_were_clipped_once_however_it_is_cut",
    ),
    bug(
        "noise on every micro-batch",
        STEP,
        "            if len(some.images):\n                self._add_chunk(some)\n",
        "            if len(some.images):\n                self._add_chunk(some)\n"
        "                deviation = self._options.clip * self._mechanism.account.template.noise_multiplier\n"
        "                self._total.add_(deviation * torch.randn_like(self._total))\n",
        f"{_UNITS}::test_noise_is_added_once_however_many_micro_batches_there_are",
    ),
    bug(
        "chance in what units add from a seed of 32 bits",
        STEP,
        "run.randomness.secret_generator(run.device)",
        "run.randomness.generator(run.device)",
        f"{_UNITS}::test_the_chance_in_what_units_add_is_secret",
    ),
    bug(
        "the loss divided by the drawn rows",
        DENOISING,
        ".mean(dim=(1, 2, 3)) / draws\n",
        ".mean(dim=(1, 2, 3)) / len(target)\n",
        f"{_LOSS}::test_the_loss_is_that_of_edm",
    ),
    bug(
        "noise levels stratified over the batch instead of the unit",
        DENOISING,
        "        parts = (torch.arange(draws // twice, device=random.device) + shares) / (draws // twice)\n",
        "        order = torch.randperm(shares.numel(), generator=random, device=random.device).view_as(shares)\n"
        "        parts = (order + shares) / shares.numel()\n",
        f"{_LOSS}::test_the_units_of_a_batch_are_independent",
    ),
    bug(
        "one noise level for the k-th draw of every unit",
        DENOISING,
        "torch.rand((units, draws // twice), generator=random, device=random.device)\n",
        "torch.rand((1, draws // twice), generator=random, device=random.device).expand(units, -1)\n",
        f"{_LOSS}::test_a_batch_is_as_uneven_as_chance_makes_it",
    ),
    bug(
        "images centred by their batch",
        DENOISING,
        "        images = self._turned((2 * pixels.float() - 1).repeat_interleave(draws, dim=0), random)\n",
        "        pixels = pixels - pixels.mean(dim=0) + 0.5\n"
        "        images = self._turned((2 * pixels.float() - 1).repeat_interleave(draws, dim=0), random)\n",
        f"{_LOSS}::test_a_row_follows_its_own_example_alone",
    ),
    bug(
        "one coin for all units says whether images are mirrored",
        DENOISING,
        "coins = torch.rand(len(images), generator=random, device=random.device) < 0.5\n",
        "coins = (torch.rand(1, generator=random, device=random.device) < 0.5).expand(len(images))\n",
        f"{_LOSS}::test_a_row_is_mirrored_by_a_fresh_coin_of_its_own",
    ),
    bug(
        "half of a batch is mirrored, no more and no less",
        DENOISING,
        "coins = torch.rand(len(images), generator=random, device=random.device) < 0.5\n",
        "count = len(images)\n"
        "        coins = torch.randperm(count, generator=random, device=random.device) < count // 2\n",
        f"{_LOSS}::test_a_row_is_mirrored_by_a_fresh_coin_of_its_own",
    ),
    bug(
        "the place in a batch decides whether an image is mirrored",
        DENOISING,
        "coins = torch.rand(len(images), generator=random, device=random.device) < 0.5\n",
        "coins = torch.rand(4096, generator=torch.Generator().manual_seed(1))[: len(images)] < 0.5\n",
        f"{_LOSS}::test_a_row_is_mirrored_by_a_fresh_coin_of_its_own",
    ),
    bug(
        "images are mirrored if they are brighter than their batch",
        DENOISING,
        "coins = torch.rand(len(images), generator=random, device=random.device) < 0.5\n",
        "coins = images.mean(dim=(1, 2, 3)) > images.mean()\n",
        f"{_LOSS}::test_a_row_follows_its_own_example_alone",
    ),
    bug(
        "a unit that is not finite takes the next one out",
        LAYERS,
        "    return _summed(sums, tapped.rows)\n",
        "    return _summed(sums, tapped.rows).cumsum(dim=0)\n",
        f"{_UNITS}::test_a_broken_row_takes_out_its_own_unit_alone",
    ),
    bug(
        "a unit that is not finite leaks into the sum",
        LAYERS,
        "torch.nan_to_num(self.values, 0.0, 0.0, 0.0).mT",
        "self.values.mT",
        f"{_UNITS}::test_a_broken_loss_takes_out_its_own_unit_alone",
    ),
    bug(
        "rows of other units summed together",
        LAYERS,
        "values.contiguous() if rows == 1 else values.unflatten(0, (-1, rows)).sum(dim=1)\n",
        "values.contiguous() if rows == 1 else values.unflatten(0, (rows, -1)).sum(dim=0)\n",
        f"{_UNITS}::test_a_network_of_all_kinds_of_layers",
    ),
    Bug(
        "central images over the drawn count",
        (
            Patch(
                CENTRAL,
                "            taken = indices_private[:size_private]\n",
                "            taken = indices_private[:size_private]\n            drawn.append(size_private)\n",
            ),
            Patch(CENTRAL, "    def compute_totals() -> Tensor:\n", "    drawn = []\n\n    def compute_totals():\n"),
            Patch(
                CENTRAL,
                "totals_dp.float() / (rate * domain.nominal_records / classes)",
                "totals_dp.float() / max(1, sum(drawn) / len(drawn) / classes)",
            ),
        ),
        f"{_CENTRAL}::test_the_denominator_is_public",
    ),
    bug(
        "central images over the true number of records",
        CENTRAL,
        "rate * domain.nominal_records / classes",
        "rate * max(1, len(run.data)) / classes",
        f"{_CENTRAL}::test_the_denominator_is_public",
    ),
    bug(
        "one draw of records for all queries of central images",
        CENTRAL,
        "zip(totals, batches.indices, batches.sizes, strict=True)",
        "((total, batches.indices[0], batches.sizes[0]) for total in totals)",
        f"{_CENTRAL}::test_each_query_draws_its_own_records_at_the_rate_that_is_accounted",
    ),
    bug(
        "central images count one query for all",
        METHOD,
        "sampling=sampling, count=settings.queries, purpose=CENTRAL_IMAGES",
        "sampling=sampling, count=1, purpose=CENTRAL_IMAGES",
        "tests/methods/diffusion/test_dp_diffusion.py::"
        "test_queries_and_rate_of_central_images_are_those_of_their_event",
    ),
    bug(
        "the warm-up looks at records",
        LEARNER,
        "        pools = [] if released is None else [(released, batch - among)]\n",
        "        pools = [] if released is None else [(released, batch - among)]\n"
        "        records = torch.from_numpy(self._run.data.images), torch.from_numpy(self._run.data.labels)\n"
        "        pools.append((records, 1))\n",
        f"{_LOSS}::test_the_warm_up_learns_from_the_images_it_is_given_and_reads_no_record",
    ),
    bug(
        "a guide that nobody planned rides along in a verified release",
        "release/checks.py",
        "    _check_generator(config.generator, _planned_generator(method, plan), plan.events)\n",
        "",
        "tests/methods/diffusion/test_dp_diffusion.py::"
        "test_a_release_whose_networks_are_not_the_planned_ones_is_not_verified",
    ),
    bug(
        "leaves that are records",
        LEARNER,
        "leaves = dead_leaves(config.images, drawn.shape, self._random)",
        "leaves = torch.from_numpy(self._run.data.images)",
        f"{_LOSS}::test_of_every_batch_of_the_warm_up_the_part_that_is_asked_for_is_leaves_without_a_class",
    ),
)
