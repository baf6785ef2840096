"""The command line as a process: exit codes, what goes to stdout and stderr, files."""

import errno
import gzip
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from orbitset.cli.main import command_names, main
from orbitset.config import with_settings
from orbitset.datasets.mnist import SHA256
from orbitset.models import load_model_folder
from orbitset.recipes.affine_images import affine_digits
from orbitset.run_folder import Run
from orbitset.runs.demo import demo_configs
from orbitset.runs.train import train

SMALL = [
    "encoder.channels=4,8",
    "encoder.code_size=16",
    "train.epochs=0.005",
    "train.evaluations=2",
    "evaluation.test_images=60",
    "evaluation.draws=5",
    "evaluation.tsne_points=0",
]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "OJ")
    train(with_settings(affine_digits("OJ"), SMALL), run)
    return run


@pytest.mark.parametrize("command", command_names(), ids=" ".join)
def test_help_shows_an_example_and_json(orbitset, command):
    done = orbitset(*command, "--help")
    assert done.returncode == 0
    assert f"Example: orbitset {' '.join(command)}" in re.sub(r"\s+", " ", done.stdout)
    assert "--json" in done.stdout


def test_train_prints_one_json_object_and_writes_the_run_folder(orbitset, tmp_path):
    out = tmp_path / "run"
    done = orbitset("train", "affine-digits", "--method", "ae", "--out", out, "--json", *SETTINGS)
    rows = json.loads(done.stdout)["rows"]
    assert {"pixels", "untrained", "AE"} == {row["method"] for row in rows}
    keys = {"method", "metric", "mean", "sd", "n", "repeated", "seeds", "paper", "p_corrected"}
    assert all(keys <= set(row) for row in rows)
    names = {path.name for path in out.iterdir()}
    files = {"config.json", "environment.json", "metrics.jsonl", "results.json", "arrays.npz"}
    assert files | {"model.safetensors", "figures", "report.html"} <= names
    assert "images/s" in done.stderr


def test_a_table_is_printed_without_json(orbitset, finished):
    done = orbitset("report", finished.path)
    assert "one-shot accuracy" in done.stdout
    assert re.search(r"OJ\s+0\.\d{3} ± 0\.\d{3}\s+5 draws, 1 seed", done.stdout)
    assert "report.html" in done.stderr


def test_report_rebuilds_the_page_from_the_folder_alone(orbitset, finished):
    (finished / "report.html").unlink(missing_ok=True)
    done = orbitset("report", finished.path, "--json")
    assert json.loads(done.stdout)["rows"] == finished.read_json("results.json")["rows"]
    assert (finished / "report.html").stat().st_size > 10_000


def test_evaluate_gives_few_shot_knn_and_probe(orbitset, finished):
    more = ["--draws", 3, "--gallery", 200, "--test-images", 50, "--json"]
    done = orbitset("evaluate", finished.path, "--shots", 1, "--shots", 2, *more)
    metrics = {row["metric"] for row in json.loads(done.stdout)["rows"]}
    assert {"accuracy", "accuracy_2shot", "knn5_accuracy", "probe_accuracy"} <= metrics
    assert "accuracy_2shot_cosine" in metrics


def test_data_check_and_list(orbitset, tmp_path):
    done = orbitset("data", "check", "digits", "--json")
    assert json.loads(done.stdout)["train"] == 997
    done = orbitset("data", "check", "heads:2x3")
    assert done.returncode == 0 and "312 images of 64x64 px" in done.stdout.replace("; ", " of ")
    done = orbitset("data", "list", "--json", ORBITSET_DATA=str(tmp_path))
    assert json.loads(done.stdout)["data"]["mnist"]["here"] is False


def test_demo_trains_three_methods_and_says_what_it_does_not_show(
    orbitset, fails, tmp_path, monkeypatch
):
    def small(seed, epochs):
        configs = demo_configs(seed, epochs)
        return [with_settings(config, [*SMALL[:2], *SMALL[3:]]) for config in configs]

    monkeypatch.setattr("orbitset.runs.demo.demo_configs", small)
    done = orbitset("demo", "--out", tmp_path / "demo", "--epochs", 0.02, "--json", "--quiet")
    rows = [row for row in json.loads(done.stdout)["rows"] if row["metric"] == "accuracy"]
    assert [row["method"] for row in rows] == ["pixels", "untrained", "OJ", "OT", "AE"]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "does not compare methods" in page
    again = orbitset("demo", "--out", tmp_path / "demo", "--epochs", 0.02, "--json", "--resume")
    assert json.loads(again.stdout) == json.loads(done.stdout)
    fails(orbitset("demo", "--out", tmp_path / "demo"), 2, "already holds a run", "--overwrite")


