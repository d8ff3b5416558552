"""`profile`: what the selected kernels do to a decoder's prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.output import command_line, device_option, emit, json_option, save_option, say, table

if TYPE_CHECKING:
    from kernelyard.decoder.report import ProfileReport, Progress


@click.command(epilog="Example: kernelyard profile --preset tiny --prompt 64 --context 128")
@click.option("--preset", help="Size of a model with random weights: tiny (the default), 1b or 8b.")
@click.option("--checkpoint", metavar="FOLDER", help="Or a Hugging Face checkpoint of Llama, Qwen2 or Mistral, with its weights.")
@click.option("--op", "ops", multiple=True, help="Swap only this op; may be given again. By default all.")
@click.option("--prompt", "prompts", multiple=True, type=int, help="Prompt length to prefill; may be given again.")
@click.option("--context", "contexts", multiple=True, type=int, help="Context length to decode at; may be given again.")
@click.option("--batch", default=1, show_default=True, help="Sequences at once.")
@click.option("--dtype", help="fp32, bf16 or fp16; by default bf16 on a GPU, fp32 on a CPU.")
@click.option("--no-compile", is_flag=True, help="Leave out the torch.compile variants.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 2), default=0, show_default=True, help="Seed of the random weights and prompts.")
@save_option
@device_option
@json_option
def profile(
    preset: str | None,
    checkpoint: str | None,
    ops: tuple[str, ...],
    prompts: tuple[int, ...],
    contexts: tuple[int, ...],
    batch: int,
    dtype: str | None,
    no_compile: bool,
    seed: int,
    save: str | None,
    device: str | None,
    as_json: bool,
) -> int:
    """Time a decoder with its ops held to plain torch, swapped for the selected kernels, and compiled.

    Prints time and tokens a second for each phase and length, each op's share, and Amdahl's prediction beside what was
    observed; losses are shown as plainly as gains. Lengths default to the device's, as far as the model's context goes.
    """
    from kernelyard.decoder.profile import profile as run

    lengths = (prompts, contexts) if prompts or contexts else (None, None)
    report = run(preset, device, prompt_lengths=lengths[0], context_lengths=lengths[1], batch=batch,
                 dtype=dtype, ops=ops or None, compile=not no_compile, seed=seed, checkpoint=checkpoint, progress=_say)  # fmt: skip
    if save:
        say(f"saved {_save(save, report)}")
    if as_json:
        emit(report.to_json())
    else:
        _show(report)
    return 0 if all(row.agrees for row in report.rows) else 1


def _say(step: Progress) -> None:
    say(f"[{step.done}/{step.total}] {step.text}")


def _show(report: ProfileReport) -> None:
    title = f"{report.preset} on {report.device.name}, {report.dtype}, {report.threads} threads; {', '.join(report.swapped)} swapped"
    columns = ("phase", "tokens >", "context >", "variant", "ms >", "95% interval", "tokens/s >", "vs reference >", "95% interval")
    table(title, columns, [_row(row) for row in report.rows])
    heads = ("phase", "tokens >", "context >", "op", "calls >", "share >", "op faster by >", "kernels")
    shares = [
        (law.phase, law.tokens, law.context, op.op, op.calls, f"{op.share.median:.1%}", f"{op.speedup.median:.2f}x", ", ".join(op.kernels))
        for law in report.amdahl
        for op in law.ops
    ]
    table("share of each op in the reference, and how much faster it got", heads, shares)
    for text in report.sentences:
        print(text)


def _row(row: Any) -> tuple[object, ...]:
    speedup = (f"{row.speedup.median:.2f}x", f"{row.speedup.low:.2f} to {row.speedup.high:.2f}") if row.speedup else ("", "")
    times = (f"{row.ms.median:.3g}", f"{row.ms.low:.3g} to {row.ms.high:.3g}", f"{row.tokens_per_s:.0f}")
    return (row.phase, row.tokens, row.context, row.variant, *times, *speedup)


def _save(name: str, report: ProfileReport) -> Any:
    from kernelyard.store.results import save_experiment

    content = report.to_json()
    note = [
        f"# {name}",
        "",
        f"`{command_line()}`",
        "",
        f"{report.preset} on {report.device.name} ({report.device.key()}), {report.dtype}.",
        "",
    ]
    extra = {key: value for key, value in content.items() if key not in ("rows", "device")}
    lines = "\n".join([*note, *(f"- {text}" for text in report.sentences)]) + "\n"
    return save_experiment(name, content["rows"], device=report.device, command=command_line(), note=lines, extra=extra)
