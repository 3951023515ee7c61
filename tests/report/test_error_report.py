"""A sweep that is judged by an error: its pages show accuracy, its data shares, and nothing says nats of an error."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest
from error_sweep import SAMPLES, error_spec, error_store
from hpxfer.report.markdown import to_markdown

from hpxfer.analysis import analyze
from hpxfer.figures import all_figures
from hpxfer.prediction import predict
from hpxfer.recipe import recipe_of
from hpxfer.report import Source, make_report
from hpxfer.report.html import to_html
from hpxfer.report.trials import trial_data
from hpxfer.results import Results, load_results
from hpxfer.spec.recipe_file import dump_recipe, read_recipe
from hpxfer.spec.yaml_file import parse_yaml

TRAINING = ("training", "collapse", "steps-to-loss", "normalized")  # figures of the training loss, in nats


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load_results(error_store(tmp_path_factory.mktemp("errors") / "small", error_spec(("seeds: 2", "seeds: 3"))))


def test_the_verdict_is_on_the_error_and_its_text_on_accuracy(results: Results) -> None:
    report = analyze(results).report
    assert report is not None
    assert [finding.verdict for finding in report.findings] == ["transfers", "drifts"]
    assert "points of top-5 accuracy lost" in report.headline
    assert report.judged.guess == pytest.approx(0.95)
    assert report.judged.num_samples == SAMPLES
    assert report.findings[0].shapes[0].best_loss == pytest.approx(0.305, abs=0.01)


def test_the_other_error_and_the_loss_can_be_asked_for(results: Results) -> None:
    assert analyze(results, "validation_error").judged.guess == pytest.approx(0.99)
    assert analyze(results, "validation").judged.unit == "nats"


def test_figures_show_accuracy_upward_and_write_shares(results: Results) -> None:
    figures, _ = all_figures(results, analyze(results))
    for figure in figures:
        if not figure.name.startswith(TRAINING):
            assert "nats" not in figure.title + figure.caption + figure.csv.splitlines()[0], figure.name
    (transfer,) = (figure for figure in figures if figure.name == "transfer-lr-width")
    axes = transfer.figure.axes[0]
    assert axes.get_ylabel() == "validation top-5 accuracy (%)"
    low, high = axes.get_ylim()
    assert low > high  # upside down: a low error, which is a high accuracy, is up
    transfer.figure.canvas.draw()
    labels = [float(label.get_text()) for label in axes.get_yticklabels()]
    assert labels == pytest.approx([100 * (1 - tick) for tick in axes.get_yticks()])
    assert "mean_share" in transfer.csv.splitlines()[0]


def test_pages_never_say_nats_of_an_error(results: Results) -> None:
    report = make_report([Source(results=results, analysis=analyze(results))])
    for text in (to_markdown(report, {}), re.sub(r"<script.*?</script>", "", to_html(report), flags=re.DOTALL)):
        assert "top-5 accuracy" in text
        said = [line for line in text.splitlines() if re.search(r"\bnats\b", line)]
        of_training = ("training", "floor", "fewer tokens", "loss nats", "arm end nats")  # steps to a training loss
        assert not [line for line in said if not any(word in line.lower() for word in of_training)]


def test_the_table_of_trials_shows_accuracy(results: Results) -> None:
    packed = json.loads(gzip.decompress(base64.b64decode(trial_data(results, 10**7).packed)))
    assert [heading for heading, _ in packed["losses"]] == [
        *("validation loss, nats", "final loss, nats", "validation accuracy, %", "validation top-5 accuracy, %")
    ]
    shown = packed["columns"]["validation_top5_accuracy_percent"]
    assert max(shown) == pytest.approx(100 * (1 - results.trials["validation_top5_error"].min()))
    assert not any("error" in name for name in packed["columns"] if name != "error")


def test_a_recipe_says_the_unit_and_reads_back(results: Results) -> None:
    file = recipe_of(results).file
    assert file.fitted is not None
    assert (file.fitted.loss, file.fitted.loss_nats, file.fitted.unit) == ("validation_top5_error", None, "share")
    assert file.fitted.loss_value == pytest.approx(0.305, abs=0.01)
    axis = file.fitted.axes["width"]
    assert (axis.noise_nats, axis.largest_regret_nats) == (None, None)
    assert (axis.noise or 0) > 0
    text = dump_recipe(file)
    assert read_recipe(parse_yaml(text, "recipe.yaml")) == file
    with pytest.raises(Exception, match="must be given, or null beside a unit that is not nats"):
        read_recipe(parse_yaml(text.replace("  unit: share\n", ""), "recipe.yaml"))


def test_a_prediction_is_an_accuracy_between_0_and_100(results: Results) -> None:
    target = {**results.spec.base_shape.dims(), "width": 256, "expert_width": 128}
    found = predict(results, target)
    assert found.loss is not None
    assert found.loss.forecast is not None
    assert 0 <= found.loss.forecast.low < found.loss.forecast.loss < found.loss.forecast.high <= 1
    text = str(found)
    assert "Expect a validation top-5 accuracy of 80." in text
    assert "nats" not in text
    assert found.to_dict()["loss_unit"] == "share"
