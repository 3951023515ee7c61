"""A recipe file: its schema, field by field, and how it is read and written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hpxfer.errors import HpxferError, shown
from hpxfer.host import write_files
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.evaluate import BaseInit, parameterization
from hpxfer.scaling.hps import check_hp_name, check_hp_value
from hpxfer.scaling.shape import shape_from_mapping
from hpxfer.spec import (
    BalanceLoss,
    BiasRule,
    Conventions,
    Count,
    CountOrNone,
    KeyPath,
    NotNegative,
    OwnDims,
    Planned,
    Positive,
    Registered,
    ScheduleSpec,
    Section,
    Seed,
    Seq,
    ShapeSpec,
    TrainedModel,
    YamlFile,
    read_yaml,
    schedule_problems,
    validated,
    write_yaml,
)

if TYPE_CHECKING:
    from hpxfer.recipe.recipe import Recipe

# Goes up with each change of a field. A file of another version is refused.
VERSION_KEY: Final = "hpxfer_recipe"
RECIPE_VERSION: Final = 2

COMMENT = """\
# Tuned base hyperparameters, how they scale and where that was measured. From Python:
#   recipe = hpxfer.Recipe.load("recipe.yaml"); print(recipe.describe(target_shape))
"""

# Options of a base model that multiply in its forward pass, at every shape alike.
FIXED_FACTORS = ("route_scale", "mlp.inverse_temperature")
# Fields of the provenance that a recipe from a sweep must have, and a recipe made by hand must not.
OF_A_SWEEP = ("sweep", "data_digest", "tokenizer", "vocab_size", "num_trials", "seeds")


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError("[lowest, highest]")
    return ends


Range = Annotated[
    tuple[NotNegative, NotNegative],
    BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v),
    AfterValidator(_ascending),
]
Verdict = Literal["transfers", "stays", "drifts", "undecided"]
LossName = Literal["validation", "final_window"]


class Part(Section):
    """A part of a recipe. What is optional and not known is left out of the file."""

    @model_serializer(mode="wrap")
    def _known(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {key: value for key, value in dump(self).items() if value is not None or fields[key].is_required()}


class HPsPart(Part):
    """The base HPs. `multipliers` holds the constant multipliers by dotted name."""

    lr: float
    adamw_lr: float = 0.0  # left out of the file under any optimizer but Muon
    init_scale: float
    residual_scale: float
    weight_decay: float
    eps: float
    beta1: float
    beta2: float
    momentum: float = 0.0
    router_bias_lr: float
    aux_weight: float = 0.0
    z_weight: float = 0.0
    multipliers: dict[str, float]

    @model_serializer(mode="wrap")
    def _known(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value or key != "adamw_lr"}


class InitPart(Part):
    """How the base model is initialized, as in `hpxfer.scaling.evaluate.BaseInit`."""

    matrices: Literal["fan_in", "constant"]
    matrix_std: Positive
    embedding_std: NotNegative
    position_std: NotNegative
    scale_of: Literal["matrices", "all"] = "matrices"
    stds: Annotated[dict[str, NotNegative], BeforeValidator(dict)] = Field(default_factory=dict)
    """Role -> its std, where a family has roles with one of their own. Left out of the file without them."""

    @model_serializer(mode="wrap")
    def _known(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value or key != "stds"}

    def base_init(self) -> BaseInit:
        """Return what it says."""
        return BaseInit(**{**dict(self), "stds": tuple(self.stds.items())})


class ModelPart(Part):
    """The base model beside its shape. Null means not known. Another model may need other HPs."""

    context: Count | None  # tokens
    gate: str  # the name of a registered gate
    ffn: Literal["gelu", "relu", "swiglu"] | None
    moe_every: Count | None
    dense_first: CountOrNone | None
    attention_scale: Literal["1/d_head", "1/sqrt(d_head)"]
    tied_embeddings: bool | None
    norm_gains: bool | None
    biases: bool | None
    norm: Literal["layernorm", "rmsnorm"] | None = None
    positions: Literal["learned", "rope", "sincos", "none"] | None = None
    qk_norm: bool | None = None
    attention_ratio: Positive | None = None  # heads x head_dim / width
    embedding_scale: Positive | None = None  # factor on the rows of the embedding
    bias_rule: BiasRule | None = None  # that balances the experts by the router bias
    balance_loss: BalanceLoss | None = None  # whose weight is the HP aux_weight
    options: dict[str, bool | int | float | str | None] | None = None  # the other keys of the sweep's `model`


class TablePart(Part):
    """The table of the HPs, with its conventions."""

    name: str
    conventions: Conventions = Field(default_factory=dict)


class TrainingPart(Part):
    """How the base was trained."""

    steps: Count
    batch_tokens: Count
    schedule: ScheduleSpec
    gradient_clip: Positive | None
    precision: Literal["float32", "bfloat16"]


class AxisPart(Part):
    """How far the HP was transferred along one axis, and how well."""

    scale_name: str
    range: Range  # of the scale, over the base and the shapes with a result at the transferred HP
    dims: dict[str, Range]  # the dimensions that differ between these shapes
    verdict: Verdict
    # At shapes beyond the base. Null if none could be measured, and for a loss in another unit than nats.
    largest_regret_nats: float | Literal["diverges"] | None
    noise_nats: NotNegative | None  # standard deviation of one seed's loss; null for a loss in another unit
    largest_regret: float | Literal["diverges"] | None = None  # in the unit of `fitted`
    noise: NotNegative | None = None


class FittedPart(Part):
    """What was measured: the optimum of one HP at the base, and how it transfers."""

    hp: str
    value: float  # the best value of the grid, as in `hps`
    optimum: float | None  # estimate between the values of the grid, null if the grid gives none
    optimum_of_seeds: Range | None  # lowest and highest optimum of single seeds, null with fewer than two
    open_because: str | None  # why a better value may lie where nothing was measured, null if it does not
    loss: LossName
    loss_nats: float | None  # at the base, median over the seeds; null for a loss in another unit
    # Of `loss_value` and of the numbers of `axes`.
    unit: Literal["squared error", "bits per byte"] | None = None
    loss_value: float | None = None  # in place of loss_nats
    axes: dict[str, AxisPart]

    @model_validator(mode="after")
    def _has_one_loss(self) -> FittedPart:
        if (self.loss_nats is None, self.loss_value is None) != (self.unit is not None, self.unit is None):
            raise ValueError("given with loss_nats, or with a unit that is not nats and loss_value")
        return self


class SearchPart(Part):
    """How a search found its best point, where the optimum of a line was not the aim."""

    kind: str
    hps: Seq[str]  # the HPs that the search varied
    budget: Count  # trials per arm, with seeds
    num_trials: CountOrNone  # trials of the tuned arm that ended
    num_points: CountOrNone  # points of the tuned arm with all seeds
    why: str
    bounds: Seq[str] = ()  # e.g. `init_scale >= 16`: values on an edge of what was tried, no optima


class ProvenancePart(Part):
    """Where the numbers come from. The fields about a sweep are null in a recipe made by hand."""

    made: Literal["by a sweep", "by hand"]
    sweep: str | None
    data_digest: str | None
    tokenizer: str | None
    vocab_size: CountOrNone | None
    num_trials: Count | None  # of the whole sweep, finished or diverged
    seeds: Annotated[Seq[Seed], Field(min_length=1)] | None
    measured: str | None  # UTC date of the last trial
    hpxfer: str  # version that wrote the recipe
    versions: dict[str, Seq[str]]  # of hpxfer, python and torch that trained; empty if made by hand
    search: SearchPart | None = None  # where the optimum comes from no line of the grid
    recipe: str | None = None  # that the sweep started from: its digest and origin
    plugins: Seq[str] | None = None  # that the sweep named


class RecipeFile(Part):
    """One recipe file."""

    hpxfer_recipe: Literal[2]
    family: str  # checked before all else, because nothing else means the same in another family
    parameterization: TablePart
    optimizer: Annotated[str, Registered("optimizer")]
    base_shape: dict[str, int]
    own_shape: OwnDims | None = None  # the base in the words of a user's own trainer
    hps: HPsPart
    init: InitPart
    model: ModelPart
    training: TrainingPart | None  # null, as is `fitted`, if made by hand
    fitted: FittedPart | None
    provenance: ProvenancePart

    @property
    def base(self) -> dict[str, Any]:
        """The base shape with all of its dimensions."""
        return self.base_shape if self.own_shape is None else {**self.base_shape, "own": self.own_shape}

    @property
    def fixed(self) -> dict[str, float]:
        """Key -> the factor that the base model has at every shape, whatever the table says. A model may have none."""
        options = self.model.options or {}
        return {name.rpartition(".")[2]: float(options.get(name) or 1.0) for name in FIXED_FACTORS}


def is_recipe(data: Any) -> bool:
    """Return whether the data of a YAML file calls itself an hpxfer recipe."""
    return isinstance(data, dict) and VERSION_KEY in data


def read_recipe(file: YamlFile) -> RecipeFile:
    """Return the checked recipe in a YAML file. Raises HpxferError with one line per broken rule."""
    write_again = "`hpxfer recipe write RESULTS` writes"
    if not is_recipe(file.data):
        rule = f"must be a recipe, a mapping with the key {VERSION_KEY}, got none"
        raise HpxferError(f"{file.name}: {rule}; {write_again} one")
    # Nothing else means the same in another version or in another family.
    version, family, families = file.data[VERSION_KEY], file.data.get("family"), rows_of("family").names()
    if version != RECIPE_VERSION or isinstance(version, bool):
        rule = f"must be {RECIPE_VERSION}, got {shown(version)}"
        raise HpxferError(f"{file.where((VERSION_KEY,))}: {rule}; {write_again} it again")
    if family is not None and family not in families:
        rule = f"must be a model family that this hpxfer knows, {', '.join(families)}"
        fix = "; name the plug-in of its sweep with --plugin" if isinstance(family, str) else ""
        raise HpxferError(f"{file.where(('family',))}: {rule}, got {shown(family)}{fix}")
    recipe = validated(RecipeFile, file)
    if broken := [f"{file.where(path)}: {message}" for path, message in _problems(recipe)]:
        raise HpxferError("\n".join(broken))
    return recipe


def dump_recipe(recipe: RecipeFile) -> str:
    """Return YAML that reads back as an equal recipe."""
    return COMMENT + write_yaml(recipe.model_dump(mode="json"))


def _problems(recipe: RecipeFile) -> Iterator[tuple[KeyPath, str]]:
    """Yield each broken rule that joins fields."""
    is_swept = recipe.provenance.made == "by a sweep"
    parts: dict[KeyPath, object] = {("training",): recipe.training, ("fitted",): recipe.fitted}
    parts |= {("provenance", name): getattr(recipe.provenance, name) for name in OF_A_SWEEP}
    for path, value in parts.items():
        if is_swept is (value is None):
            yield path, f"must be {'given: a sweep made this recipe' if is_swept else 'null: it was made by hand'}"
    yield from _unknown_names(recipe)
    try:
        base = shape_from_mapping(recipe.base, "the base")
        if not base.head_dim and _has_heads(recipe.family):
            yield ("base_shape",), "the base: must give head_dim"
    except HpxferError as error:
        yield ("base_shape",), str(error)
    for path, name, value in _hp_values(recipe):
        try:
            check_hp_name(name)
            check_hp_value(name, value)
        except HpxferError as error:
            yield path, str(error)
    yield from _adamw_lr(recipe)
    for name in FIXED_FACTORS:
        factor = (recipe.model.options or {}).get(name)
        if factor is not None and (isinstance(factor, bool | str) or not 0 < factor < math.inf):
            yield ("model", "options", name), f"must be a number > 0, got {shown(factor)}"
    if recipe.training is not None:
        planned = Planned(schedule=recipe.training.schedule, steps=recipe.training.steps)
        for path, problem in schedule_problems(planned, recipe.training):
            yield ("training", "schedule", *path), problem
    for name in recipe.hps.multipliers:
        if "." not in name:
            yield ("hps", "multipliers", name), "must be a dotted name, e.g. router.lr_mult"


def _adamw_lr(recipe: RecipeFile) -> Iterator[tuple[KeyPath, str]]:
    """Yield that Muon's second LR is missing, or that another optimizer has one."""
    given, needed = recipe.hps.adamw_lr, "adamw_lr" in rows_of("optimizer").get(recipe.optimizer).hps
    if needed and not given:
        yield ("hps", "adamw_lr"), f"must be > 0 with {recipe.optimizer}: AdamW moves all but hidden matrices; got 0"
    if given and not needed:
        yield ("hps", "adamw_lr"), f"must be left out with {recipe.optimizer}, which has one LR, got {given:g}"


