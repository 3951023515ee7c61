"""`hpxfer explain` as a user calls it: shape files, sweeps and recipes, `--strict`, and every kind of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from sweep_text import SWEEP, edited

from hpxfer.cli.options import column
from hpxfer.scaling.tables import PARAMETERIZATIONS

MOE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
DENSE = {"width": 32, "depth": 2, "head_dim": 32, "dense_width": 32}
Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Return a call of `hpxfer explain`: a mapping or a text given for base or target is written to a file first."""

    def call(*arguments: object, **files: Any) -> tuple[int, str, str]:
        words = ["explain", *map(str, arguments)]
        for option, data in files.items():
            path = tmp_path / f"{option}.{'yaml' if option == 'sweep' else 'json'}"
            path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
            words += [f"--{option}", str(path)]
        code, out, err = hpxfer(capsys, *words)
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_every_table_by_its_name(name: str, explain: Explain) -> None:
    target = {**MOE, "width": 64, "expert_width": 64}
    code, out, _ = explain("--parameterization", name, "--json", base=MOE, target=target)
    assert code == 0
    got = json.loads(out)
    assert got["parameterization"] == name
    assert column(got["optimizer"]) == next(iter(PARAMETERIZATIONS.get(name).rows))


def test_either_spelling_of_adamw_names_it(explain: Explain) -> None:
    said = [
        explain("--parameterization", "mup", "--optimizer", name, base=MOE, target=MOE) for name in ("adam", "adamw")
    ]
    assert said[0] == said[1]
    assert said[0][1].splitlines()[0].endswith(", adamw")


def test_list(explain: Explain) -> None:
    code, out, _ = explain("--list")
    assert code == 0
    for table in PARAMETERIZATIONS.rows():
        assert f"{table.name} ({table.source})\n" in out
        assert f"  axes:        {', '.join(table.axes)}" in out
    code, out, _ = explain("--list", "--json")
    assert {name: table["axes"] for name, table in json.loads(out).items()} == {
        table.name: list(table.axes) for table in PARAMETERIZATIONS.rows()
    }


@pytest.mark.parametrize(
    ("name", "options", "base", "target", "message"),
    [
        ("completep-moe", (), MOE, {**MOE, "num_experts": 8}, "holds kappa fixed"),
        ("mssp-i", (), MOE, {**MOE, "width": 64, "num_experts": 8, "num_active": 2}, "use mssp-ii"),
        ("mup-moe", (), MOE, {**MOE, "num_experts": 8, "num_active": 2}, "holds num_experts fixed"),
        ("mssp-i", ("--gate", "softmax"), {**MOE, "num_active": 4}, {**MOE, "num_active": 4}, "stays uniform"),
        ("mup", ("--untied", "--convention", "embeddings=tied"), MOE, MOE, "set embeddings: untied"),
        ("mup-moe", ("--tied",), MOE, MOE, "set readout: forward"),
        ("complete-mue", ("--gate", "sigmoid"), DENSE, MOE, "take the gate normalized_sigmoid"),
        ("completep", (), MOE, MOE, "has no rule for router"),
        ("complete-mue", (), MOE, DENSE, "none to compare them with"),
    ],
)
def test_strict_refuses_what_is_warned_of(
    name: str, options: tuple[str, ...], base: object, target: object, message: str, explain: Explain
) -> None:
    code, out, err = explain("--parameterization", name, *options, base=base, target=target)
    assert code == 0
    assert any(line.startswith("warning: ") and message in line for line in out.splitlines())
    code, out, err = explain("--parameterization", name, *options, "--strict", base=base, target=target)
    assert (code, out) == (2, "")
    assert f"not covered by {PARAMETERIZATIONS.get(name).source}: " in err
    assert message in err


