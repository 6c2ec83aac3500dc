"""What `lanes rehearse` can try of TensorFold: nothing is known of it beyond a start, and that is said."""

from __future__ import annotations

from lanes.types import Lane, Launch, Process
from lanes_tensorfold.engine import lanes_rehearsal


def test_what_is_not_known_of_it_is_not_made_up() -> None:
    launch = Launch(processes=(Process(rank=0, argv=("serve",)),))
    plan = lanes_rehearsal(Lane(name="a", engine="tensorfold"), launch)
    for said in (plan.flags, plan.kernels, plan.dummy):
        assert isinstance(said, str) and "TensorFold" in said
