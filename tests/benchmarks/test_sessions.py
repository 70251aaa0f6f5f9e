"""The F-test of sessions finds an effect that is there, and about as often as it says one that is not."""

from __future__ import annotations

import numpy as np
import sessions


def test_an_effect_of_sessions_is_found_unless_it_is_allowed():
    rng = np.random.default_rng(1)
    shifted = [rng.normal(shift, 0.001, size=6) for shift in (0.0, 0.03, -0.03, 0.02)]

    found, allowed = sessions.f_test(shifted), sessions.f_test(shifted, allowed_sd=0.03)

    assert found["p"] < 0.001
    assert allowed["p"] == found["p"]
    assert allowed["p_allowed"] > 0.05


def test_without_an_effect_five_percent_are_beyond_the_point():
    rng = np.random.default_rng(2)
    found = [sessions.f_test(list(rng.normal(size=(4, 2)) * 0.01))["p"] < 0.05 for _ in range(400)]

    assert 0.025 < np.mean(found) < 0.08
