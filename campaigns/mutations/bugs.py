"""All planted bugs."""

from __future__ import annotations

from . import (
    bugs_of_accounts,
    bugs_of_critics,
    bugs_of_data,
    bugs_of_diffusion,
    bugs_of_noise,
    bugs_of_people,
    bugs_of_processes,
    bugs_of_signatures,
    bugs_of_teacher,
    bugs_of_verdicts,
)

BUGS = (
    *bugs_of_accounts.BUGS,
    *bugs_of_noise.BUGS,
    *bugs_of_critics.BUGS,
    *bugs_of_data.BUGS,
    *bugs_of_diffusion.BUGS,
    *bugs_of_people.BUGS,
    *bugs_of_processes.BUGS,
    *bugs_of_signatures.BUGS,
    *bugs_of_teacher.BUGS,
    *bugs_of_verdicts.BUGS,
)