@pytest.mark.parametrize(
    ("name", "base", "target"),
    [
        ("completep-moe", MOE, {**MOE, "width": 64, "depth": 4, "expert_width": 128}),
        ("complete-mue", DENSE, {**MOE, "num_shared": 1, "shared_width": 32, "dense_width": 64}),
        ("mssp-ii", MOE, {**MOE, "width": 64, "num_experts": 8, "num_active": 2}),
    ],
)
def test_strict_lets_pass_what_is_covered(name: str, base: object, target: object, explain: Explain) -> None:
    code, out, _ = explain("--parameterization", name, "--strict", base=base, target=target)
    assert code == 0
    assert "warning" not in out


def test_a_dense_base_and_a_hybrid_target(explain: Explain) -> None:
    """Complete-muE's block 128e8a1s with h = d, from a dense FFN with H = d at eight times the width."""
    base = {**DENSE, "batch_tokens": 64, "steps": 100}
    target = {"width": 256, "depth": 2, "head_dim": 32, "num_experts": 128, "num_active": 8, "expert_width": 256}
    target |= {"num_shared": 1, "shared_width": 256, "batch_tokens": 64, "steps": 400}
    code, out, _ = explain("--parameterization", "complete-mue", "--json", base=base, target=target)
    assert code == 0
    got = json.loads(out)
    assert got["roles"]["router"]["lr"] == pytest.approx(1 / 16)
    assert got["roles"]["expert_out"]["forward"] == pytest.approx(1 / 9)
    assert got["roles"]["shared_out"]["init_std"] == pytest.approx(3 / 8**0.5)
    assert got["globals"] == {"route_scale": 8.0, "one_minus_beta": 0.25}


def test_conventions_of_the_command_line(explain: Explain) -> None:
    options = (
        "--convention",
        "router_init_exponent=inf",
        "--convention",
        "depth_alpha=0.5",
        "--convention",
        "eps=global",
    )
    code, out, _ = explain("--parameterization", "completep-moe", *options, base=MOE, target=MOE)
    assert code == 0
    assert out.startswith("completep-moe[depth_alpha=0.5,eps=global,router_init_exponent=inf] ")


def test_a_sweep_with_a_preset_shows_the_role_of_each_tensor(explain: Explain) -> None:
    options = ("like: qwen3-moe", "gate: normalized_softmax", "attention_gate: true", "shared_expert_gate: true")
    extra = "".join(f"  {option}\n" for option in (*options, "balance: {aux: none}")) + "  context:"
    text = edited(
        ("  context:", extra),
        ("head_dim: 32", "head_dim: 32, num_shared: 1, shared_ratio: 1"),
        ("completep-moe", "complete-mue"),
    )
    code, out, err = explain(sweep=text)
    assert code == 0, err
    lines = {
        line.split()[0]: line.split()
        for line in out.partition("\nTensors of the model at the target\n")[2].splitlines()
    }
    roles = {"q_norm": "norm", "k_norm": "norm", "attn_gate": "attn_q", "shared_router": "router"}
    assert {name: lines[name][1] for name in roles} == roles
    assert "position" not in lines
    code, out, _ = explain("--json", sweep=text)
    found = {one["name"]: one for one in json.loads(out)["tensors"]}
    assert {name: found[name]["role"] for name in roles} == roles
    assert found["q_norm"]["size"] == [32]
    assert list(found) == [name for name in lines if name != "tensor"]


