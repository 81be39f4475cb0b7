"""The values that the parts hand to each other, with their axes, and the paper's symbols for them.

| paper          | here                              | axes            |
|----------------|-----------------------------------|-----------------|
| z^k            | `State.params`                    | [...]           |
| u_i            | `client_params`                   | [clients, ...]  |
| lambda_i       | `duals`                           | [clients, ...]  |
| beta_i         | `penalties`                       | [clients]       |
| alpha_i        | `Client.weight`                   |                 |
| N_i            | `Client.size`                     |                 |
| f_i            | `Problem.loss` (+ `regularizer`)  |                 |
| eta_i, E       | `LocalSolver.learning_rate`, `max_epochs` | scalar or [clients] |
| e_i^k          | the residual: the subproblem's gradient   | [...]   |
| sigma_i        | `Solves.sigma`                    | [cohort]        |
| c_i, delta, mu, tau | `c`, `delta`, `mu`, `tau`    | scalar; c also [clients] |
| d_i^k (3.14b)  | `consensus_gap`, ||u+ - z||       | [cohort]        |
| p_i^k (3.14a)  | beta_i * `movement`, ||u+ - u||   | [cohort]        |
| M^k            | `cohort`                          | [cohort]        |

The paper calls p the primal and d the dual residual, the reverse of Boyd et al.; here they are named by what
they measure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from .record import record, static
from .types import Key, Params, Rows


@record
class Clients:
    """All clients, as an algorithm's `init` sees them."""

    ids: Array  # [clients] int32
    sizes: Array  # [clients] int32, rows of each
    weights: Array  # [clients] alpha_i
    population: int = static()  # how many clients there are


@record
class Client:
    """One client, as its own functions see it."""

    id: Array  # int32, from 0
    size: Array  # int32, its rows of data
    weight: Array  # alpha_i
    population: int = static()  # how many clients there are


@record
class Round:
    """The round in which a function is called."""

    number: Array  # int32, k, from 0
    key: Key  # for random draws; it differs for each function, client and round
    communicates: Any = True  # whether messages are sent in this round; traced if that may vary


class Subproblem(NamedTuple):
    """A client's local problem in one round, solved from start.

        min_u f_i(u) - <linear, u> + penalty / 2 ||u - center||^2

    None means: no such term (linear, penalty); the server's parameters, which `broadcast` must then send (center,
    start); or not kept (previous).

    >>> Subproblem(penalty=0.1).linear is None  # FedProx's
    True
    """

    linear: Any = None  # [...] the vector of the linear term, such as the client's dual
    penalty: Any = None  # one number, the weight of the quadratic term
    center: Any = None  # [...] the point of the quadratic term
    start: Any = None  # [...] where the solve starts
    previous: Any = None  # [...] the client's former parameters u_i^k
    local_rounds: Any = None  # how many solves, one after the other, each with another linear term; None: one
    dual_step: Any = None  # one number: between these solves, linear -= dual_step * (u - center)


@record
class Solution:
    """The result of one client's solve, as `reply` gets it."""

    params: Params  # [...] u_i^{k+1}
    steps: Array  # int32, optimizer steps done
    epochs: Array  # int32, epochs done
    consensus_gap: Array  # ||u+ - center||
    movement: Array  # ||u+ - previous||; NaN if the subproblem has no previous
    measured: Array  # bool: whether gap and movement are those of the solve; not if it failed or its update was clipped
    linear: Any = None  # [...] the last solve's linear term, if the subproblem has `local_rounds`
    gradient: Any = None  # [...] the gradient at the start, over all rows; for algorithms with `needs_gradient`
    start_residual: Any = np.nan  # ||e(z)||; NaN if the criterion does not measure it


@record
class Received:
    """What the server receives in a round: sums over the clients whose message arrived."""

    total: Any  # sum of alpha_i * message_i, in the message's structure, at least in single precision
    weight: Array  # sum of alpha_i
    count: Array  # int32, how many messages arrived


class LocalProgress(NamedTuple):
    """What a stopping criterion sees of one solve."""

    round: Array  # k, from 0
    epoch: Array  # epochs done
    residual: Array  # ||e||, exact or estimated
    residual_noise: Array  # its standard error, from the batches; NaN if not needed, or with only one batch
    reference_residual: Array  # ||e|| at the reference point; NaN if the criterion has none
    penalty: Array  # beta_i; 0 if the subproblem has none


