"""``tefuzz campaign``: fuzz on several machines for a given time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from harness.campaign import Cluster, Driver, Plan, Progress, run_shard
from harness.commands.common import (
    BadInput,
    ExitCode,
    device_option,
    limit_options,
    plural,
    revert_option,
    settings_of,
    summary_on_interrupt,
    writable_directory,
)
from harness.device import DeviceChoice
from harness.replay_command import revert_options
from harness.summary import summary_lines
from harness.working_corpus import default_directory

RUNS = Path(".tefuzz") / "runs"


@click.command()
@click.option("--ray", "address", metavar="ADDRESS", help="The Ray cluster: auto, HOST:PORT.  [default: a local one]")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="How long each shard draws and shrinks.",
)
@click.option("--shards", type=click.IntRange(min=1), help="How many.  [default: one for each GPU, or for each CPU]")
@click.option("--seed", type=click.IntRange(min=0), help="Equal seeds draw equal cases.  [default: a random one]")
@click.option(
    "--corpus",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The working corpus that all shards add to.  [default: $TEFUZZ_CORPUS, or .tefuzz/corpus]",
)
@device_option
@revert_option
@limit_options
def campaign(
    address: str | None,
    minutes: float,
    shards: int | None,
    seed: int | None,
    corpus: Path | None,
    device: DeviceChoice,
    reverts: tuple[str, ...],
    case_seconds: float,
    case_memory: float,
) -> None:
    """Fuzz in time-boxed shards on the machines of a Ray cluster, each shard with a GPU of its own.

    Every machine has this tefuzz installed, with `pip install -e ".[fleet]"`. Findings are shrunk where they are met
    and printed here; the run is kept like one of `pytest fuzz/`, for `tefuzz report` and `tefuzz run`, and all cases
    that are worth it are in the working corpus. A worker that is lost costs at most what it did since it last spoke.

    \b
    Examples:
      tefuzz campaign --minutes 10                       # on the CPUs or GPUs of this machine
      tefuzz campaign --ray auto --minutes 480           # on the cluster that this machine belongs to
      tefuzz campaign --ray 10.0.0.1:6379 --shards 16 --seed 7

    Schedulers that only start commands (Slurm, Kubernetes jobs) use `pytest fuzz/ --tefuzz-shard I/N` in its place.

    \b
    Exit codes:
      0    nothing new was found
      1    findings
      2    bad input: nothing was run
      3    an error of tefuzz itself
      130  interrupted; what was found is kept
    """
    directory = writable_directory(RUNS) / time.strftime("%Y%m%d-%H%M%S-campaign")
    kept = None if reverts else writable_directory(corpus or default_directory())
    settings = settings_of(device, reverts, case_seconds, case_memory)
    cluster = _cluster(address, device)
    seed = random.randrange(2**32) if seed is None else seed
    count = shards or cluster.slots
    click.echo(f"{plural(count, 'shard')}, {cluster.slots} at a time, {minutes:g} min each; seed {seed}; {directory}")
    driver, started = Driver(directory, kept), time.time()
    options = revert_options(reverts)

    def summary() -> list[str]:
        driver.close()
        return list(summary_lines(directory, time.time() - started, options))

    def take(progress: Progress) -> None:
        new = driver.take(progress)
        where = f"process {progress.process}" + (f", GPU {progress.gpu}" if progress.gpu else "")
        click.echo(f"[{time.time() - started:.0f} s] shard {progress.shard} ({where}): {driver.cases} cases in all")
        for found in new:
            click.echo(f"FOUND: {found.bucket}")

    with summary_on_interrupt(summary):
        try:
            for shard in range(count):
                cluster.start(Plan(shard=shard, seed=seed, seconds=60 * minutes, settings=settings))
            cluster.run(take, click.echo)
        finally:
            cluster.close()
    for line in summary():
        click.echo(line)
    if driver.found:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _cluster(address: str | None, device: DeviceChoice) -> Cluster:
    try:
        return Cluster(address, device, shard_task)
    except ModuleNotFoundError as error:
        raise BadInput(f"{error.name} is not installed. Run `pip install -e '.[fleet]'`.") from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(f"--ray {address}: {error}. Check the address, or leave it out for a local Ray.") from error


def shard_task(plan: bytes) -> Iterator[bytes]:
    """What Ray runs, on whatever machine: a shard, with plan and progress as JSON."""
    from strategies import cases, fused_module_cases, fuser_cases

    drawn = {
        "te_v2": cases("transformer_engine"),
        "te_v1": cases("transformer_engine_v1"),
        "torch": cases("torch"),
        "thunderfx": cases("transformer_engine", entries=("thunderfx",)),
        "thunderfx_without_te": cases("torch", entries=("thunderfx",)),
        "fuser": fuser_cases(),
        "fused_module": fused_module_cases(),
    }
    for progress in run_shard(msgspec.json.decode(plan, type=Plan), drawn):
        yield msgspec.json.encode(progress)