def test_shape_files_say_nothing_of_tensors(explain: Explain) -> None:
    assert "Tensors" not in explain("--parameterization", "sp", base=MOE, target=MOE)[1]
    assert "tensors" not in json.loads(explain("--parameterization", "sp", "--json", base=MOE, target=MOE)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--convention", "readout"), "--convention must be KEY=VALUE, got 'readout'"),
        (("--convention", "=forward"), "--convention must be KEY=VALUE, got '=forward'"),
        (("--convention", "readout="), "--convention must be KEY=VALUE, got 'readout='"),
        (("--convention", "eps=global", "--convention", "eps=per_role"), "--convention eps stands twice; keep one"),
        (("--convention", "readuot=forward"), "unknown convention 'readuot'; did you mean 'readout'?"),
        (("--convention", "readout=foward"), "readout must be forward | init_lr, got 'foward'"),
        (("--convention", "depth_alpha=2"), "depth_alpha must be a number from 0.5 to 1, got 2.0"),
        (("--convention", "depth_alpha=nan"), "depth_alpha must be a number from 0.5 to 1, got nan"),
        (("--convention", "embeddings=tied", "--convention", "readout=init_lr"), "a tied tensor has no second init"),
        (("--gate", "sofmax"), "--gate: unknown gate 'sofmax'; did you mean 'softmax'?"),
        (("--optimizer", "sgd"), "the source has no sgd column; it has: adam"),
        (("--optimizer", "lion"), "lion"),
    ],
)
def test_bad_options(options: tuple[str, ...], message: str, explain: Explain) -> None:
    code, out, err = explain("--parameterization", "completep-moe", *options, base=MOE, target=MOE)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"width": 32}, "must give depth"),
        ({}, "must give width, depth"),
        ({**MOE, "widht": 32}, "widht: unknown key; did you mean 'width'?"),
        ({**MOE, "width": 32.0}, "width: must be a whole number, got 32.0"),
        ({**MOE, "width": True}, "width: must be a whole number, got True"),
        ({**MOE, "width": "32"}, "width: must be a whole number, got '32'"),
        ({**MOE, "depth": None}, "depth: must be a whole number, got None"),
        ({**MOE, "depth": -1}, "depth must be at least 1, got -1"),
        ({**MOE, "width": 0}, "width must be at least 1, got 0"),
        ({**MOE, "batch_tokens": -5}, "batch_tokens must be at least 0, got -5"),
        ({**MOE, "width": 10**12}, "width must be at most 1000000000, got 1000000000000"),
        ({**MOE, "head_dim": 24}, "width must be a multiple of head_dim, got width 32 and head_dim 24"),
        ({**MOE, "num_active": 5}, "num_active must be at most num_experts, got 5 of 4"),
        ({**MOE, "num_groups": 3}, "num_experts must be a multiple of num_groups 3, got 4"),
        ({**MOE, "num_shared": 1}, "num_shared and shared_width belong together"),
        ({**MOE, "shared_width": 8}, "num_shared and shared_width belong together"),
        ({**DENSE, "num_experts": 4}, "num_experts, num_active and expert_width belong together"),
        ({**DENSE, "expert_width": 32}, "num_experts, num_active and expert_width belong together"),
        ({**DENSE, "num_shared": 1, "shared_width": 8}, "shared experts and groups belong to a MoE layer"),
        ({**DENSE, "num_groups": 2}, "shared experts and groups belong to a MoE layer"),
        ({"width": 32, "depth": 2, "head_dim": 32}, "must have experts (num_experts, num_active, expert_width)"),
        ([1, 2], "must hold one JSON object of dimensions, got list"),
        ("{broken", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("side", ["base", "target"])
def test_bad_shapes(side: str, shape: object, message: str, explain: Explain) -> None:
    code, out, err = explain("--parameterization", "sp", **{"base": MOE, "target": MOE, side: shape})
    assert (code, out) == (2, "")
    assert f"{side}.json: " in err
    assert message in err


def test_a_shape_file_that_is_not_there(explain: Explain, tmp_path: Path) -> None:
    code, _, err = explain("--parameterization", "sp", "--target", tmp_path / "none.json", base=MOE)
    assert code == 2
    assert "none.json: cannot be read: No such file or directory" in err


@pytest.mark.parametrize("given", [{}, {"base": MOE}, {"target": MOE}])
def test_too_little_to_explain(given: dict[str, object], explain: Explain) -> None:
    code, _, err = explain("--parameterization", "sp", **given)
    assert code == 2
    assert "explain needs --parameterization, --base and --target, or --sweep, or --recipe" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--base", "x.json"), "--base: --sweep has a base shape of its own; leave one out"),
        (("--gate", "softmax"), "--gate and --tied/--untied: --sweep says what the model is; leave them out"),
        (("--untied",), "--gate and --tied/--untied: --sweep says what the model is; leave them out"),
        (("--recipe", "r.yaml"), "give one of --sweep and --recipe, got both"),
        (("--parameterization", "mop"), "unknown parameterization 'mop'"),
    ],
)
def test_what_does_not_go_with_a_sweep(options: tuple[str, ...], message: str, explain: Explain) -> None:
    code, out, err = explain(*options, sweep=SWEEP)
    assert (code, out) == (2, "")
    assert message in err


