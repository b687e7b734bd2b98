"""Games with queries: routed and revealed answers of critics, messages of clients, and the votes of teachers."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from understudy.audit.bounds import Numbers
from understudy.audit.games import CLIP, CPU, TOO_LONG, Bench, Included, bench, log_ratios
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig
from understudy.engines.critics.panel import Critics, Home
from understudy.federated.client_mechanisms import GaussianMessages
from understudy.federated.routing import RoutingDesk
from understudy.privacy.certificate import ClientLimits
from understudy.privacy.events import Event, RevealedRouting, RoutedSampling
from understudy.privacy.mechanisms import BinVotes, GaussianAnswers, PeakVotes, RealVotes, SignVotes

_DIRECTION = torch.full((4,), 0.5)
_TEACHERS = 3  # the one that the unit belongs to, and two others
_LEAST, _MOST = 0, 2  # bins


def _answers(asked_with_unit: Tensor) -> Tensor:
    """Unsanitized answers: as far to one side where the unit has a say, as far to the other where it has none."""
    sign = torch.where(asked_with_unit, 1.0, -1.0)
    return TOO_LONG * CLIP * sign.unsqueeze(1) * _DIRECTION


def _outputs(rows_dp: Tensor, event: Event) -> Numbers:
    """Answers along the direction, in deviations: zero on average where the unit has no say."""
    along = (rows_dp.double() @ _DIRECTION.double()).numpy()
    return (along + CLIP) / (2 * CLIP * event.noise_multiplier)


class RoutedAnswers:
    """``GaussianAnswers`` to queries that a secret router sends to one of K critics; the unit belongs to the first.

    The router is that of a panel of critics, or the desk of a federation.
    """

    def __init__(self, router: Literal["panel", "desk"]) -> None:
        self._router = router

    def play(self, event: Event, included: Included) -> Numbers:
        """All queries of the plan. Privacy: made-up units."""
        assert isinstance(event.sampling, RoutedSampling)
        queries, subsets = event.count * len(included), event.sampling.subsets
        with bench() as place:
            draw = _draw_from_panel if self._router == "panel" else _draw_from_desk
            routing = draw(place, queries, subsets)
            mine = torch.from_numpy(np.repeat(included, event.count)) & (routing == 0)
            planned = place.planned(event, queries)
            mechanism = GaussianAnswers(place.ledger, place.randomness, clip=CLIP, event=planned)
            outputs = _outputs(mechanism.answer(_answers(mine)).value_dp, event)
        ratios = log_ratios(outputs, 1 / event.noise_multiplier, 1 / subsets)
        return ratios.reshape(len(included), event.count).sum(axis=1)


class RevealedAnswers:
    """``GaussianAnswers`` where one critic answers all rows of a draw, and everybody learns which."""

    def play(self, event: Event, included: Included) -> Numbers:
        """All draws of the plan. Privacy: made-up units."""
        assert isinstance(event.sampling, RevealedRouting)
        rows, ratios = event.sampling.rows, np.zeros(len(included))
        with bench() as place:
            planned = place.planned(event, event.count * len(included))
            mechanism = GaussianAnswers(place.ledger, place.randomness, clip=CLIP, event=planned)
            for _ in range(event.count // rows):
                drawn = _draw_from_panel(place, len(included), event.sampling.subsets) == 0
                mine = drawn & torch.from_numpy(included)
                for trial in drawn.nonzero().flatten().tolist():
                    answer = mechanism.answer(_answers(mine[trial].expand(rows)), block=planned.count).value_dp
                    ratios[trial] += log_ratios(_outputs(answer, event), 1 / event.noise_multiplier).sum()
        return ratios


class MessageAnswers:
    """``GaussianMessages``: what a client answers to a server that knows whom it asks; all its data are replaced."""

    def play(self, event: Event, included: Included) -> Numbers:
        """All answers that a client may give. Privacy: made-up clients."""
        answers = event.count * len(included)
        with bench() as place:
            mechanism = GaussianMessages(place.ledger, place.randomness, clip=CLIP, event=place.planned(event, answers))
            rows = _answers(torch.from_numpy(np.repeat(included, event.count)))
            rows_dp = mechanism.answer(rows, answers, "round 0")
        assert rows_dp is not None, "asked once"
        ratios = log_ratios(_outputs(rows_dp, event), 1 / event.noise_multiplier)
        return ratios.reshape(len(included), event.count).sum(axis=1)


class ClientParts:
    """``GaussianMessages`` of all clients, added up: every client adds its part of the noise before it sends.

    The unit is the first client, which sends a row along one direction, or nothing but noise.
    """

    def play(self, event: Event, included: Included) -> Numbers:
        """One row of each client. Privacy: made-up clients."""
        parts = event.noise_parts or 1
        each = event.noise_multiplier / (2 * math.sqrt(parts))  # a part has 1/parts of the variance; a message 2C
        rows = torch.from_numpy(included).unsqueeze(1) * (TOO_LONG * CLIP * _DIRECTION)
        total_dp = torch.zeros(len(included), dtype=torch.float64)
        for client in range(parts):
            with bench() as place:
                fields = {"noise_multiplier": each, "sensitivity": "2C", "noise_parts": None}
                planned = place.planned(event.model_copy(update=fields), len(included))
                mechanism = GaussianMessages(place.ledger, place.randomness, clip=CLIP, event=planned)
                row_dp = mechanism.answer(rows if client == 0 else torch.zeros_like(rows), len(included), "embedding")
            assert row_dp is not None, "asked once"
            total_dp += row_dp.double() @ _DIRECTION.double()
        outputs: Numbers = total_dp.numpy() / (CLIP * event.noise_multiplier)
        return log_ratios(outputs, 1 / event.noise_multiplier)


def _draw_from_panel(place: Bench, queries: int, subsets: int) -> Tensor:
    domain = Domain(shape=(1, 8, 8), nominal_records=1)
    nobody = ImageDataset("made up by an audit", domain, np.zeros((0, 1, 8, 8), dtype=np.uint8))
    settings = CriticsConfig(width=8, batch=1, warm_iterations=0)
    nothing = torch.zeros(0, dtype=torch.long)
    return Critics(nobody, nothing, subsets, settings, Home(place.randomness, CPU)).draw_routing(queries)


def _draw_from_desk(place: Bench, queries: int, subsets: int) -> Tensor:
    limits = ClientLimits(clients=subsets, rounds=1, queries=queries, slots=queries, answers=queries)
    return torch.from_numpy(RoutingDesk(limits, place.randomness.bits).route().client_private)


class Votes:
    """The votes of teachers on each query: signs, bins with their peaks, or real and fake.

    With the unit its teacher votes one way on everything, without it the opposite way.
    """

    def __init__(self, ballot: Literal["signs", "bins", "peaks", "real"], size: int = 1) -> None:
        self._ballot, self._size = ballot, size

    def play(self, event: Event, included: Included) -> Numbers:
        """All queries of the plan. Privacy: made-up units."""
        says = torch.from_numpy(np.repeat(np.where(included, 1.0, -1.0), event.count)).float()
        with bench() as place:
            planned = place.planned(event, len(says))
            outputs = getattr(self, f"_{self._ballot}")(place, planned, says).double().numpy()
        ratios = log_ratios(outputs, 1 / event.noise_multiplier)
        return ratios.reshape(len(included), event.count).sum(axis=1)

    def _signs(self, place: Bench, event: Event, says: Tensor) -> Tensor:
        votes = SignVotes(place.ledger, place.randomness, top=self._size, event=event)
        tally = torch.zeros(len(says), self._size, dtype=torch.int64)
        slopes = says.view(1, -1, 1).expand(1, -1, self._size) * TOO_LONG
        votes.count(tally, torch.cat([slopes, torch.ones_like(slopes), -torch.ones_like(slopes)]))
        along = votes.release(tally).value_dp.sum(dim=1) / self._size**0.5
        return (along + self._size**0.5) / (2 * self._size**0.5 * event.noise_multiplier)

    def _bins(self, place: Bench, event: Event, says: Tensor) -> Tensor:
        votes = BinVotes(place.ledger, place.randomness, coordinates=self._size, bins=_MOST + 1, limit=1.0, event=event)
        counts_dp = votes.release(self._counted(votes, says)).value_dp
        moved = (counts_dp[:, :, _MOST] - counts_dp[:, :, _LEAST]).sum(dim=1)  # others: two votes for the most
        reach = (2 * self._size) ** 0.5
        return (moved - (_TEACHERS - 2) * self._size) / reach / (reach * event.noise_multiplier)

    def _peaks(self, place: Bench, event: Event, says: Tensor) -> Tensor:
        votes = PeakVotes(place.ledger, place.randomness, coordinates=self._size, event=event)
        with bench() as aside:  # bins are counted by the mechanism of the answers, which spends nothing for it
            answers = event.model_copy(update={"sensitivity": "sqrt(2)C"})
            bins = BinVotes(
                aside.ledger, aside.randomness, coordinates=self._size, bins=_MOST + 1, limit=1.0, event=answers
            )
            tally = self._counted(bins, says)
        peaks_dp = votes.release(votes.peaks(tally)).value_dp.sum(dim=1)
        reach = self._size**0.5
        return (peaks_dp - (_TEACHERS - 1) * self._size) / reach / (reach * event.noise_multiplier)

    def _counted(self, votes: BinVotes, says: Tensor) -> Tensor:
        tally = torch.zeros(len(says), self._size, _MOST + 1, dtype=torch.int64)
        values = says.view(1, -1, 1).expand(1, -1, self._size) * TOO_LONG
        votes.count(tally, torch.cat([values, *(torch.full_like(values, TOO_LONG) for _ in range(_TEACHERS - 1))]))
        return tally

    def _real(self, place: Bench, event: Event, says: Tensor) -> Tensor:
        votes = RealVotes(place.ledger, place.randomness, event=event)
        tally = torch.zeros(len(says), dtype=torch.int64)
        votes.count(tally, torch.stack([says * TOO_LONG, torch.ones_like(says), -torch.ones_like(says)]))
        return (votes.release(tally).value_dp - 1) / event.noise_multiplier
