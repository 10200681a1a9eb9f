"""What is evaluated: a run, one of its checkpoints, or a recipe with a model. No torch before the config is right."""

from collections.abc import Sequence
from pathlib import Path

from turnwise.config import Config, load_config, load_run_config, read_run_config
from turnwise.errors import ConfigError
from turnwise.recipes import find_recipe


def load_target(
    what: str, overrides: Sequence[str] = (), *, model: str | None = None, local: bool = True, trust: bool = False
) -> Config:
    """The config to evaluate by, with the model of a run, of one of its checkpoints, or the one that `model` names.

    Without `local`, another agent plays than the run's model, and the run needs no checkpoint. Without `trust`,
    Python that the run's config names is run only if its file has not changed since.
    """
    path = Path(what)
    if path.is_dir():
        run, checkpoint = _find_run(path)
        if checkpoint is None and model is None and local:
            return load_run_config(run, overrides, trust=trust)
        config = read_run_config(run, overrides, trust=trust)
        model = model or (str(checkpoint) if checkpoint else None)
    elif not find_recipe(what).is_file() and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{what}: neither a run nor a recipe; to evaluate a model, name the recipe of its task as well: "
            f"turnwise eval RECIPE --model {what}"
        )
    else:
        config = load_config(what, overrides)
    return config if model is None else _with_model(config, model)


def _find_run(folder: Path) -> tuple[Path, Path | None]:
    """The run that a folder is, or the run and the model where it is a checkpoint of one."""
    if (folder / "config.yaml").is_file():
        return folder, None
    checkpoint = folder.absolute().parent if folder.name == "model" else folder.absolute()
    run = checkpoint.parent.parent
    if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file():
        return run, checkpoint / "model"
    if (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder}: a model, not a run; name the recipe of its task: turnwise eval RECIPE --model {folder}"
        )
    return folder, None


def _with_model(config: Config, name: str) -> Config:
    inner = Path(name) / "model"
    chosen = str(inner) if inner.is_dir() else name
    _require_whole(Path(chosen).absolute().parent)
    model = config.model.model_copy(update={"name": chosen, "tokenizer": None, "lora": None})
    return config.model_copy(update={"model": model})


def _require_whole(checkpoint: Path) -> None:
    """An error if a folder is a checkpoint of a run and its files are not as they were written."""
    step = checkpoint.name.removeprefix("step-")
    if checkpoint.parent.name == "checkpoints" and step.isdecimal():
        from turnwise.runs import Checkpoints

        Checkpoints(checkpoint.parent).require_whole(int(step))
