"""Sweep files: what they may say, and how they are read, checked and written."""

from hpxfer.spec.arms import Conventions, arm_label, convention_value, short
from hpxfer.spec.axes import DIMENSION, Axis, axes_of, own_at, scale_of
from hpxfer.spec.blocks import Options, dense_blocks, family_of, forward_problem, has_dense, model_roles, moe_blocks
from hpxfer.spec.budget import arm_budget, budget_text
from hpxfer.spec.check_keys import LEAST_IN_WINDOW
from hpxfer.spec.check_shapes import AT_BASE, BATCH_TOKENS_MULTIPLE, HOW_TO_ALLOW, divisors, keyed_shapes
from hpxfer.spec.checks import roles_of, too_many_trials, without_effect
from hpxfer.spec.data import own_data, points_with_data, with_point_data
from hpxfer.spec.data_section import (
    OWN_DATA,
    SAMPLES,
    DataSpec,
    PointData,
    data_sizes,
    is_own,
    source_kind,
    source_row,
    vocabulary,
)
from hpxfer.spec.fields import (
    WHOLE,
    Count,
    CountOrNone,
    GridValues,
    NotNegative,
    Positive,
    Problem,
    Registered,
    Section,
    Seq,
    Values,
    WhyNot,
    in_file,
    power_of_two,
    validated,
)
from hpxfer.spec.load import (
    are_registered,
    brief_sweep,
    check_edit,
    checked,
    digests_used,
    draft,
    dump_sweep,
    import_plugin,
    load_sweep,
    located,
    parse_sweep,
    plugin_files,
    plugins_in,
    rows_without_plugin,
    stored_names,
    sweep_schema,
    used_rows,
    with_overrides,
)
from hpxfer.spec.model_section import (
    LEARNED,
    MLP,
    TOP,
    Activation,
    Balance,
    BalanceLoss,
    BiasRule,
    FFNShape,
    GPTModel,
    Loss,
    MLPModel,
    MLPShape,
    MLPSpec,
    ModelBase,
    Norm,
    QKNorm,
    RouterBias,
    SampleLoss,
    ShapeSpec,
    TrainedModel,
    TransformerModel,
    UserModel,
    guess_loss,
    has_top5,
    num_outputs,
)
from hpxfer.spec.own import DEV, LossSpec, OwnDims, TimeoutsSpec, TrainerSpec
from hpxfer.spec.precision import AUTO, decided, precision_on, with_precision
from hpxfer.spec.presets import preset_lines
from hpxfer.spec.resources_section import Recompute, ResourcesSpec
from hpxfer.spec.schedule import Planned, Run, planned_at, schedule_at, schedule_lines, schedule_problems, whole_steps
from hpxfer.spec.sweep import (
    AxisSpec,
    HPsSpec,
    PluginSpec,
    RecipeRef,
    Seed,
    ShapeChange,
    SweepSpec,
    base_values,
    parts_of,
    under,
)
from hpxfer.spec.ties import FIXED_BIAS_STD, choice_of, resolved, ties_at
from hpxfer.spec.trainer_files import digest_of, digested
from hpxfer.spec.training_section import ScheduleSpec, TrainingSpec
from hpxfer.spec.yaml_file import KeyPath, YamlFile, key_path, parse_yaml, read_yaml, spell, write_yaml
