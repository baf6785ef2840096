from dataclasses import replace

from orbitset.models.card import describe_card


def test_it_says_what_goes_in_and_out_and_how_far_is_too_far(build_model):
    about = build_model(size_px=32, image_px=28, channels=3).description
    card = describe_card(about)
    assert card.startswith("# faces, OJ\n")
    assert "fitted to 28x28 px, colour, in the middle of a black square of 32 px" in card
    assert "codes of 16 numbers" in card
    assert "| 1.0% | 50.0% | 0.002 |" in card
    assert "1,234 pairs of images of people, where the same person is the same thing" in card


def test_it_says_how_many_pairs_the_thresholds_rest_on_and_in_which_precision_scores_were_taken(
    build_model,
):
    about = build_model().description
    points = tuple(replace(p, accepted=int(p.far > 0.01)) for p in about.calibration.points)
    few = replace(about.calibration, different=25, points=points)
    trained = replace(about.trained, scores={"auc": 0.9}, precision="bfloat16")
    card = describe_card(replace(about, calibration=few, trained=trained))
    assert "| 0 of 25 | 20.0% | 0.001 |" in card and "| 5.0% | 80.0% | 0.003 |" in card
    assert "rest on 25 pairs of different things" in card and "1,000 for 0.1%" in card
    assert "with the network in bfloat16; thresholds are measured in float32" in card
    assert few.describe(few.at(0.001)) == (
        "false accept rate 0 of 25, true accept rate 20.0%; measured on 25 pairs of different things, "
        "of which a rate of 0.1% needs at least 1,000"
    )


def test_scores_stand_beside_those_of_raw_pixels(build_model):
    about = build_model().description
    scores = {"auc": 0.91234, "own": 0.5}
    trained = replace(about.trained, scores=scores, baselines={"auc": 0.6}, versions={"torch": "2"})
    trained = replace(trained, measures={"auc": "the protocol's AUC"})
    card = describe_card(replace(about, trained=trained))
    assert "| the protocol's AUC | 0.912 | 0.600 |" in card
    assert "| own | 0.500 |  |" in card
    assert card.endswith("With torch 2.\n")
    trained = replace(trained, start="frozen", start_scores={"auc": 0.7})
    card = describe_card(replace(about, trained=trained))
    assert "| measure | this model | raw pixels | frozen network |\n|---|---|---|---|\n" in card
    assert "| the protocol's AUC | 0.912 | 0.600 | 0.700 |" in card
    assert "| own | 0.500 |  |  |" in card


def test_what_is_not_known_is_left_out(build_model):
    card = describe_card(build_model(calibration=None).description)
    assert "How good it is" not in card and "When are two images the same?" not in card
    assert "fitted to 16x16 px, grey\n" in card
