"""``understudy sample``: draw images from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli import options as common

NAME = "sample"


def command(
    release: common.ReleaseFolder,
    count: Annotated[int, typer.Option("-n", "--count", help="How many images.")],
    to: Annotated[Path, typer.Option("--to", help="out.npz, out.parquet, or a new folder of PNGs.")],
    labels: Annotated[
        str | None, typer.Option("--labels", help="Only these classes, by number or by name, e.g. 3,5 or cat,dog.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Draw the same images again.")] = None,
    temperature: common.Temperature = 1.0,
    sample_steps: common.SampleSteps = None,
    agree: common.Agree = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Draw in so many processes on this machine; with a seed any number of them draws the same images.",
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Draw images; any number of them costs no further privacy."""
    from understudy.progress import show_scoring
    from understudy.release.export import check_destination, export
    from understudy.release.release import load
    from understudy.release.sampling import DrawOptions, sample_in_processes

    check_destination(to)
    loaded = load(release)
    chosen = common.parse_labels(labels, loaded.domain.class_names)
    with show_scoring() as listeners:
        watch = listeners.counting("images drawn", count)
        if processes is None:
            images, drawn = loaded.sample(count, chosen, seed, temperature, sample_steps, watch, agree)
        else:
            asked = None if chosen is None else tuple(chosen)
            options = DrawOptions(count, asked, seed, temperature, sample_steps, agree)
            images, drawn = sample_in_processes(release, loaded, options, processes, watch)
    path = export(images, drawn, to, loaded.domain.class_names)
    if as_json:
        common.print_json({"path": str(path), "count": count, "labels": chosen, "shape": list(images.shape)})
    else:
        typer.echo(f"{count} images in {path}")