def test_unknown_names_are_usage_errors_with_a_near_name(orbitset, fails, tmp_path):
    out = ["--out", tmp_path / "run"]
    fails(orbitset("train", "afine-mnist", *out), 2, "did you mean affine-mnist?")
    fails(orbitset("train", "affine-digits", "--method", "OI", *out), 2, "'OI'", "did you mean O")
    setting = ["--set", "loss.magin=1"]
    fails(orbitset("train", "affine-digits", *setting, *out), 2, "did you mean loss.margin?")
    setting = ["--set", "loss.margin=wide"]
    fails(orbitset("train", "affine-digits", *setting, *out), 2, "loss.margin is 'wide'")
    setting = ["--set", "loss.mining=semihrd"]
    fails(orbitset("train", "affine-digits", *setting, *out), 2, "did you mean semihard?")
    fails(orbitset("trian"), 2, "trian")
    fails(orbitset("train", "affine-digits", "--epoch", "1"), 2, "--epoch")
    assert not (tmp_path / "run").exists()


def test_a_batch_with_one_orbit_is_refused(orbitset, fails, tmp_path):
    setting = ["--set", "orbits.orbits_per_batch=1"]
    done = orbitset("train", "affine-digits", *setting, "--out", tmp_path / "run")
    fails(done, 2, "a batch with one orbit has no negatives")


def test_an_existing_run_needs_resume_or_overwrite(orbitset, fails, finished):
    before = (finished / "model.safetensors").read_bytes()
    arguments = ["train", "affine-digits", "--out", finished.path]
    fails(orbitset(*arguments, *SETTINGS), 2, "already holds a run", "--resume", "--overwrite")
    fails(orbitset(*arguments, "--resume", "--overwrite"), 2, "contradict")
    fails(orbitset(*arguments, "--resume", "--seed", 5), 2, "seed: 0 → 5")
    assert (finished / "model.safetensors").read_bytes() == before


FAILING = """
def loss(codes, batch):
    return first(codes)

def first(codes):
    return codes.mean() * {}["weight"]
"""