def test_a_sweep_s_own_conventions_and_others_beside_them(explain: Explain) -> None:
    sweep = SWEEP.replace("[completep-moe, sp]", "[{table: completep-moe, conventions: {depth_alpha: 0.5}}, sp]")
    code, out, _ = explain(sweep=sweep)
    assert (code, out.splitlines()[0]) == (0, "completep-moe[depth_alpha=0.5] (arXiv 2601.20205), adamw")
    code, out, _ = explain("--convention", "eps=global", sweep=sweep)
    assert out.startswith("completep-moe[depth_alpha=0.5,eps=global] ")
    code, out, _ = explain("--parameterization", "mup-i", sweep=sweep)
    assert (code, out.splitlines()[0]) == (0, "mup-i (MSSP (HiLD 2026)), adamw")


def test_an_arm_of_a_sweep_is_explained_with_its_own_base_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = "{table: completep-moe, name: tuned, hps: {multipliers: {router.lr_mult: 0.25}}}"
    sweep = tmp_path / "s.yaml"
    sweep.write_text(edited(("[completep-moe, sp]", f"[completep-moe, sp, {arm}]")))
    lrs = {}
    for label in ("completep-moe", "completep-moe (tuned)"):
        _, out, _ = hpxfer(capsys, "explain", "--sweep", sweep, "--parameterization", label, "--json")
        roles = json.loads(out)["values"]["base"]
        lrs[label] = roles["router"]["lr"], roles["attn_q"]["lr"]
    plain, tuned = lrs.values()
    assert tuned == (plain[0] / 4, plain[1])


def test_a_sweep_shows_the_roles_that_its_model_has(explain: Explain) -> None:
    modern = SWEEP.replace("  context: 64\n", "  context: 64\n  positions: rope\n  balance: {bias: none}\n")
    roles = {}
    for name, sweep in (("plain", SWEEP), ("modern", modern)):
        code, out, err = explain("--json", sweep=sweep)
        assert code == 0, err
        found = json.loads(out)
        assert set(found["roles"]) == set(found["values"]["base"])
        roles[name] = set(found["roles"])
        shown = explain(sweep=sweep)[1].split("\n\n")[1]
        assert {
            line.split()[0] for line in shown.splitlines()[2:] if not line.startswith(("route scale", "1 -"))
        } == roles[name]
    assert roles["plain"] - roles["modern"] == {"position", "router_bias"}
    assert {"router", "expert_in", "embedding"} <= roles["modern"]
    assert not {"dense_in", "shared_in"} & roles["plain"]


def test_a_shape_without_attention_and_one_with_it_are_no_base_and_target(explain: Explain) -> None:
    bare = {name: value for name, value in MOE.items() if name != "head_dim"}
    code, _, err = explain("--parameterization", "mup", base=MOE, target=bare)
    assert (code, err) == (
        2,
        "hpxfer: the target must give head_dim, as the base does (32), got none: a shape without attention\n",
    )
    code, _, err = explain("--parameterization", "mup", base=bare, target=MOE)
    assert (code, err) == (2, "hpxfer: the target must give no head_dim, as the base does not, got 32; take it out\n")
    assert explain("--parameterization", "mup", base=bare, target=bare)[0] == 0