VACANT = -1  # in a cohort, where a client's number would be: nobody was available for the place


class Condition(enum.StrEnum):
    """What a run may have or lack: some stop reasons and history columns exist only with it."""

    FAULTS = "faults"
    DEADLINE = "deadline"
    CLIENT_TIME = "client time"
    PENALTY_RULE = "penalty rule"  # one that changes penalties
    CLIENTS_EVALUATED = "evaluate_clients_every"
    AVAILABILITY = "availability"  # cohorts that may differ in size


class Fate(NamedTuple):
    """What it means for a client that its solve ended for a reason."""

    meaning: str  # one line
    colour: str  # in the report: a colour of page.css
    label: str = ""  # of the history's column that counts it, on the axis of a picture
    hatched: bool = False  # in the report, beside another reason of the same colour
    sound: bool = False  # it ended by its own rules and was used; all other reasons are counted in the history
    away: bool = False  # the client did nothing in the round
    sent: bool = True  # the server got what the client had to send: its floats are counted
    offence: bool = False  # quarantine counts it
    needs: Condition | None = None  # without which it cannot happen
    vacant: bool = False  # there was no client: it is no client's reason
    remedy: str = ""  # what to do if the server used nothing because of it; "" where it uses what came


class StopReason(enum.StrEnum):
    """Why a client's solve ended, or why it did not take place or was not used.

    Files hold the reasons' places in this list: new ones go to its end.

    >>> StopReason.MAXIMUM == "maximum", StopReason.MAXIMUM.code, StopReason.LATE.fate.remedy
    (True, 1, 'raise the deadline')
    """

    fate: Fate

    CRITERION = "criterion", Fate("the stopping criterion was met", colour="blue", sound=True)
    MAXIMUM = "maximum", Fate("the maximum number of epochs was reached", colour="amber", sound=True)
    FLOOR = "floor", Fate("the residual reached the criterion's floor", colour="green", sound=True)
    FAILED = (
        "failed",
        Fate(
            "the result was not finite",
            colour="vermillion",
            label="clients whose solve failed",
            sent=False,
            offence=True,
            remedy="lower the learning rate",
        ),
    )
    DROPPED = (
        "dropped",
        Fate(
            "the client dropped out of the round",
            colour="grid",
            label="clients that dropped out",
            away=True,
            sent=False,
            needs=Condition.FAULTS,
            remedy="lower dropout",
        ),
    )
    QUARANTINED = (
        "quarantined",
        Fate(
            "the client is in quarantine, for this and all later rounds",
            colour="grey",
            label="selected clients in quarantine",
            away=True,
            sent=False,
            needs=Condition.FAULTS,
            remedy="corrupt fewer clients, or raise clip_norm or quarantine_after",
        ),
    )
    LATE = (
        "late",
        Fate(
            "the client answered after the deadline",
            colour="yellow",
            label="clients that missed the deadline",
            sent=False,  # it is not waited for
            needs=Condition.DEADLINE,
            remedy="raise the deadline",
        ),
    )
    CORRUPTED = (
        "corrupted",
        Fate(
            "the solve was correct, but the client sent something else, which was used",
            colour="purple",
            label="clients whose corrupted update was used",
            needs=Condition.FAULTS,
        ),
    )
    REJECTED = (
        "rejected",
        Fate(
            "the server did not use what the client sent",
            colour="purple",
            hatched=True,
            label="clients whose update was kept out",
            offence=True,
            needs=Condition.FAULTS,
            remedy="corrupt fewer clients, or raise clip_norm",
        ),
    )
    NOBODY = (
        "nobody",
        Fate(
            "no client was available for this place of the cohort",
            colour="indigo",
            label="places that no client took",
            away=True,
            sent=False,
            needs=Condition.AVAILABILITY,
            vacant=True,
            remedy="make clients available",
        ),
    )

    def __new__(cls, word: str, fate: Fate) -> StopReason:
        """A member that equals its word."""
        member = str.__new__(cls, word)
        member._value_, member.fate = word, fate
        return member

    @property
    def code(self) -> int:
        """The number for it on the device and in files."""
        return STOP_REASONS.index(self)