def test_an_error_in_the_user_s_own_code_shows_its_line_and_no_other_code(
    orbitset, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing_losses.py").write_text(FAILING)
    own = ["--loss", "failing_losses:loss", "--out", "run"]
    done = orbitset("train", "affine-digits", *own, *SETTINGS)
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert "error: KeyError: 'weight' (failing_losses.py, line 6)" in done.stderr
    assert done.stderr.count('File "') == 2 and "in loss" in done.stderr


def test_resume_needs_no_settings_again(orbitset, finished):
    done = orbitset("train", "--resume", "--out", finished.path, "--json")
    assert json.loads(done.stdout)["rows"] == finished.read_json("results.json")["rows"]


def test_a_folder_that_is_no_run_is_left_alone(orbitset, fails, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = orbitset("train", "affine-digits", "--out", tmp_path, "--overwrite", *SETTINGS)
    fails(done, 2, "holds no run")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    fails(orbitset("report", tmp_path / "nowhere"), 2, "no run folder at")


def test_missing_and_damaged_mnist_are_failures_that_say_what_to_do(orbitset, fails, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    check = ["data", "check", folder]
    fails(orbitset(*check), 1, "is not data that can be read")
    for name in SHA256:
        (folder / f"{name}.gz").write_bytes(gzip.compress(b"x" * 5000))
    fails(orbitset(*check), 1, "is damaged", "checksum", "hint: delete the file")
    whole = (folder / "train-images-idx3-ubyte.gz").read_bytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(whole[:-8])
    fails(orbitset(*check), 1, "truncated or damaged")
    (folder / "train-images-idx3-ubyte.gz").unlink()
    fails(orbitset(*check), 1, f"into {folder}", "train-images-idx3-ubyte.gz")


def test_images_that_cannot_be_used_are_failures(orbitset, fails, tmp_path):
    images = np.random.default_rng(0).random((20, 14, 14)).astype(np.float32)
    path, out = tmp_path / "images.npy", tmp_path / "run"
    for change, text in [
        (lambda x: x * 255, "lie between"),
        (lambda x: x.astype(np.int64), "have dtype int64"),
        (lambda x: x[0], "have shape (14, 14)"),
        (lambda x: np.where(np.arange(20)[:, None, None] == 3, np.nan, x), "image 3"),
    ]:
        np.save(path, change(images))
        fails(orbitset("train", path, "--out", out), 1, text)
    path.write_text("not an array")
    fails(orbitset("train", path, "--out", out), 1, "cannot be read")
    assert not out.exists()


def test_an_array_of_images_is_trained_in_the_papers_proportions(orbitset, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 14, 14), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    out = tmp_path / "run"
    done = orbitset("train", tmp_path / "mine.npz", "--out", out, "--json", *SETTINGS)
    assert {"pixels", "OJ"} <= {row["method"] for row in json.loads(done.stdout)["rows"]}
    config = Run(out).config
    assert config["orbits"]["canvas_px"] == 32
    assert config["orbits"]["affine"]["translation_px"] == 7.5


def test_an_unusable_device_is_named(orbitset, fails):
    done = orbitset("train", "affine-digits", "--device", "cuda:99", "--out", "nowhere")
    fails(done, 2, "cuda:99")


def test_ctrl_c_leaves_a_model_and_says_how_to_go_on(start, tmp_path):
    out = tmp_path / "run"
    process = start("train", "affine-digits", "--out", out, *SETTINGS, "--set", "train.epochs=50")
    while not (out / "checkpoint" / "latest.safetensors").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert f"go on with the training: orbitset train --resume --out {out}" in error
    assert Run(out).is_stopped and (out / "report.html").exists()
    assert load_model_folder(out).description.trained.images > 0
    assert "Traceback" not in error


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_lead_to_nothing_and_not_into_the_next_file(tmp_path, closed):
    code = """
from orbitset.cli.main import _open_closed_streams
from orbitset.cli.model_options import printable
_open_closed_streams()
with open("file", "w") as file:
    print(printable("data"))
    import sys; print("message", file=sys.stderr); sys.stdin.read()
"""
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and (tmp_path / "file").read_text() == ""


def test_a_full_disk_is_an_error_with_what_to_do(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/mine/codes.npy")

    monkeypatch.setattr(sys.modules["orbitset.cli.main"], "app", full)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "error: No space left on device: runs/mine/codes.npy\n\n"
        "hint: make room on that disk, or choose a folder on another one\n"
    )


def test_errors_have_no_colour_codes_and_version_is_printed(orbitset):
    done = orbitset("train", "nothing-of-that-name", NO_COLOR="1")
    assert "\x1b" not in done.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", orbitset("--version").stdout)


def test_files_of_others_survive_overwriting_and_refusals(orbitset, fails, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    mine = ["notes.txt", "checkpoint/old.bin", "figures/mine.png", ".dl.part"]
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("precious")
    assert (
        orbitset("train", "affine-digits", "--out", run, "--overwrite", *SETTINGS).returncode == 0
    )
    assert {(run / name).read_text() for name in mine} == {"precious"}
    other = tmp_path / "bert"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    (other / "model.safetensors").write_text("precious")
    before = sorted(path.name for path in other.iterdir())
    done = orbitset("train", "affine-digits", "--out", other, "--overwrite", *SETTINGS)
    fails(done, 2, "holds no run")
    assert (other / "model.safetensors").read_text() == "precious"
    assert sorted(path.name for path in other.iterdir()) == before


def test_finished_run_that_lost_a_file_is_mended_by_resume(orbitset, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    for name in ("model.safetensors", "environment.json", "arrays.npz"):
        (run / name).unlink()
    assert orbitset("train", "--resume", "--out", run).returncode == 0
    weights = "model.safetensors"
    assert (run / weights).read_bytes() == (finished / weights).read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", "[]"),
        ("results.json", '{"rows": [{}]}'),
        ("environment.json", "{}"),
        ("arrays.npz", "PK"),
        ("metrics.jsonl", "[]\n"),
    ],
)
def test_damaged_run_folders_are_failures_without_a_traceback(
    orbitset, fails, finished, tmp_path, name, content
):
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    (run / name).write_text(content)
    fails(orbitset("report", run), 1, "damaged")


def test_odd_values_are_refused_without_a_traceback(orbitset, fails, finished, tmp_path):
    fails(orbitset("evaluate", finished.path, "--shots", 0), 2, "shots is 0")
    out = ["--out", tmp_path / "run"]
    huge = ["--set", "loss.margin=1" + "0" * 400]
    fails(orbitset("train", "affine-digits", *out, *huge), 2, "finite")
    nested = ["--set", "loss.margin=" + "[" * 50_000]
    fails(orbitset("train", "affine-digits", *out, *nested), 2, "loss.margin")
    fails(
        orbitset("train", "affine-digits", *out, "--device", "gpu"),
        2,
        "--device is 'gpu'; choose cpu, cuda or",
    )
    sizes = ["--set", "encoder.code_size=9999999999999"]
    fails(orbitset("train", "affine-digits", *out, *sizes), 1, "not enough memory")
    fails(orbitset("train", "--resume", *out), 2, "no run folder at")


WRONG = {
    "--set loss.margin=abc": "loss.margin is 'abc'; give a number",
    "--set loss.temperatur=1": "did you mean loss.temperature?",
    "--set loss.margin": "write it as name=value",
    "--method OE --set loss.discriminate_weight=2": "belongs to OJ and OT",
    "--method XX": "method is 'XX'",
    "--protocol pair": "protocol is 'pair'",
    "--epochs 0": "--epochs is 0; give a finite number above 0",
    "--set train.epochs=0": "train.epochs is 0.0; give a number above 0",
    "--set train.warmup_steps=-1": "train.warmup_steps is -1; give at least 0",
    "--set train.schedule=cosin": "did you mean cosine?",
    "--set orbits.affine.shear=much": "orbits.affine.shear is 'much'",
    "--set evaluation.apart=2.5": "evaluation.apart is 2.5; give a whole number",
    "--encoder hf:": "give vgg, timm:NAME, hf:NAME or package.module:Class",
    "--encoder nobodys_networks:Net": "cannot import the encoder",
    "--init nowhere --encoder timm:resnet18": "leave out --encoder",
    "--split a=1/2 --test a=2": "give one of them",
    "--resume --overwrite": "contradict each other",
    "--device gpu": "choose cpu, cuda or cuda:N",
    "--on-problem ask": "--on-problem is 'ask'",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_settings_are_refused_before_any_image_is_looked_for(orbitset, fails, options):
    fails(orbitset("train", "nowhere/", *options.split()), 2, WRONG[options])


def test_a_taken_folder_is_refused_before_any_image_is_looked_for(orbitset, fails, finished):
    fails(orbitset("train", "nowhere/", "--out", finished.path), 2, "already holds a run")


HEAVY = {"matplotlib", "optuna", "pandas", "scipy", "sklearn", "timm", "transformers", "faiss"}


def test_little_is_imported_before_work_begins(finished, tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((2, 16, 16), np.uint8))
    commands = [
        ["--help"],
        *(["train", "nowhere/", *options.split()] for options in WRONG),
        ["train", "nowhere/"],
        ["embed", str(finished.path), str(tmp_path / "images.npy"), "-o", str(tmp_path / "c.npy")],
        ["data", "check", str(tmp_path / "images.npy")],
    ]
    program = (
        "import sys\nfrom orbitset.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['orbitset', *command]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        f"print(*sys.modules.keys() & {HEAVY!r}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (tmp_path / "c.npy").is_file()
    assert done.stderr.splitlines()[-1] == ""


def test_ten_images_are_enough(orbitset, fails, tmp_path):
    np.save(tmp_path / "ten.npy", np.zeros((10, 14, 14), np.uint8))
    path, out = tmp_path / "ten.npy", ["--out", tmp_path / "run"]
    fails(
        orbitset("train", path, *out, *SETTINGS),
        2,
        "finding does not use evaluation.draws, which belongs to one-shot",
    )
    settings = [part for setting in SMALL[:-2] for part in ("--set", setting)]
    done = orbitset("train", path, *out, *settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_interrupted_demo_goes_on_as_its_message_says(orbitset, start, fails, tmp_path):
    out = tmp_path / "my demo"
    process = start("demo", "--epochs", 0.05, "--out", out)
    while not (out / "OJ" / "checkpoint").exists() and process.poll() is None:
        time.sleep(0.05)
    locked = orbitset("demo", "--overwrite", "--out", out)
    fails(locked, 1, "another process is writing")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    advice = error.split("go on with it: ")[1].splitlines()[0]
    done = orbitset(*shlex.split(advice)[1:], "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert Run(out / "OJ").config["train"]["epochs"] == pytest.approx(0.05)


def test_a_manifest_is_checked_before_anyone_trains(orbitset, face_manifest):
    described = ["--orbit", "person,light", "--canonical", "view=front"]
    done = orbitset("data", "check", face_manifest, "--orbit", "person,session,light", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["orbits"]["orbits"] == 48
    done = orbitset("data", "check", face_manifest, *described)
    assert done.returncode == 1
    assert (
        "problem: row 2 and 11 more: its orbit (person p0, light 0) has view front" in done.stdout
    )


def test_a_check_says_how_long_a_training_takes(orbitset, fails, face_manifest):
    done = orbitset("data", "check", face_manifest, "--orbit", "person,session,light")
    assert done.returncode == 0, done.stderr
    *_, length, command = done.stdout.splitlines()
    assert re.match(r"training would show [\d,]+ images: about .* besides its evaluations", length)
    assert command.startswith("next: orbitset train")
    fails(
        orbitset("train", face_manifest, "--minutes", 0),
        2,
        "--minutes is 0; give a finite number above 0",
    )


def test_orbits_are_described_of_manifests_alone(orbitset, fails):
    fails(orbitset("data", "check", "digits", "--orbit", "person"), 2, "of a manifest")


def test_source_says_the_same_as_x_and_may_not_contradict_it(orbitset, fails):
    done = orbitset("data", "check", "--source", "digits", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["train"] == 997
    for command in (["train"], ["data", "check"]):
        wrong = orbitset(*command, "digits", "--source", "my_data:images")
        fails(wrong, 2, "X digits and --source my_data:images contradict each other; give one")
    fails(orbitset("data", "check"), 2, "no data were named; give X")
