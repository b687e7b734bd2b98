"""The adaptive step schedule follows the rules of the paper, reads only accuracies on fakes, and can be resumed."""

import pytest

from understudy.configs import MethodConfig
from understudy.methods.adversarial.schedule import ScheduleConfig, StepSchedule
from understudy.methods.config import build_config

PAPER = ScheduleConfig()


def generator_steps(schedule: StepSchedule, accuracies: list[float]) -> list[int]:
    """The number of discriminator steps before each generator step that saw one of these accuracies."""
    taken = []
    for accuracy in accuracies:
        steps = 1
        while not schedule.count_discriminator_step():
            steps += 1
        taken.append(steps)
        schedule.count_generator_step(accuracy)
    return taken


def runs(values: list[int]) -> list[tuple[int, int]]:
    """A sequence as (value, how often in a row)."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found


def test_the_defaults_are_those_of_the_paper():
    assert (PAPER.decay, PAPER.threshold, PAPER.grace) == (0.99, 0.6, 200)
    assert PAPER.ladder == (1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert pytest.approx(2 / (1 - PAPER.decay)) == PAPER.grace


def test_a_discriminator_that_only_guesses_climbs_one_rung_every_grace_period_and_stays_on_the_last():
    taken = generator_steps(StepSchedule(PAPER), [0.5] * 2000)
    assert runs(taken) == [
        (1, 200),
        (2, 200),
        (5, 200),
        (10, 200),
        (20, 200),
        (50, 200),
        (100, 200),
        (200, 200),
        (500, 400),
    ]


def test_a_good_discriminator_never_climbs():
    assert runs(generator_steps(StepSchedule(PAPER), [0.61] * 3000)) == [(1, 3000)]


def test_the_average_decides_and_is_started_by_the_first_observation():
    """From accuracy 1 the average falls as 0.5 + 0.5 * 0.99^k: below 0.6 for the first time at k = 161."""
    schedule = StepSchedule(ScheduleConfig(grace=1, ladder=(1, 7)))
    taken = generator_steps(schedule, [1.0] + [0.5] * 200)
    assert runs(taken) == [(1, 1 + 161), (7, 39)]


def test_exactly_the_threshold_is_not_below_it():
    schedule = StepSchedule(ScheduleConfig(grace=1, threshold=0.5))
    assert runs(generator_steps(schedule, [0.5] * 10)) == [(1, 10)]


def test_the_grace_period_starts_anew_on_every_rung_and_the_average_goes_on():
    schedule = StepSchedule(ScheduleConfig(grace=3, decay=0.5, ladder=(1, 2, 4)))
    assert runs(generator_steps(schedule, [0.0] * 3)) == [(1, 3)]
    assert schedule.average == 0.0  # a fresh average would climb later
    assert runs(generator_steps(schedule, [0.7, 0.7, 0.7, 0.7])) == [(2, 4)]  # 0.35, 0.525, 0.6125, 0.65625
    assert runs(generator_steps(schedule, [0.1, 0.1])) == [(2, 1), (4, 1)]  # 0.378: the grace period is long over


@pytest.mark.parametrize(("threshold", "climbs"), [(0.6, 0), (0.7, 1)])
def test_the_threshold_is_a_setting(threshold, climbs):
    schedule = StepSchedule(ScheduleConfig(threshold=threshold))
    generator_steps(schedule, [0.65] * 250)
    assert schedule.steps == PAPER.ladder[climbs]


def test_it_never_climbs_down():
    schedule = StepSchedule(ScheduleConfig(grace=1, decay=0.0))
    assert generator_steps(schedule, [0.0, 1.0, 1.0, 0.0, 1.0]) == [1, 2, 2, 2, 5]


def test_a_fixed_schedule_needs_no_accuracy_and_never_moves():
    schedule = StepSchedule.fixed(50)
    due = []
    for _ in range(175):
        due.append(schedule.count_discriminator_step())
        if due[-1]:
            assert not schedule.count_generator_step()
    assert [number for number, value in enumerate(due, start=1) if value] == [50, 100, 150]
    assert not schedule.adaptive
    assert schedule.generator_steps == 3


@pytest.mark.parametrize("cut", [1, 37, 500, 801])
def test_a_resumed_schedule_goes_on_as_if_nothing_had_happened(cut):
    def discriminator_turns(schedule: StepSchedule, count: int) -> list[tuple[int, bool]]:
        turns = []
        for _ in range(count):
            due = schedule.count_discriminator_step()
            turns.append(
                (schedule.steps, due and schedule.count_generator_step(0.3 + 0.2 * (schedule.generator_steps % 2)))
            )
        return turns

    settings = ScheduleConfig(grace=20)
    whole = discriminator_turns(StepSchedule(settings), 1500)
    first, second = StepSchedule(settings), StepSchedule(settings)
    before = discriminator_turns(first, cut)
    second.load_state_dict(first.state_dict())
    assert before + discriminator_turns(second, 1500 - cut) == whole
    assert {moved for _, moved in whole} == {True, False}


@pytest.mark.parametrize("ladder", [[], [2, 1], [1, 1]])
def test_a_ladder_that_does_not_climb_is_refused(ladder):
    class Config(MethodConfig):
        schedule: ScheduleConfig = ScheduleConfig()

    with pytest.raises(Exception, match="does not climb"):
        build_config(Config, {"schedule": {"ladder": ladder}})
