"""The map of the phases: which of the engine's methods each overrides, read from the classes."""

import importlib

from matplotlib.figure import Figure

from scripts.lesson_figures.style import DARK, LIGHT, MID, PALE, figure

ORDER = (
    *("load", "build_model", "home", "prepare_model", "allocate", "sequences", "run", "groups", "admit", "release"),
    *("step", "execute", "advance", "launch", "prepare", "forward", "sample", "land", "commit"),
)
NAMES = {
    1: "basic loop",
    2: "GPU loading",
    3: "KV cache",
    4: "batching",
    5: "continuous batching",
    6: "quantization",
    7: "fusion",
    8: "CUDA graphs",
    9: "streams",
    10: "multi-GPU",
    11: "profiling",
}


def hooks() -> Figure:
    """A row for each phase, a column for each hook; dark: this phase has its own."""
    made = figure(9.6, 4.2)
    axes = made.subplots()
    columns = [hook for hook in ORDER if any(hook in own_methods(phase) for phase in NAMES)]
    counts = []
    for row, phase in enumerate(NAMES):
        own, known = own_methods(phase), set().union(*(own_methods(earlier) for earlier in range(1, phase)))
        for column, hook in enumerate(columns):
            colour = (DARK if hook in known else MID) if hook in own else PALE
            axes.barh(row, 0.86, 0.8, left=column - 0.43, color=LIGHT if phase == 1 and hook in own else colour)
        counts.append(sum(hook in own and hook in known for hook in columns))
    labels = [f"{name}  {phase}" for phase, name in NAMES.items()]
    axes.set(yticks=range(len(NAMES)), yticklabels=labels, xlim=(-0.6, len(columns) - 0.4), ylim=(10.6, -0.6))
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    said = (
        f"Phase 1 has the hooks (light); of these each later phase overrides at most {max(counts)} (dark; mid: its own)"
    )
    made.suptitle(said, fontsize=10)
    return made


def own_methods(phase: int) -> set[str]:
    """The methods that a phase's Engine has of its own; none of a phase that is not built."""
    try:
        engine = importlib.import_module(f"minfer.phase{phase}").Engine
    except ModuleNotFoundError:
        return set()
    return {name for name, value in vars(engine).items() if callable(value) or isinstance(value, classmethod)}
