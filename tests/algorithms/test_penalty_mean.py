"""The mean penalty in the history, which the server keeps as a running sum, against the clients' own penalties."""

from __future__ import annotations

import numpy as np
import pytest
from federations import least_squares, two_sides_of_a_cliff

import fedjax_admm as fa

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
# Clients of which the server takes nothing, by why: their penalties stay, whatever the rule would say of their solves.
WITHOUT_EFFECT = {
    "late": {"client_time": fa.ClientTime(10.0, deadline=5.0)},
    "rejected": {"faults": fa.Faults(corruption="constant", corrupted=[0, 3])},
    "dropped": {"faults": fa.Faults(dropout=0.4)},
}


@pytest.mark.parametrize("reason", WITHOUT_EFFECT)
@pytest.mark.parametrize("unselected", ["current", "sent"])
def test_the_mean_is_that_of_the_clients_penalties(reason, unselected):
    problem, *_ = least_squares([6, 11, 3, 8, 5])
    algorithm = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.1, unselected_penalty=unselected)
    result = fa.simulate(problem, algorithm, 12, participation=3, progress=False, **WITHOUT_EFFECT[reason])
    assert reason in result.solves.stop_reason and np.unique(result.state.penalties).size > 2
    np.testing.assert_allclose(result.history["penalty_mean"], result.client_penalties().mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(result.history["penalty_mean"][-1], np.mean(result.state.penalties), rtol=1e-12)


def test_the_penalty_of_a_client_that_failed_stays():
    """It moved in the first round and fails in the second, where a gap of zero would have its penalty halved."""
    local = fa.LocalSolver(learning_rate=0.7, max_epochs=1)
    algorithm = fa.fedadmm_insa(local, penalty=1.0, reference="client")
    result = fa.simulate(two_sides_of_a_cliff(), algorithm, 2, progress=False)
    assert result.solves.stop_reason[1, 0] == "failed"
    np.testing.assert_allclose(result.history["penalty_mean"][-1], np.mean(result.state.penalties), rtol=1e-12)