def _has_heads(family: str) -> bool:
    section = rows_of("family").get(family).section
    return issubclass(section, TrainedModel) and issubclass(section.base_class(), ShapeSpec)


def _hp_values(recipe: RecipeFile) -> Iterator[tuple[KeyPath, str, float]]:
    """Yield every number of the recipe that is the value of an HP, with its key path and the HP's name."""
    yield from ((("hps", name), name, value) for name, value in recipe.hps if name != "multipliers")
    yield from ((("hps", "multipliers", name), name, value) for name, value in recipe.hps.multipliers.items())
    if (fitted := recipe.fitted) is not None:
        yield ("fitted", "value"), fitted.hp, fitted.value
        if fitted.optimum is not None:
            yield ("fitted", "optimum"), fitted.hp, fitted.optimum
        for index, value in enumerate(fitted.optimum_of_seeds or ()):
            yield ("fitted", "optimum_of_seeds", index), fitted.hp, value


def _unknown_names(recipe: RecipeFile) -> Iterator[tuple[KeyPath, str]]:
    """Yield the names of rows that are not registered here, and a parameterization that has no rows for the recipe."""
    plugins = ", ".join(recipe.provenance.plugins or ())
    fix = f"; import the plug-in of the sweep first: {plugins}" if plugins else ""
    chosen, column = recipe.parameterization, rows_of("optimizer").get(recipe.optimizer).column
    try:
        registry("gate").get(recipe.model.gate)
    except HpxferError as error:
        yield ("model", "gate"), f"{error}{fix}"
    try:
        parameterization(chosen.name, chosen.conventions).rows(column)
    except HpxferError as error:
        yield ("parameterization",), f"{error}{fix}"


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe to a new file, or over an older recipe.

    Raises HpxferError, and changes nothing, if another file is there or the file cannot be written.
    """
    target, content = Path(path), recipe.dump().encode()
    if target.is_dir():
        raise HpxferError(f"{target}: must be a new file or an older recipe, got a folder; choose a file in it")
    if target.exists() and not _holds_recipe(target):
        raise HpxferError(
            f"{target}: must be a new file or an older recipe, got another file, or a damaged one; choose another "
            "path, or remove it"
        )
    try:
        write_files({target: lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"{target}: cannot be written: {error.strerror}; choose another path") from None


def _holds_recipe(path: Path) -> bool:
    try:
        return is_recipe(read_yaml(path).data)
    except HpxferError:
        return False
