"""Bugs in accounts: what lets runs on the same data reveal more together than their owner allowed."""

from __future__ import annotations

from .planting import Bug, Patch, bug

FILTERS, ACCOUNTS, API = "privacy/filters.py", "runs/accounts.py", "api.py"
BOOKINGS, DESCRIPTION, RECOGNITION = "runs/bookings.py", "runs/description.py", "runs/recognition.py"
_FILTERS, _ACCOUNTS = "tests/privacy/test_filters.py", "tests/runs/test_accounts.py"
_STATEMENTS = "tests/release/test_account_statements.py"
_REFUSED = f"{_ACCOUNTS}::test_runs_reserve_their_plans_and_the_one_that_does_not_fit_is_refused_and_leaves_nothing"

BUGS: tuple[Bug, ...] = (
    bug(
        "several runs of an account are composed as if they had been fixed beforehand",
        FILTERS,
        "    if len(charges) == 1 and charges[0].alone is not None:\n        figure = min(figure, charges[0].alone)\n",
        "    if charges[0].alone is not None:\n        figure = min(figure, charges[0].alone)\n",
        f"{_FILTERS}::test_a_single_run_may_take_all_of_an_account_by_the_numerical_accountants",
    ),
    bug(
        "an annotator counts as the first run on its data",
        BOOKINGS,
        "(claim, delta), first=base is None)\n",
        "(claim, delta), first=True)\n",
        f"{_ACCOUNTS}::test_an_annotator_pays_for_the_generator_too_unless_the_account_has_paid_for_it",
    ),
    bug(
        "a generator from elsewhere is annotated for the price of the annotator",
        BOOKINGS,
        "    if base is None or _holds(account, base):\n",
        "    if base is None or not events or account.name:\n",
        f"{_ACCOUNTS}::test_an_annotator_pays_for_the_generator_too_unless_the_account_has_paid_for_it",
    ),
    bug(
        "a divergence becomes an epsilon at another order",
        "privacy/accounting/renyi.py",
        "- math.log(delta * order) / (order - 1))",
        "- math.log(delta * order) / order)",
        f"{_FILTERS}::test_gaussians_without_sampling_add_up_as_by_hand",
    ),
    bug(
        "one step of a plan is charged for all",
        "privacy/accounting/renyi.py",
        "        total += float(_divergence(event)[place])\n",
        "        total += float(_divergence(event)[place]) / event.count\n",
        f"{_FILTERS}::test_sampled_batches_add_up_as_by_hand",
    ),
    bug(
        "deltas of claims are not added up",
        FILTERS,
        "        return round(together, 9), math.fsum(each.delta for each in charges)\n",
        "        return round(together, 9), max(each.delta for each in charges)\n",
        f"{_FILTERS}::test_deltas_add_up_where_claims_are_added",
    ),
    bug(
        "people are charged to an account of records",
        FILTERS,
        "    if other is not None:\n",
        "    if other is not None and not events:\n",
        f"{_FILTERS}::test_another_unit_or_other_neighbours_are_refused_with_the_way_out",
    ),
    bug(
        "batches that are sampled are charged to an account of replaced units",
        FILTERS,
        '    if terms.adjacency == "replace-one" and not replaced:\n',
        '    if terms.adjacency == "replace-one" and not events:\n',
        f"{_FILTERS}::test_another_unit_or_other_neighbours_are_refused_with_the_way_out",
    ),
    bug(
        "a run begins without its reservation",
        API,
        "        with reserved(booking, folder, description, ledger, new=True):\n",
        "        with reserved(None, folder, description, ledger, new=True):\n",
        _REFUSED,
    ),
    bug(
        "a run that is resumed does not ask its account",
        API,
        "        with reserved(book_again(description.account, method, plan, base), folder, description, ledger):\n",
        "        with reserved(None, folder, description, ledger):\n",
        f"{_ACCOUNTS}::test_a_run_that_ended_before_its_reservation_makes_it_when_it_is_resumed",
    ),
    bug(
        "room is looked for before the lock and not under it",
        BOOKINGS,
        "            account.check(self.charge)\n            place",
        "            place",
        f"{_ACCOUNTS}::test_two_runs_for_the_last_room_one_of_them_is_refused_and_its_folder_can_be_used_again",
    ),
    bug(
        "two processes hold the accounts at the same time",
        ACCOUNTS,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        f"{_ACCOUNTS}::test_processes_that_reserve_at_the_same_time_never_take_more_than_there_is",
    ),
    bug(
        "a reservation of which something was spent is given back",
        BOOKINGS,
        "        if not self.returnable or _has_spent(ledger):\n",
        "        if not self.returnable:\n",
        f"{_ACCOUNTS}::test_a_run_that_broke_down_after_it_spent_stays_charged",
    ),
    Bug(
        "a copy that is refused gives back what the other copy uses",
        (
            Patch(
                DESCRIPTION, "        if new:\n            with suppress", "        if True:\n            with suppress"
            ),
            Patch(BOOKINGS, "        if not self.returnable or _has_spent(ledger):\n", "        if False:\n"),
        ),
        f"{_ACCOUNTS}::test_a_copy_that_is_refused_does_not_give_back_what_the_other_copy_uses",
    ),
    bug(
        "an account that lost the reservation of a run that has spent goes on",
        BOOKINGS,
        "            if _has_spent(ledger) and not late:\n                raise lost_reservation(account.name)\n",
        "",
        f"{_ACCOUNTS}::test_an_account_that_was_restored_from_an_older_copy_is_noticed_by_a_run_that_has_spent",
    ),
    bug(
        "an account that was cut by hand passes",
        ACCOUNTS,
        "    if checksum != _checksum(account) or account.name != name:\n",
        "    if account.name != name:\n",
        f"{_ACCOUNTS}::test_a_damaged_account_is_never_a_smaller_one",
    ),
    bug(
        "an account is opened anew with other terms",
        ACCOUNTS,
        "        if _path(name).exists() or _path(name).is_symlink():\n",
        "        if not name:\n",
        f"{_ACCOUNTS}::test_an_account_is_opened_once_and_its_terms_never_change",
    ),
    bug(
        "an account is readable by everybody",
        ACCOUNTS,
        "    write_text(_path(account.name), text, private=True)\n",
        "    write_text(_path(account.name), text)\n",
        f"{_ACCOUNTS}::test_an_account_is_for_its_owner_alone_whatever_the_umask",
    ),
    bug(
        "an account pays for a figure that was computed without noise",
        BOOKINGS,
        "    if method.publishes_data_dependent_claims(plan.config):\n",
        "    if not plan.private and method.publishes_data_dependent_claims(plan.config):\n",
        f"{_ACCOUNTS}::test_a_figure_without_noise_is_paid_for_by_no_account",
    ),
    bug(
        "a federation is charged without what its limits cost",
        BOOKINGS,
        '    if limited and account.terms.filter != "sum":\n',
        "    if limited and not account.name:\n",
        f"{_ACCOUNTS}::test_a_federation_is_charged_by_its_claim_where_claims_are_added",
    ),
    bug(
        "the total of an account is believed whatever the events of the release cost",
        FILTERS,
        "    if not spent <= statement.total_epsilon * _TOLERANCE:\n",
        "    if not spent <= statement.terms.epsilon:\n",
        f"{_STATEMENTS}::test_a_statement_that_cannot_be_true_is_refused",
    ),
    bug(
        "several runs are stated at the price of this one alone",
        FILTERS,
        "        if statement.runs == 1:\n",
        "        if statement.runs >= 1:\n",
        f"{_STATEMENTS}::test_several_runs_are_held_against_the_filter",
    ),
    bug(
        "data are known again only in the same order",
        RECOGNITION,
        "heapq.nsmallest(_KEPT, set(_marks(data, key)))",
        "heapq.nsmallest(0, set(_marks(data, key)))",
        f"{_ACCOUNTS}::test_the_owner_is_warned_where_data_of_an_account_go_past_it_and_nothing_of_that_is_written",
    ),
    bug(
        "what a gaussian filter has come to is stated as a guarantee",
        FILTERS,
        '    return terms.epsilon if terms.filter == "gaussian" else epsilon, terms.delta\n',
        "    return epsilon, terms.delta\n",
        f"{_FILTERS}::test_what_a_gaussian_filter_has_come_to_is_no_guarantee_and_not_stated",
    ),
    bug(
        "a total that is stated at a smaller delta than it holds for",
        FILTERS,
        "(not alone and statement.total_delta != terms.delta):\n",
        "(not alone and statement.total_delta > terms.delta):\n",
        f"{_STATEMENTS}::test_a_statement_that_cannot_be_true_is_refused",
    ),
    bug(
        "a run that is resumed on an account that does not count it",
        BOOKINGS,
        "    if asked is not None and (begun is None or begun.name != asked):\n",
        "    if asked is not None and begun is not None and begun.name != asked:\n",
        f"{_ACCOUNTS}::test_a_run_goes_on_with_the_account_it_was_begun_with_and_with_no_other",
    ),
    bug(
        "an account whose delta allows to publish a record",
        BOOKINGS,
        "    if terms.delta * (units or 1) > 1:\n",
        "    if terms.delta > 1:\n",
        f"{_ACCOUNTS}::test_a_delta_above_one_over_the_units_promises_nothing",
    ),
)