STOP_REASONS = tuple(StopReason)
AWAY = tuple(reason for reason in StopReason if reason.fate.away)
OFFENCES = tuple(reason for reason in StopReason if reason.fate.offence)


class RunStatus(enum.StrEnum):
    """The state of a run on disk.

    >>> RunStatus.FINISHED == "finished"
    True
    """

    RUNNING = "running"
    KILLED = "killed"  # its process is gone without having said anything
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    FAILED = "failed"


@record
class Solves:
    """One entry per local solve: [cohort] for a round, [rounds, cohort] for a run.

    Fields can be read as attributes or by name, `solves["epochs"]`. NaN stands for what was not measured: for example,
    a solve that ran to its maximum has no final residual, since the criterion is not checked after the last epoch.

    >>> result.solves.epochs.shape, np.unique(result.solves.stop_reason)  # doctest: +SKIP
    ((300, 40), array(['criterion', 'maximum'], dtype='<U9'))
    """

    epochs: Array  # int32, local epochs done
    max_epochs: Array  # int32, the most that it was allowed to do
    gradient_samples: Array  # int32, per-example gradients computed, including those of the criterion
    criterion_samples: Array  # int32, those of them computed only to check the criterion
    reference_residual: Array  # ||e|| at the reference point
    final_residual: Array  # ||e|| at the returned parameters; with "epoch_mean" the last epoch's mean
    sigma: Array  # the relative criterion's factor
    consensus_gap: Array  # ||u+ - z||, or the distance to the center if that is not z
    movement: Array  # ||u+ - u||, if the algorithm keeps u
    penalty: Array  # beta_i of this solve's subproblem
    new_penalty: Array  # beta_i after the round, if the algorithm keeps one for each client
    stop_code: Array  # int8, index into STOP_REASONS

    @property
    def stop_reason(self) -> np.ndarray:
        """Why each solve ended, as words: criterion, maximum, floor, failed, ...; see `StopReason`."""
        return np.array([str(reason) for reason in STOP_REASONS])[np.asarray(self.stop_code)]

    @property
    def took_place(self) -> np.ndarray:
        """Whether each client worked at all: it was available, did not drop out and was not in quarantine."""
        return ~np.isin(np.asarray(self.stop_code), [reason.code for reason in AWAY])

    @property
    def vacant(self) -> np.ndarray:
        """Whether each place of the cohort stayed empty, because no client was available for it."""
        return np.asarray(self.stop_code) == StopReason.NOBODY.code

    def count(self, *reasons: StopReason) -> int:
        """How many solves ended for one of these reasons."""
        return int(np.isin(np.asarray(self.stop_code), [reason.code for reason in reasons]).sum())

    def __getitem__(self, name: str) -> Any:
        if name not in self.names():
            raise KeyError(f"no field {name!r} of a solve: there are {', '.join(self.names())}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def keys(self) -> tuple[str, ...]:
        """As `names`: with it, `dict(solves)` works."""
        return self.names()

    @staticmethod
    def names() -> tuple[str, ...]:
        """The fields' names, as users see them."""
        return tuple(field.name.replace("stop_code", "stop_reason") for field in fields(Solves))


@record
class State:
    """Everything that is carried from one round to the next.

    What an algorithm keeps for each client can be read as an attribute: `state.duals` is `state.clients["duals"]`.

    >>> result.state.duals.shape, result.state.penalties.shape  # doctest: +SKIP
    ((200, 5000), (200,))
    """

    round: Array  # rounds done
    params: Params  # z
    server: Any  # what the algorithm remembers at the server
    clients: Rows  # name -> stacked pytree [clients, ...]
    last_epochs: Array  # [clients] int32 epochs of each client's last solve: orders the queue, nothing else
    penalty_mean: Any  # the mean of all clients' penalties; NaN if the method has none

    def __getattr__(self, name: str) -> Any:
        clients = {} if name.startswith("__") else self.__dict__.get("clients", {})
        if name in clients:
            return clients[name]
        kept = ", ".join(clients) or "nothing"
        raise AttributeError(f"no {name!r} here: this algorithm keeps {kept} for each client")
